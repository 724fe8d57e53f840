"""Published records become the texts that lm-evaluation-harness makes of them; others are refused by their place."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from shared.bpe.training import SourceError
from trainer.errors import UsageError
from trainer.evaluation.tasks.items import Item
from trainer.evaluation.tasks.reading import TaskFile
from trainer.text.utf8 import CorpusError

# The form of the first record of hellaswag_val.jsonl (https://github.com/rowanz/hellaswag), with shorter endings, and
# of one from WikiHow; Hugging Face's Rowan/hellaswag has the label as text.
HELLASWAG: dict[str, Any] = {
    "ind": 24, "activity_label": "Roof shingle removal", "ctx_a": "A man is sitting on a roof.", "ctx_b": "he",
    "ctx": "A man is sitting on a roof. he", "split": "val", "split_type": "indomain", "label": 3,
    "endings": ["is using wrap.", "is ripping tiles.", "is holding a cube.", "starts pulling up roofing on a roof."],
    "source_id": "activitynet~v_-JhWjGDPHMY",
}  # fmt: skip
WIKIHOW = HELLASWAG | {
    "activity_label": "Home and Garden", "ctx_b": "",
    "ctx_a": "[header] How to clean [title] Soak it. [step] Then  wait.",
    "endings": [" [substeps] Dry it. [title] Done.", "b", "c", "d"], "label": "0",
}  # fmt: skip
STEM, CHOICES = "Which factor will most likely cause a fever?", ["a leg", "bacteria", "a sound", "bones"]
# ARC-Easy-Dev.jsonl of AI2's ARC-V1-Feb2018, and the same in allenai/ai2_arc on Hugging Face.
ARC = {
    "id": "MCAS_2007_8_5189",
    "question": {"stem": STEM, "choices": [{"text": t, "label": n} for t, n in zip(CHOICES, "1234", strict=True)]},
    "answerKey": "2",
}
ARC_HF = {
    "id": "Mercury", "question": STEM, "choices": {"text": CHOICES, "label": ["A", "B", "C", "D"]}, "answerKey": "B"
}  # fmt: skip
QUESTION = {"question": "Who lost the hat?", "answer": ["Anna", "the girl"]}
PASSAGE = "in my palm is a clear stone, and inside it is a small ivory statue . a guardian angel . '' figured"
LAMBADA = {"text": PASSAGE, "domain": None}


def read(path: Path, *, prompt: str = "Q: {question}\nA:", limit: int | None = None) -> list[Item]:
    return [item for _, item in TaskFile.open(path, memory=1 << 26, limit=limit, prompt=prompt).items()]


def write(path: Path, *records: Any) -> Path:
    lines = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(lines, encoding="utf-8")
    return path


def item(record: Any, tmp_path: Path) -> Item:
    [found] = read(write(tmp_path / "one.jsonl", record))
    return found


def test_hellaswag(tmp_path: Path) -> None:
    found = item(HELLASWAG, tmp_path)
    assert found.context == "Roof shingle removal: A man is sitting on a roof. He"
    assert found.choices == tuple(HELLASWAG["endings"])
    assert found.gold == 3


def test_what_wikihow_left_is_removed(tmp_path: Path) -> None:
    """As `preprocess` of the harness' task does it, which was run on these texts."""
    found = item(WIKIHOW, tmp_path)
    assert found.context == "Home and Garden: How to clean. Soak it. Then wait."
    assert found.choices == (" Dry it.. Done.", "b", "c", "d")
    assert found.gold == 0


@pytest.mark.parametrize("record", [ARC, ARC_HF])
def test_arc(record: dict[str, Any], tmp_path: Path) -> None:
    found = item(record, tmp_path)
    assert found.context == f"Question: {STEM}\nAnswer:"
    assert (found.choices, found.gold) == (tuple(CHOICES), 1)


def test_lambada_in_three_forms(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": [PASSAGE], "domain": [None]}), tmp_path / "test.parquet")
    (tmp_path / "lambada_test_plain_text.txt").write_text(f"{PASSAGE}\n\n{PASSAGE}\n", encoding="utf-8")
    of_lines = item(LAMBADA, tmp_path)
    [of_parquet] = read(tmp_path / "test.parquet")
    first, second = read(tmp_path / "lambada_test_plain_text.txt")
    for found in (of_lines, of_parquet, first, second):
        assert (found.context, found.choices) == (PASSAGE.removesuffix(" figured"), ("figured",))
    assert second.place.endswith("lambada_test_plain_text.txt, line 3")


def test_parquet_has_the_same_items(tmp_path: Path) -> None:
    for name, record in (("hellaswag", WIKIHOW), ("arc", ARC_HF), ("questions", QUESTION)):
        columns = {key: [value, value] for key, value in record.items()}
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
        of_lines = item(record, tmp_path)
        _, found = read(tmp_path / f"{name}.parquet")
        assert (found.context, found.choices, found.gold) == (of_lines.context, of_lines.choices, of_lines.gold)
        assert found.answers == of_lines.answers
        assert found.place.endswith(f"{name}.parquet, row 2")


def test_questions_take_the_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", QUESTION, {"question": "{question}?", "answer": "no"})
    first, second = read(path, prompt="{question}\nIn a word:")
    assert (first.context, first.answers) == ("Who lost the hat?\nIn a word:", ("Anna", "the girl"))
    assert (second.context, second.answers) == ("{question}?\nIn a word:", ("no",))
    assert len(read(path, limit=1)) == 1


def test_compressed_lines_and_empty_ones(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b"\n" + json.dumps(LAMBADA).encode() + b"\n\n"))
    [found] = read(tmp_path / "x.jsonl.gz")
    assert found.place.endswith("x.jsonl.gz, line 2")


