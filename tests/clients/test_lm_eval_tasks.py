"""lm-evaluation-harness, with its model `hf`, finds on the same files what `trainer evaluate --tasks` does.

Its own tasks read our files; scores are compared item by item. Figures are printed:
`pytest -m slow -s tests/clients/test_lm_eval_tasks.py`.
"""

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.bpe import Tokenizer
from shared.bpe.training import train_bpe
from shared.lm import GenerationDefaults, ModelConfig, Transformer, save_model_folder
from trainer.console.progress import progress
from trainer.evaluation.tasks.evaluate import evaluate_tasks
from trainer.evaluation.tasks.tables import to_json
from trainer.settings.evaluation import EvaluateSettings, ScoringMachineSettings
from trainer.settings.tasks import TaskSettings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not importlib.util.find_spec("lm_eval"), reason="lm-eval is not installed: ownlm[clients]"),
]

SHORT = 48  # a context that many questions do not fit into
WORDS = [
    "red",
    "blue",
    "cat",
    "dog",
    "sees",
    "likes",
    "the",
    "a",
    "naïve",
    "old",
    "🦊",
    "fox,",
    "runs;",
    "[b]",
    " [title]",
]
ANSWER_TOKENS = 12
TEMPLATE = (
    "{% for m in messages %}the {{ m.role }}:\n{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}the assistant:\n{% endif %}"
)

# What the harness' own task is given besides our file: the names of its parts, the split to use, all metrics.
HARNESS = {
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation", "training_split: null"),
    "arc": ("arc/arc_challenge.yaml", "test", "training_split: null\nvalidation_split: null"),
    "lambada": ("lambada/lambada_openai.yaml", "test", ""),
}
CHOICE_METRICS = "metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]"
QUESTIONS = """
task: our_questions
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}, train: {train}}}}}
test_split: test
fewshot_split: train
fewshot_config: {{sampler: first_n}}
output_type: generate_until
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: answer
generation_kwargs: {{until: ["\\n", "dog"], do_sample: false, max_gen_toks: {max_tokens}}}
filter_list:
  - {{name: whole, filter: [{{function: remove_whitespace}}, {{function: take_first}}]}}
  - {{name: word, filter: [{{function: regex, regex_pattern: "(c)at|([a-z]+)"}}, {{function: take_first}}]}}
metric_list:
  - {{metric: exact_match, ignore_case: true, ignore_punctuation: true, regexes_to_ignore: ["the "]}}
"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=12)) + ".\n" for _ in range(300)]
    return train_bpe(texts, 300, special_tokens=["<|endoftext|>"]).tokenizer


@pytest.fixture(scope="module")
def models(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Random models whose guesses are far from even, by their context lengths."""
    return {
        length: make_model(tokenizer, tmp_path_factory.mktemp("models") / "model", length) for length in (SHORT, 200)
    }


