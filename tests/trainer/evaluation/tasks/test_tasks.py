"""Files of questions are put to a model; what became of them is printed, listed and recorded."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from services.inference.description import read_origin
from shared.lm import SamplingParams, generate, load_model_folder, read_description
from shared.lm.evaluations_file import read_evaluations
from tests.trainer.evaluation.tasks.conftest import CONTEXT, Evaluate
from tests.trainer.evaluation.tasks.test_formats import ARC, HELLASWAG, WIKIHOW, write
from trainer.card.model_card import MARK
from trainer.commands.evaluate import evaluate as command
from trainer.errors import TrainerError, UsageError
from trainer.evaluation.tasks import evaluate as driver
from trainer.settings.evaluation import EvaluateSettings, ReadingSettings, ScoringMachineSettings, ScoringSettings
from trainer.settings.tasks import TaskSettings
from trainer.text.utf8 import CorpusError

PASSAGES = [{"text": text} for text in ("the old cat sees", "a dog likes the red cat", "the cat", "fox")]
QUESTIONS = [
    {"question": text, "answer": "?"} for text in ("the old cat", "a dog likes the red " * 9, "red", "blue cat")
]


def samples(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def command_settings(*paths: Path, **options: Any) -> EvaluateSettings:
    machine = ScoringMachineSettings(device="cpu", dtype="float32", threads=1)
    return EvaluateSettings(machine=machine, questions=TaskSettings(tasks=paths, **options))


@pytest.mark.parametrize("group_items", [1, 2, 1024])
def test_groups_and_batches_change_nothing(
    evaluate: Evaluate, group_items: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [
        write(tmp_path / "h.jsonl", HELLASWAG, WIKIHOW, HELLASWAG),
        write(tmp_path / "l.jsonl", *PASSAGES),
        write(tmp_path / "q.jsonl", *QUESTIONS),
    ]
    expected = evaluate(*paths, samples=tmp_path / "expected.jsonl")
    monkeypatch.setattr(driver, "_GROUP_ITEMS", group_items)
    found = evaluate(*paths, batch_size=2, samples=tmp_path / "found.jsonl")
    for one, other in zip(found, expected, strict=True):
        assert one["questions"] == other["questions"]
        for name, metric in one["metrics"].items():
            assert metric == pytest.approx(other["metrics"][name], rel=1e-4)
    for one, other in zip(samples(tmp_path / "found.jsonl"), samples(tmp_path / "expected.jsonl"), strict=True):
        assert one.pop("log_likelihood", 0) == pytest.approx(other.pop("log_likelihood", 0), abs=1e-4)
        assert one.pop("log_likelihoods", []) == pytest.approx(other.pop("log_likelihoods", []), abs=1e-4)
        assert one == other


def greedy(model: Path, prompt: str, max_tokens: int, stop: Sequence[str]) -> str:
    folder = load_model_folder(model)
    ids = folder.tokenizer.encode(prompt)[-(CONTEXT - max_tokens) :]
    end = folder.generation.eos_token_ids
    params = SamplingParams(temperature=0.0)
    written = generate(
        folder.model, ids, params, max_tokens=max_tokens, eos_token_ids=end, valid_tokens=folder.valid_tokens
    )
    text = folder.tokenizer.decode(list(written))
    for each in stop:
        text = text.split(each)[0]
    return text


@pytest.mark.parametrize("stop", [(), ("t",), ("a", "ed")])
def test_answers_are_those_of_each_prompt_alone(
    evaluate: Evaluate, model_folder: Path, stop: tuple[str, ...], tmp_path: Path
) -> None:
    path = write(tmp_path / "q.jsonl", *QUESTIONS)
    expected = [greedy(model_folder, f"Q {each['question']}", 15, stop) for each in QUESTIONS]
    assert len(set(expected)) > 1
    asked = {"prompt": "Q {question}", "stop": stop, "max_answer_tokens": 15}
    [result] = evaluate(path, samples=tmp_path / "s.jsonl", **asked)
    assert [sample["written"] for sample in samples(tmp_path / "s.jsonl")] == expected
    assert result["cut"] == 1
    right = [{**each, "answer": ["x", text]} for each, text in zip(QUESTIONS[:2], expected, strict=False)]
    [result] = evaluate(write(path, *right, *QUESTIONS[2:]), **asked)
    assert result["metrics"]["exact_match"]["value"] == 0.5


def test_the_command_prints_json_and_a_table(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = command_settings(write(tmp_path / "arc.jsonl", ARC, ARC))
    command(model_folder, settings=settings, json_output=True)
    [task] = json.loads(capsys.readouterr().out)["tasks"]
    assert (task["format"], task["questions"], [*task["metrics"]]) == ("ARC", 2, ["acc", "acc_norm", "acc_bytes"])
    command(model_folder, settings=settings)
    assert "acc_norm" in capsys.readouterr().out


def test_what_is_wrong_is_found_before_anything_is_scored(evaluate: Evaluate, tmp_path: Path) -> None:
    good, bad = write(tmp_path / "good.jsonl", *PASSAGES), write(tmp_path / "bad.jsonl", HELLASWAG, {"text": "a"})
    with pytest.raises(CorpusError, match=r"bad\.jsonl, line 2: has the fields of LAMBADA"):
        evaluate(good, bad, samples=tmp_path / "samples.jsonl")
    assert not (tmp_path / "samples.jsonl").exists()
    with pytest.raises(TrainerError, match=r"empty\.jsonl has no questions"):
        evaluate(good, write(tmp_path / "empty.jsonl"))


def test_a_diverged_model_is_named(evaluate: Evaluate, model_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = tmp_path / "model"
    shutil.copytree(model_folder, model)
    (model / "checksums.json").unlink()
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], 1e38)
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    for name, some in (("a.jsonl", PASSAGES), ("q.jsonl", QUESTIONS)):
        with pytest.raises(TrainerError, match="NaN or infinite"):
            evaluate(write(tmp_path / name, *some), model=model)


def test_options_that_have_no_meaning_are_refused(model_folder: Path, tmp_path: Path) -> None:
    tasks = TaskSettings(tasks=(write(tmp_path / "a.jsonl", *PASSAGES),))
    with pytest.raises(UsageError, match="--window is for texts and has no effect with --tasks"):
        EvaluateSettings(questions=tasks, scoring=ScoringSettings(window=8))
    with pytest.raises(UsageError, match="--by is for texts and has no effect with --tasks"):
        EvaluateSettings(questions=tasks, reading=ReadingSettings(by="file"))
    with pytest.raises(UsageError, match="limit is for questions, whose files are named with --tasks"):
        EvaluateSettings(questions=TaskSettings(limit=3))
    with pytest.raises(UsageError, match=r"leave out a\.txt"):
        command(model_folder, [Path("a.txt")], settings=EvaluateSettings(questions=tasks))
    with pytest.raises(UsageError, match=r"must contain \{question\}"):
        TaskSettings(prompt="Answer:")
    with pytest.raises(UsageError, match=r"extract is not a regular expression: '\('"):
        TaskSettings(extract="(")
    with pytest.raises(UsageError, match=r"ignore is not a regular expression"):
        TaskSettings(ignore=("a", "["))
    with pytest.raises(UsageError, match="a text that ends an answer is empty"):
        TaskSettings(stop=("",))


def test_answers_must_leave_room_for_a_prompt(evaluate: Evaluate, tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", *QUESTIONS)
    with pytest.raises(UsageError, match="--max-answer-tokens must be less than 40"):
        evaluate(path, max_answer_tokens=CONTEXT)
    evaluate(path, max_answer_tokens=CONTEXT - 1)


def test_results_are_recorded_for_the_page_and_the_card(model_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(model_folder, model)
    (model / "README.md").write_text(f"{MARK}\nlicense: mine\n\n## Run it\n\nso\n", encoding="utf-8")
    first, second = write(tmp_path / "arc.jsonl", ARC, ARC, ARC), write(tmp_path / "lambada.jsonl", *PASSAGES)
    command(model, settings=command_settings(first, second, record=True))
    command(model, settings=command_settings(first, limit=2, record=True))
    found = {(each.file, each.metric): each for each in read_evaluations(model)}
    names = [f"{tmp_path.name}/{name}" for name in ("arc.jsonl", "lambada.jsonl")]
    assert {name for name, _ in found} == set(names)
    assert found[names[0], "acc"].questions == 2
    assert found[names[1], "perplexity"].questions == 4

    card = (model / "README.md").read_text(encoding="utf-8")
    assert card.count("## Questions") == 1
    assert (
        card.index("license: mine")
        < card.index(f"| `{names[0]}` | `ARC` | `acc` | 2 |")
        < card.index("## Run it\n\nso\n")
    )
    load_model_folder(model)  # which verifies the checksums
    origin = read_origin(read_description(model))
    assert [(each.file, each.metric) for each in origin.evaluations] == [*found]


def test_a_card_that_is_not_ours_stays(model_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(model_folder, model)
    (model / "README.md").write_text("mine", encoding="utf-8")
    (model / "evaluations.json").write_text('{"tasks": 3}', encoding="utf-8")
    command(model, settings=command_settings(write(tmp_path / "arc.jsonl", ARC), record=True))
    assert (model / "README.md").read_text(encoding="utf-8") == "mine"
    assert len(read_evaluations(model)) == 3


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    with pytest.raises(UsageError, match="is not writable"):
        command(model_folder, settings=command_settings(write(tmp_path / "arc.jsonl", ARC), record=True))


ENTRY = {"file": "a", "format": "b", "questions": 1, "metrics": {"c": {"value": 0.5}}}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"format_version": 2, "tasks": []}',
        '{"format_version": 1, "tasks": 3}',
        '{"format_version": 1, "tasks": [3, {}]}',
        *(
            json.dumps({"format_version": 1, "tasks": [ENTRY | change]})
            for change in (
                {"file": 1}, {"file": "a\x1b"}, {"format": None}, {"questions": True}, {"questions": 0.5},
                {"metrics": []},
                *({"metrics": {"c": value}} for value in (1, {}, {"value": math.nan}, {"value": True})),
                {"metrics": {"c": {"value": 1, "stderr": "1"}}},
            )
        ),
    ],
)  # fmt: skip
def test_a_record_from_anywhere_may_hold_anything(content: str, tmp_path: Path) -> None:
    (tmp_path / "evaluations.json").write_text(content, encoding="utf-8")
    assert read_evaluations(tmp_path) == []
    (tmp_path / "evaluations.json").write_text(json.dumps({"format_version": 1, "tasks": [3, ENTRY]}))
    assert read_evaluations(tmp_path) == [("a", "b", 1, "c", 0.5, None)]


def test_what_cannot_be_read_twice_or_would_be_overwritten(evaluate: Evaluate, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="questions are read twice, which standard input cannot be"):
        evaluate(Path("-"))
    path = write(tmp_path / "a.jsonl", *PASSAGES)
    with pytest.raises(UsageError, match="--samples would overwrite it"):
        evaluate(path, samples=tmp_path / "." / "a.jsonl")
    assert len(samples(path)) == len(PASSAGES)


TEMPLATE = (
    "{% for m in messages %}<|endoftext|>{{ m.role }}\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant\n{% endif %}"
)


@pytest.fixture
def chat_model(model_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(model_folder, tmp_path / "chat")
    (tmp_path / "chat" / "checksums.json").unlink()
    (tmp_path / "chat" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return tmp_path / "chat"


def test_questions_by_a_chat_template(evaluate: Evaluate, chat_model: Path, tmp_path: Path) -> None:
    """As the template rendered by hand, whose special tokens are control and whose question is text."""
    choices = {"text": ["red", "a<|endoftext|>"], "label": ["A", "B"]}
    arc = {"question": "the <|endoftext|> cat", "choices": choices, "answerKey": "A"}
    paths = [write(tmp_path / "arc.jsonl", arc), write(tmp_path / "q.jsonl", QUESTIONS[0])]
    evaluate(
        *paths,
        model=chat_model,
        apply_chat_template=True,
        prompt="{question}",
        samples=tmp_path / "s.jsonl",
        max_answer_tokens=8,
    )
    of_choices, of_answer = samples(tmp_path / "s.jsonl")
    assert of_choices["context"] == (
        "<|endoftext|>user\nQuestion: the <|endoftext|> cat\nAnswer:<|endoftext|>assistant\n"
    )
    folder = load_model_folder(chat_model)
    encode, end = folder.tokenizer.encode, folder.tokenizer.special_tokens["<|endoftext|>"]
    user = encode("user\nQuestion: the <|endoftext|> cat\nAnswer:")
    for choice, found in zip(choices["text"], of_choices["log_likelihoods"], strict=True):
        before, whole = encode("assistant"), encode(f"assistant\n{choice}")
        ids = torch.tensor([end, *user, end, *before, *whole[len(before) :]])[-CONTEXT - 1 :]
        count = len(whole) - len(before)
        with torch.no_grad():
            logits = folder.model(ids[None, :-1])[0].log_softmax(-1)[-count:]
        assert found == pytest.approx(logits.gather(1, ids[-count:, None]).sum().item(), abs=1e-4)
    assert of_answer["prompt"] == "<|endoftext|>user\nthe old cat<|endoftext|>assistant\n"


def test_a_model_without_a_template_cannot_chat(evaluate: Evaluate, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no chat template for --apply-chat-template"):
        evaluate(write(tmp_path / "q.jsonl", *QUESTIONS), apply_chat_template=True)


def test_a_template_that_refuses_names_the_question(evaluate: Evaluate, chat_model: Path, tmp_path: Path) -> None:
    refusing = "{% if 'red' in messages[0].content %}{{ raise_exception('no red') }}{% endif %}"
    (chat_model / "chat_template.jinja").write_text(refusing + TEMPLATE, encoding="utf-8")
    with pytest.raises(CorpusError, match=r"q\.jsonl, line 2: .*no red"):
        evaluate(write(tmp_path / "q.jsonl", *QUESTIONS), model=chat_model, apply_chat_template=True)


def test_examples_come_before_each_question(evaluate: Evaluate, chat_model: Path, tmp_path: Path) -> None:
    shots = write(tmp_path / "train.jsonl", *({"question": text, "answer": ["x", "y"]} for text in ("a", "b", "c")))
    path = write(tmp_path / "q.jsonl", QUESTIONS[0])
    asked = {"shots": 2, "shots_from": shots, "prompt": "Q {question} A", "samples": tmp_path / "s.jsonl"}
    evaluate(path, **asked)
    assert [sample["prompt"] for sample in samples(tmp_path / "s.jsonl")] == ["Q a A x\n\nQ b A x\n\nQ the old cat A"]
    evaluate(path, model=chat_model, apply_chat_template=True, **asked)
    said = [("user", "Q a A"), ("assistant", "x"), ("user", "Q b A"), ("assistant", "x"), ("user", "Q the old cat A")]
    expected = "".join(f"<|endoftext|>{role}\n{text}" for role, text in said) + "<|endoftext|>assistant\n"
    assert [sample["prompt"] for sample in samples(tmp_path / "s.jsonl")] == [expected]

    with pytest.raises(UsageError, match=r"has 3 questions; --shots 4 needs as many"):
        evaluate(path, shots=4, shots_from=shots)
    with pytest.raises(UsageError, match="the examples of --shots-from are questions, the questions ARC"):
        evaluate(write(tmp_path / "arc.jsonl", ARC), shots=1, shots_from=shots)
    for half in ({"shots": 1}, {"shots_from": shots}):
        with pytest.raises(UsageError, match="--shots and --shots-from belong together"):
            TaskSettings(**half)  # type: ignore[arg-type]
