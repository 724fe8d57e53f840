"""Scoring questions beside lm-evaluation-harness' model `hf`: `python -m benchmarks.questions MODEL TEXT`.

Questions in the formats of HellaSwag, ARC and LAMBADA are made of a text whose documents are separated by
`<|endoftext|>`. The harness has its model loaded, and does not resample for standard errors; it is run with each of the
batch sizes, and its fastest counts. Ours is the whole of `evaluate --tasks`: loading the model, reading the file twice,
standard errors. They take turns in one process; medians of all rounds but the first. Results must be equal to 1e-4.
Needs the extra `clients`.
"""

import argparse
import json
import os
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.host import describe_machine, installed_versions
from benchmarks.inputs import existing_file, existing_folder
from benchmarks.report import table

NAMES = ("hellaswag", "arc", "lambada")
_CHOICES = "metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]"
_TASKS = {
    "hellaswag": ("hellaswag/hellaswag.yaml", f"training_split: null\n{_CHOICES}"),
    "arc": ("arc/arc_easy.yaml", f"training_split: null\ntest_split: null\n{_CHOICES}"),
    "lambada": ("lambada/lambada_openai.yaml", "test_split: null\nvalidation_split: validation"),
}


def main() -> None:
    """Measure and report."""
    options = _options()
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    rows = []
    with tempfile.TemporaryDirectory(prefix="ownlm-benchmark-") as name:
        os.environ["HF_HOME"] = f"{name}/hf"
        folder = Path(name)
        write_questions(options.text, options.questions, folder)
        harness = _harness(options.model, folder, options.threads)
        for task in options.tasks:
            contestants: dict[str, Callable[[], dict[str, float]]] = {
                f"lm_eval, batches of {size}": lambda task=task, size=size: harness(task, size)  # type: ignore[misc]
                for size in options.batch_sizes
            }
            contestants["ours"] = lambda task=task: _ours(options, folder / f"{task}.jsonl")  # type: ignore[misc]
            seconds = _measure(contestants, options.rounds)
            medians = {each: statistics.median(some) for each, some in seconds.items()}
            best = min((value, each) for each, value in medians.items() if each != "ours")
            rows.append([task, *(f"{value:.2f}" for value in medians.values()), f"{best[0] / medians['ours']:.2f}"])
    print(table(["questions", *medians, "ours is faster than its best"], rows), end="\n\n")
    report = {
        "command": shlex.join(["python", "-m", "benchmarks.questions", *sys.argv[1:]]),
        "machine": describe_machine(),
        "versions": installed_versions(["lm_eval", "torch", "transformers"]),
        "rows": rows,
    }
    print(json.dumps(report))


def write_questions(text: Path, count: int, folder: Path) -> None:
    """Write a file for each of the formats, of so many questions each."""
    draw = random.Random(0)
    documents = [" ".join(each.split()) for each in text.read_text(encoding="utf-8").split("<|endoftext|>")]
    documents = [each for each in documents if len(each.split()) > 100][:count]
    sentences = [sentence for each in documents for sentence in each.split(". ") if 20 < len(sentence) < 140]
    for name in NAMES:
        records = ({"hellaswag": _hellaswag, "arc": _arc, "lambada": _lambada}[name])(documents, sentences, draw)
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def _hellaswag(documents: list[str], sentences: list[str], draw: random.Random) -> Iterator[dict[str, Any]]:
    for document in documents:
        first, second, third, right, *_ = document.split(". ")
        endings = draw.sample([right, *draw.sample(sentences, 3)], 4)
        context = ". ".join([first, second, third]) + "."
        labels = {"activity_label": "A story", "label": str(endings.index(right))}
        yield {"ctx_a": context, "ctx_b": "", "endings": endings, **labels}


def _arc(documents: list[str], sentences: list[str], draw: random.Random) -> Iterator[dict[str, Any]]:
    words = sorted({" ".join(sentence.split()[:2]) for sentence in sentences})
    for document in documents:
        choices = {"text": draw.sample(words, 4), "label": ["A", "B", "C", "D"]}
        question = f"{document.split('. ')[0]}. What comes next?"
        yield {"question": question, "choices": choices, "answerKey": draw.choice("ABCD")}


def _lambada(documents: list[str], _sentences: list[str], draw: random.Random) -> Iterator[dict[str, Any]]:
    for document in documents:
        yield {"text": " ".join(document.split()[: draw.randint(60, 90)])}


def _measure(contestants: dict[str, Callable[[], dict[str, float]]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, one after another in each round, the first of which is not counted; results must be equal."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        results = {}
        for name, run in contestants.items():
            begin = time.perf_counter()
            results[name] = run()
            if number:
                seconds[name].append(time.perf_counter() - begin)
        for name, found in results.items():
            for metric, value in results["ours"].items():
                if abs(found[metric] - value) > 1e-4 * max(1, value):
                    sys.exit(f"{metric} is {value} by ours, {found[metric]} by {name}")
    return seconds


def _ours(options: argparse.Namespace, path: Path) -> dict[str, float]:
    from trainer.console.progress import progress
    from trainer.evaluation.tasks.evaluate import evaluate_tasks
    from trainer.settings.evaluation import EvaluateSettings, ScoringMachineSettings
    from trainer.settings.tasks import TaskSettings

    machine = ScoringMachineSettings(device="cpu", threads=options.threads)
    settings = EvaluateSettings(machine=machine, questions=TaskSettings(tasks=(path,)))
    with progress(shown=False) as new_bar:
        [result] = evaluate_tasks(options.model, settings, new_bar).results
    return {name: metric.value for name, metric in result.metrics.items()}


def _harness(model: Path, folder: Path, threads: int) -> Callable[[str, int], dict[str, float]]:
    """What runs a task with a batch size; its model is loaded once for each."""
    import lm_eval
    import torch
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    torch.set_num_threads(threads)
    for name, (yaml, more) in _TASKS.items():
        text = (
            f"include: {Path(lm_eval.__file__).parent / 'tasks' / yaml}\ntask: our_{name}\ntag: null\n"
            f"dataset_path: json\ndataset_name: null\n{more}\n"
            f"dataset_kwargs: {{data_files: {{validation: {folder / f'{name}.jsonl'}}}}}\n"
        )
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    loaded: dict[int, Any] = {}

    def run(name: str, batch_size: int) -> dict[str, float]:
        if batch_size not in loaded:
            loaded[batch_size] = HFLM(str(model), device="cpu", batch_size=batch_size, dtype="float32")
        task = f"our_{name}"
        found = lm_eval.simple_evaluate(
            loaded[batch_size], tasks=[task], task_manager=manager, bootstrap_iters=0, verbosity="ERROR"
        )["results"][task]
        return {key.removesuffix(",none"): value for key, value in found.items() if key.endswith(",none")}

    return run


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=existing_folder, help="a model folder that transformers opens too")
    parser.add_argument("text", type=existing_file, help="documents separated by <|endoftext|>")
    parser.add_argument("--tasks", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
