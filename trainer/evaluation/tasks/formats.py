"""The formats in which tasks are published, recognized by their fields.

Prompts, and what is done to the texts, are those of lm-evaluation-harness 0.4, so that results compare: its tasks
hellaswag, arc_easy, arc_challenge, lambada_openai and gsm8k (https://github.com/EleutherAI/lm-evaluation-harness).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.system.errors import short_repr
from trainer.evaluation.tasks.items import Item, Kind
from trainer.text.formats import listed
from trainer.text.utf8 import CorpusError

_BRACKETED = re.compile(r"\[.*?\]")  # what WikiHow's articles left in HellaSwag


@dataclass(frozen=True)
class Record:
    """One record of a file.

    Attributes:
        place: Its file and line or row.
        fields: What it holds.
    """

    place: str
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """A field that must be text."""
        return self.checked(self.fields.get(name), f"the field {name!r}")

    def texts(self, values: object, what: str) -> tuple[str, ...]:
        """A list that must hold texts, one at least."""
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise self.error(f"expected a list of texts in {what}, found {short_repr(values)}")
        return tuple(self.checked(value, what) for value in values)

    def checked(self, value: object, what: str) -> str:
        """A value that must be text which a tokenizer can encode."""
        if not isinstance(value, str):
            raise self.error(f"expected text in {what}, found {short_repr(value)}")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise self.error(f"{what} has half of a surrogate pair, which is not text")
        return value

    def error(self, what: str) -> CorpusError:
        """An error that names the place."""
        return CorpusError(f"{self.place}: {what}")


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        name: As it is shown.
        kind: What is done with its items.
        fields: By which it is recognized.
        read: Makes an item of a record, with the prompt of `Prompts`.
    """

    name: str
    kind: Kind
    fields: frozenset[str]
    read: Callable[[Record, str], Item]


def recognize(record: Record, file_format: Format | None) -> Format:
    """The format of a record.

    Args:
        record: The record.
        file_format: That of the records before it in its file.

    Raises:
        CorpusError: If it has the fields of none, or of another one than the records before it.
    """
    found = next((each for each in FORMATS if each.fields <= record.fields.keys()), None)
    if found is None:
        known = "; ".join(f"{each.name}: {', '.join(sorted(each.fields))}" for each in FORMATS)
        raise record.error(f"expected the fields of a task ({known}), found {listed(record.fields)}")
    if file_format is not None and found is not file_format:
        raise record.error(
            f"has the fields of {found.name}, but the file began with {file_format.name}; give each format a file"
        )
    return found


def _hellaswag(record: Record, _prompt: str) -> Item:
    context = f"{record.text('ctx_a')} {record.text('ctx_b').capitalize()}"
    endings = record.texts(record.fields["endings"], "the field 'endings'")
    return Item(
        record.place,
        _without_wikihow(f"{record.text('activity_label')}: {context}"),
        tuple(map(_without_wikihow, endings)),
        _index(record, record.fields.get("label"), len(endings)),
    )


def _without_wikihow(text: str) -> str:
    return _BRACKETED.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _index(record: Record, label: object, choices: int) -> int:
    """A label that is a number, or the digits of one."""
    if label in ("", None):
        raise record.error("has no label: the answers of this test set are not published; take the validation set")
    digits = label if isinstance(label, str) else str(label) if type(label) is int else ""
    index = int(digits) if len(digits) < 10 and digits.isascii() and digits.isdecimal() else -1
    if not 0 <= index < choices:
        raise record.error(f"expected a label from 0 to {choices - 1}, found {short_repr(label)}")
    return index


def _arc(record: Record, _prompt: str) -> Item:
    question, choices = record.fields["question"], record.fields.get("choices")
    if isinstance(question, Mapping):  # AI2's own files; Hugging Face's have both side by side
        choices = question.get("choices")
        question = question.get("stem")
    stem = record.checked(question, "the question")
    if isinstance(choices, Mapping):
        texts, labels = choices.get("text"), choices.get("label")
    elif isinstance(choices, Sequence) and all(isinstance(choice, Mapping) for choice in choices):
        texts, labels = ([choice.get(name) for choice in choices] for name in ("text", "label"))
    else:
        raise record.error(f"expected choices, each with a text and a label, found {short_repr(choices)}")
    texts, labels = record.texts(texts, "the choices"), record.texts(labels, "the labels of the choices")
    key = record.text("answerKey")
    if len(texts) != len(labels):
        raise record.error(f"has {len(texts)} choices, but {len(labels)} labels")
    if key not in labels:
        found = short_repr(key)
        raise record.error(f"expected one of the labels {short_repr(labels)} in the field 'answerKey', found {found}")
    return Item(record.place, f"Question: {stem}\nAnswer:", texts, labels.index(key))


def _question(record: Record, prompt: str) -> Item:
    answers = record.fields["answer"]
    answers = (answers,) if isinstance(answers, str) else answers
    texts = record.texts(answers, "the field 'answer'")
    return Item(record.place, prompt.replace("{question}", record.text("question")), answers=texts)


def _lambada(record: Record, _prompt: str) -> Item:
    context, _, word = record.text("text").rpartition(" ")
    return Item(record.place, context, (word,))


FORMATS = (
    Format("HellaSwag", "multiple choice", frozenset({"activity_label", "ctx_a", "ctx_b", "endings"}), _hellaswag),
    Format("ARC", "multiple choice", frozenset({"question", "answerKey"}), _arc),
    Format("questions", "answer", frozenset({"question", "answer"}), _question),
    Format("LAMBADA", "last word", frozenset({"text"}), _lambada),
)
"""More specific ones first."""

COLUMNS = (*sorted({field for each in FORMATS for field in each.fields}), "label", "choices")
"""Of parquet files: all that is read."""