def make_model(tokenizer: Tokenizer, folder: Path, context_length: int) -> Path:
    torch.manual_seed(0)
    shape = {"d_model": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "d_ff": 48}
    weights = Transformer(ModelConfig(tokenizer.vocab_size, context_length, **shape, initializer_range=0.3))
    defaults = GenerationDefaults(eos_token_ids=(tokenizer.special_tokens["<|endoftext|>"],))
    save_model_folder(
        folder,
        model=weights,
        tokenizer=tokenizer,
        generation=defaults,
        provenance={},
        extra_files=lambda path: (path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8"),
    )
    return folder


def records(draw: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Questions of each format, many of which do not fit into the context."""

    def text(shortest: int, longest: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(shortest, longest)))

    hellaswag = [
        {
            "activity_label": text(1, 2), "ctx_a": text(1, 30), "ctx_b": draw.choice(["", "die Ärzte sehen ", "éa"]),
            "endings": [text(0, 12) for _ in range(4)], "label": draw.choice([3, 1, 0]),
        }
        for _ in range(60)
    ]  # fmt: skip
    hellaswag[0]["endings"] = ["the", "a", "old", "cat"]  # the harness stops if the first one has an empty choice
    hellaswag[1]["endings"] = ["the cat", "the cat", "", "a naïve 🦊"]
    labels = (list("ABCDE"), list("1234"), list("ABC"))
    arc = [
        {"id": str(number), "question": text(1, 40), "answerKey": draw.choice(some),
         "choices": {"text": [text(1, 6) for _ in some], "label": some}}
        for number, some in enumerate(draw.choices(labels, k=60))
    ]  # fmt: skip
    # The last ones: no context, a space or a line at its end, and a word that merges with what stands before it.
    passages = [text(2, 60) for _ in range(60)] + ["fox", "the  cat", "the cat\n the", "the old\n\ncat sees ", "a  "]
    questions = [{"question": text(1, 30), "answer": ""} for _ in range(40)]
    lambada = [{"text": passage} for passage in passages]
    return {"hellaswag": hellaswag, "arc": arc, "lambada": lambada, "questions": questions}


def write(path: Path, some: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in some), encoding="utf-8")
    return path


def ours(model: Path, *paths: Path, **options: Any) -> list[dict[str, Any]]:
    machine = ScoringMachineSettings(device="cpu", dtype="float32")
    settings = EvaluateSettings(machine=machine, questions=TaskSettings(tasks=paths, **options))
    with progress() as new_bar:
        tasks: list[dict[str, Any]] = to_json(evaluate_tasks(model, settings, new_bar))["tasks"]
    return tasks


def samples(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def harness(model: Path, folder: Path, files: dict[str, Path], *more: str) -> dict[str, Any]:
    """Its results, and its samples under the same names."""
    import lm_eval

    own_tasks = Path(lm_eval.__file__).parent / "tasks"
    for name, path in files.items():
        train = path.with_name(f"train_{name}.jsonl")
        if name == "questions":
            task = QUESTIONS.format(path=path, train=train, max_tokens=ANSWER_TOKENS)
        else:
            yaml, split, more_yaml = HARNESS[name]
            task = (
                f"include: {own_tasks / yaml}\ntask: our_{name}\ntag: null\ndataset_path: json\ndataset_name: null\n"
                f"dataset_kwargs: {{data_files: {{{split}: {path}, train: {train}}}}}\n{more_yaml}\n"
                "fewshot_split: train\nfewshot_config: {sampler: first_n}\n"
                f"{'' if name == 'lambada' else CHOICE_METRICS}\n"
            )
        (folder / f"our_{name}.yaml").write_text(task, encoding="utf-8")
    environment = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    command = [
        sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={model},dtype=float32",
        "--device", "cpu", "--batch_size", "4", "--tasks", ",".join(f"our_{name}" for name in files),
        "--include_path", str(folder), "--output_path", str(folder / "results"), "--log_samples", *more,
    ]  # fmt: skip
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [results] = (folder / "results").rglob("results_*.json")
    found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))["results"]
    for name in files:
        [path] = (folder / "results").rglob(f"samples_our_{name}_*.jsonl")
        found[f"our_{name}"]["samples"] = sorted(samples(path), key=lambda sample: sample["doc_id"])
    return found


@pytest.mark.parametrize("mode", ["plain", "chat", "examples", "chat with examples"])
def test_the_figures_are_the_harness_own(models: dict[int, Path], mode: str, tmp_path: Path) -> None:
    chat, shots = "chat" in mode, 2 if "examples" in mode else 0
    model = models[200 if shots else SHORT]
    files = {name: write(tmp_path / f"{name}.jsonl", some) for name, some in records(random.Random(1)).items()}
    answering = {"max_answer_tokens": ANSWER_TOKENS, "stop": ("\n", "dog"), "apply_chat_template": chat}
    train = {name: write(tmp_path / f"train_{name}.jsonl", some) for name, some in records(random.Random(2)).items()}
    write(train["questions"], [{**each, "answer": ["cat", "dog"]} for each in samples(train["questions"])])

    def found_by_us(name: str, **options: Any) -> dict[str, Any]:
        more = {"shots": shots, "shots_from": train[name]} if shots else {}
        [result] = ours(model, files[name], **more, **answering, **options)
        return result

    # The right answers of every second question are what the model writes, spelled in another way, or a word of it.
    found_by_us("questions", samples=tmp_path / "written.jsonl")
    written = [sample["written"] for sample in samples(tmp_path / "written.jsonl")]
    asked = [
        {
            **record,
            "answer": [f"the {text.strip().upper()}!", *re.findall("[a-z]+", text)[:1]] if number % 2 else ["no"],
        }
        for number, (record, text) in enumerate(zip(samples(files["questions"]), written, strict=True))
    ]
    write(files["questions"], asked)

    more = [*(["--apply_chat_template"] if chat else []), *(["--num_fewshot", str(shots)] if shots else [])]
    theirs = harness(model, tmp_path, files, *more)
    for name in ("hellaswag", "arc", "lambada"):
        result = found_by_us(name, samples=tmp_path / f"samples_{name}.jsonl")
        for metric, (value, stderr) in ((key, each.values()) for key, each in result["metrics"].items()):
            print(
                f"{name} {metric}: {value:.6f} ± {stderr:.6f}, by the harness {theirs[f'our_{name}'][metric + ',none']}"
            )
            assert value == pytest.approx(theirs[f"our_{name}"][f"{metric},none"], rel=1e-6, abs=1e-4)
            assert stderr == pytest.approx(theirs[f"our_{name}"][f"{metric}_stderr,none"], rel=1e-6, abs=1e-4)
        assert 0.1 < result["metrics"].get("acc_norm", {"value": 0.5})["value"] < 0.6
        assert shots or name != "hellaswag" or result["cut"] > 10
        own = samples(tmp_path / f"samples_{name}.jsonl")
        for sample, scored in zip(theirs[f"our_{name}"]["samples"], own, strict=True):
            responses = [float(response[0]) for response in sample["filtered_resps"]]
            assert scored.get("log_likelihoods", [scored.get("log_likelihood")]) == pytest.approx(responses, abs=1e-4)

    normal = {"ignore_case": True, "ignore_punctuation": True, "ignore": ("the ",)}
    for filtered, extract in (("whole", None), ("word", "(c)at|([a-z]+)")):
        result = found_by_us("questions", samples=tmp_path / "answers.jsonl", extract=extract, **normal)
        value, stderr = result["metrics"]["exact_match"].values()
        print(f"exact match, {filtered}: {value} ± {stderr}")
        assert value == theirs["our_questions"][f"exact_match,{filtered}"]
        assert stderr == pytest.approx(theirs["our_questions"][f"exact_match_stderr,{filtered}"])
        by_harness = [each for each in theirs["our_questions"]["samples"] if each["filter"] == filtered]
        answers = [sample["answer"] or "[invalid]" for sample in samples(tmp_path / "answers.jsonl")]
        assert [each["filtered_resps"][0] or "[invalid]" for each in by_harness] == answers
    assert min(theirs["our_questions"][f"exact_match,{filtered}"] for filtered in ("whole", "word")) > 0.1