@pytest.mark.parametrize("name", ["x.jsonl", "x.txt"])
def test_a_byte_order_mark_is_no_text(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a fox" if name == "x.txt" else '{"text": "a fox"}', encoding="utf-8-sig")
    [found] = read(tmp_path / name)
    assert (found.context, found.choices) == ("a", ("fox",))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "line 2: expected an object, found list"),
        ({"a": 1}, r"line 2: expected the fields of a task \(HellaSwag: .*\), found 'a'"),
        (ARC, "line 2: has the fields of ARC, but the file began with HellaSwag"),
        (HELLASWAG | {"label": ""}, "line 2: has no label: the answers of this test set are not published"),
        (HELLASWAG | {"label": 4}, "line 2: expected a label from 0 to 3, found 4"),
        (HELLASWAG | {"label": "-1"}, "line 2: expected a label from 0 to 3, found '-1'"),
        (HELLASWAG | {"label": "³"}, "line 2: expected a label from 0 to 3, found '³'"),
        (HELLASWAG | {"label": "1" * 5000}, r"line 2: expected a label from 0 to 3, found '1{47}\.\.\.1{48}'$"),
        (HELLASWAG | {"label": True}, "line 2: expected a label from 0 to 3, found True"),
        (HELLASWAG | {"label": 2.0}, "line 2: expected a label from 0 to 3, found 2.0"),
        (HELLASWAG | {"endings": []}, r"line 2: expected a list of texts in the field 'endings', found \[\]"),
        (HELLASWAG | {"endings": "abcd"}, "line 2: expected a list of texts in the field 'endings', found 'abcd'"),
        (HELLASWAG | {"endings": ["a", 1]}, "line 2: expected text in the field 'endings', found 1"),
        (HELLASWAG | {"ctx_a": None}, "line 2: expected text in the field 'ctx_a', found None"),
        (HELLASWAG | {"ctx_a": "a\ud800"}, "line 2: the field 'ctx_a' has half of a surrogate pair"),
    ],
)
def test_a_bad_record_is_refused_by_its_line(record: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        read(write(tmp_path / "bad.jsonl", HELLASWAG, record))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            ARC_HF | {"answerKey": "E"},
            r"expected one of the labels \('A', 'B', 'C', 'D'\) in the field 'answerKey', found 'E'",
        ),
        (ARC_HF | {"answerKey": 2}, "expected text in the field 'answerKey', found 2"),
        (ARC_HF | {"choices": {"text": ["a"], "label": ["A", "B"]}}, "has 1 choices, but 2 labels"),
        (ARC_HF | {"choices": ["a", "b"]}, "expected choices, each with a text and a label"),
        (ARC_HF | {"choices": None}, "expected choices, each with a text and a label, found None"),
        (ARC | {"question": {"stem": STEM, "choices": []}}, "expected a list of texts in the choices"),
        (ARC | {"question": {"choices": [{"text": "a", "label": "A"}]}}, "expected text in the question, found None"),
        (QUESTION | {"answer": 42}, "expected a list of texts in the field 'answer', found 42"),
        (QUESTION | {"answer": []}, "expected a list of texts in the field 'answer'"),
    ],
)
def test_other_bad_records(record: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=f"line 1: {message}"):
        read(write(tmp_path / "bad.jsonl", record))


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_bytes(b'{"text": "a b"}\n{"text": ')
    (tmp_path / "latin.txt").write_bytes(b"a b\nna\xefve c\n")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    for name, message in (
        ("broken.jsonl", "line 2, is not JSON"),
        ("latin.txt", "line 2, is not UTF-8: .* at byte 2"),
        ("x.parquet", "cannot be read"),
        ("missing.jsonl", "No such file"),
        ("", "it is a directory"),
    ):
        with pytest.raises(CorpusError, match=message):
            read(tmp_path / name)
    for name in ("x.json", "x", "x.parquet.gz", "x.gz"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(UsageError, match=r"expected a file of questions: \.jsonl"):
            read(tmp_path / name)


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", LAMBADA)
    file = TaskFile.open(path, memory=1 << 26, limit=None, prompt="{question}")
    write(path, LAMBADA, LAMBADA)
    with pytest.raises(SourceError, match="was changed while it was read"):
        list(file.items())
