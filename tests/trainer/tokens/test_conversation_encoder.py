"""Which tokens of a conversation the loss counts: written out by hand, token by token."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.bpe import PATTERNS, AddedToken, Tokenizer, Vocabulary
from shared.chat import DEFAULT_TEMPLATE
from tests.shared.chat.templates import TEMPLATES
from trainer.conversations.messages import AFTER_LAST_ANSWER, EMPTY_SYSTEM
from trainer.conversations.template import choose_template
from trainer.errors import TrainerError, UsageError
from trainer.settings.encode import EncodeSettings
from trainer.text.utf8 import CorpusError
from trainer.tokens.encode import EncodingReport, encode_files
from trainer.tokens.token_file import TokenFile

END = "<|endoftext|>"
SPECIAL = [END, "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|start|>", "<|end|>", "<|eot|>", "<turn>", "<end>"]
QUESTION = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Yo"}
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TWO_TURNS = [QUESTION, ANSWER, {"role": "user", "content": "So?"}, {"role": "assistant", "content": "<s>No"}]

# ⟦ and ⟧ are around what counts. A token is a byte or a special token, but in the answer the user's or the assistant's
# own `<s>`, which is three bytes.
EXPECTED = {
    "default": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Yo<|im_end|>⟧\n"
    "<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n⟦{<s>}No<|im_end|>⟧\n<|endoftext|>",
    "chatml": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Yo<|im_end|>⟧\n"
    "<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n⟦{<s>}No<|im_end|>⟧\n<|endoftext|>",
    "header": "<s><|start|>system<|end|>\n\n<|eot|><|start|>user<|end|>\n\nHi<|eot|>"
    "<|start|>assistant<|end|>\n\n⟦Yo<|eot|>⟧<|start|>user<|end|>\n\nSo?<|eot|>"
    "<|start|>assistant<|end|>\n\n⟦{<s>}No<|eot|>⟧<|endoftext|>",
    "instruction": "<s>[INST] Hi [/INST]\n⟦ Yo</s>⟧\n[INST] So? [/INST]\n⟦ {<s>}No</s>⟧\n<|endoftext|>",
    "thinking": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Yo<|im_end|>⟧\n"
    "<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n⟦{<s>}No<|im_end|>⟧\n<|endoftext|>",
    "generation": "USER: Hi\nA: ⟦Yo</s>⟧\nUSER: So?\nA: ⟦{<s>}No</s>⟧\n<|endoftext|>",
    "macro": "<turn>user\nHi<end>\n<turn>model\n⟦Yo<end>⟧\n"
    "<turn>user\nSo?<end>\n<turn>model\n⟦{<s>}No<end>⟧\n<|endoftext|>",
}


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bytes, the merge of a space with Y, and special tokens."""
    tokens = {byte: bytes([byte]) for byte in range(256)} | {256: b" Y"}
    added = tuple(AddedToken(257 + number, token) for number, token in enumerate(SPECIAL))
    vocabulary = Vocabulary(
        tokens=tokens, merges=((32, ord("Y")),), added=added, pattern=PATTERNS["gpt2"], bos="<s>", eos="</s>"
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer(vocabulary).save(folder)
    return folder


Encode = Callable[..., tuple[EncodingReport, TokenFile]]


@pytest.fixture
def encode(tokenizer_folder: Path, tmp_path: Path) -> Encode:
    """Encode records with a template."""

    def encoded(
        records: list[Any], template: str = DEFAULT_TEMPLATE, **settings: Any
    ) -> tuple[EncodingReport, TokenFile]:
        path, given = tmp_path / "chat.jsonl", tmp_path / "given.jinja"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        given.write_text(template, encoding="utf-8")
        tokenizer = Tokenizer.from_files(tokenizer_folder)
        chosen = choose_template(given, tokenizer_folder, tokenizer)
        options = EncodeSettings(chat=True, threads=1, overwrite=True, **settings)
        report = encode_files([path], tokenizer, tmp_path / "tokens", options, template=chosen)
        return report, TokenFile.open(tmp_path / "tokens", "train")

    return encoded


def shown(file: TokenFile, folder: Path) -> str:
    """A token file as `EXPECTED` has it; a special token that was encoded as text is in braces."""
    tokenizer = Tokenizer.from_files(folder)
    names = {token: content for content, token in tokenizer.special_tokens.items()}
    parts: list[str] = []
    text = b""
    was_counted = 0
    for token, counted in zip(file.tokens.tolist(), file.read_mask(0, len(file)).tolist(), strict=True):
        if counted != was_counted or token in names:
            parts += (_braced(text), "⟦" * (counted > was_counted) or "⟧" * (counted < was_counted))
            text = b""
        was_counted = counted
        if token in names:
            parts.append(names[token])
        else:
            text += tokenizer.token_bytes(token)
    return "".join([*parts, _braced(text)])


def _braced(text: bytes) -> str:
    return text.decode().replace("<s>", "{<s>}")


@pytest.mark.parametrize("name", EXPECTED)
def test_what_counts_of_a_conversation(encode: Encode, tokenizer_folder: Path, name: str) -> None:
    _, file = encode([{"messages": TWO_TURNS}], {**TEMPLATES, "default": DEFAULT_TEMPLATE}[name])
    assert shown(file, tokenizer_folder) == EXPECTED[name]
    file.verify()


def test_token_by_token_with_a_token_that_would_join_prompt_and_answer(encode: Encode) -> None:
    """The service encodes the prompt `A: ` by itself, so that its space is never one token with the answer's `Y`."""
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\n"
        "{% else %}A: {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}A: {% endif %}"
    )
    _, file = encode([{"messages": [QUESTION, ANSWER]}], template)
    expected = [
        *((byte, 0) for byte in b"Q: Hi\nA: "),
        (ord("Y"), 1),
        (ord("o"), 1),
        (257 + SPECIAL.index("</s>"), 1),
        (257 + SPECIAL.index(END), 0),
    ]
    assert [*zip(file.tokens.tolist(), file.read_mask(0, len(file)).tolist(), strict=True)] == expected


def test_where_no_token_ends_an_answer_the_end_of_the_text_does(encode: Encode, tokenizer_folder: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    _, file = encode([{"messages": TWO_TURNS}], template)
    assert shown(file, tokenizer_folder) == ("user: Hi\nassistant: ⟦Yo\n⟧user: So?\nassistant: ⟦{<s>}No\n<|endoftext|>")


def test_the_end_of_the_text_within_a_conversation_is_refused(encode: Encode, tokenizer_folder: Path) -> None:
    """Documents are found by this id."""
    template = "{% for m in messages %}{{ m.content }}{{ eos_token if m.role == 'assistant' else ' ' }}{% endfor %}"
    _, file = encode([{"messages": [QUESTION, ANSWER]}], template, separator="</s>")
    assert shown(file, tokenizer_folder) == "Hi ⟦Yo</s>"
    with pytest.raises(TrainerError, match="writes the token that ends documents, '</s>', within a conversation"):
        encode([{"messages": TWO_TURNS}], template, separator="</s>")


def test_forms_of_records(encode: Encode) -> None:
    """All of these are the same conversation."""
    parts = [{"type": "text", "text": "Hi"}]
    records = [
        {"messages": [QUESTION, ANSWER]},
        {"messages": [{"role": "user", "content": parts, "name": None}, ANSWER], "prompt": "x", "source": 1},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]},
        {"conversations": [{"role": "user", "content": "Hi"}, {"from": "gpt", "value": "Yo"}]},
        {"prompt": "Hi", "response": "Yo"},
        {"messages": [{"role": "system", "content": " "}, QUESTION, ANSWER]},
        {"messages": [QUESTION, ANSWER, QUESTION]},
    ]
    report, file = encode(records)
    assert file.manifest.documents == len(records)
    assert len({bytes(part) for part in np.array_split(file.tokens, len(records))}) == 1
    assert {kind: count for kind, (count, _) in report.findings.items()} == {EMPTY_SYSTEM: 1, AFTER_LAST_ANSWER: 1}
    assert report.findings[EMPTY_SYSTEM][1].endswith("line 6")


def test_what_cannot_be_trained_on_is_counted(encode: Encode) -> None:
    records: list[Any] = [
        {"messages": [QUESTION, ANSWER]},
        {"messages": [QUESTION]},
        {"messages": []},
        {"messages": [QUESTION, {"role": "bot", "content": "Yo"}]},
        {"messages": [QUESTION, {"role": "assistant", "content": "  "}]},
        {"messages": [{"role": "user", "content": ""}, ANSWER]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}, ANSWER]},
        {"messages": [{"role": "user", "content": 7}, ANSWER]},
        {"prompt": "Hi", "response": None},
        {"messages": [{"role": "user", "content": chr(0xD800)}, ANSWER]},
        {"messages": [QUESTION, {**ANSWER, "weight": 0}]},
        {"messages": [QUESTION, ANSWER], "tools": "x"},
        {"messages": [QUESTION, {**ANSWER, "deep": json.loads("[" * 60 + "]" * 60)}]},
    ]
    report, file = encode(records)
    assert file.manifest.documents == 1
    counts = {kind: count for kind, (count, _) in report.findings.items()}
    assert counts == {
        "no answer of the assistant": 3,
        "a message of an unknown role": 1,
        "an empty message": 3,
        "a content that is not text": 2,
        "text with half of a UTF-16 pair": 1,
        "tools that are not a list of objects": 1,
        "more than 50 levels of nesting": 1,
    }
    assert report.findings["a message of an unknown role"][1].endswith("line 4: 'bot'")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ([], "line 1 is not an object"),
        ({"text": "x"}, "line 1 has no conversation"),
        ({"messages": "x"}, "'messages' must be a list of objects"),
        ({"messages": ["x"]}, "'messages' must be a list of objects"),
        ({"messages": [{"content": "x"}]}, "a message needs 'role' and 'content'"),
    ],
)
def test_records_of_another_form_are_refused(encode: Encode, record: Any, reason: str) -> None:
    with pytest.raises(CorpusError, match=reason):
        encode([record])


def test_an_answer_of_weight_0_does_not_count(encode: Encode, tokenizer_folder: Path) -> None:
    messages = [QUESTION, {**ANSWER, "weight": 0}, QUESTION, {**ANSWER, "weight": 1}]
    for template in (DEFAULT_TEMPLATE, TEMPLATES["chatml"]):
        _, file = encode([{"messages": messages}], template)
        first, second = shown(file, tokenizer_folder).split("<|im_start|>assistant\n")[1:]
        assert (first[:13], second[:14]) == ("Yo<|im_end|>\n", "⟦Yo<|im_end|>⟧")


def test_longer_than_the_context(encode: Encode, tokenizer_folder: Path) -> None:
    _, whole = encode([{"messages": TWO_TURNS}])
    length = len(whole)
    long, short = f"longer than a context of {length - 2} tokens, left out", {"messages": [QUESTION, ANSWER]}
    report, file = encode([{"messages": TWO_TURNS}, short], context_length=length - 1)
    assert (file.manifest.documents, report.findings) == (2, {})
    report, file = encode([{"messages": TWO_TURNS}, short], context_length=length - 2)
    assert (file.manifest.documents, report.findings[long][0]) == (1, 1)
    report, file = encode([{"messages": TWO_TURNS}], context_length=length - 2, too_long="cut")
    assert shown(file, tokenizer_folder) == EXPECTED["default"].replace("⟧\n<|endoftext|>", "⟧<|endoftext|>")
    report, file = encode([{"messages": TWO_TURNS}], context_length=length - 3, too_long="cut")
    assert shown(file, tokenizer_folder) == EXPECTED["default"].partition("⟧")[0] + "⟧<|endoftext|>"
    with pytest.raises(TrainerError, match="no conversation can be trained on: 1: longer than a context of 9 tokens"):
        encode([{"messages": TWO_TURNS}], context_length=9, too_long="cut")


@pytest.mark.slow
def test_a_template_that_never_ends_ends_the_job(encode: Encode) -> None:
    with pytest.raises(TrainerError, match="2 seconds of CPU time"):
        encode(
            [{"messages": TWO_TURNS}] * 9,
            ENDLESS,
        )


def test_refusals_are_counted_and_all_of_them_end_the_job(encode: Encode) -> None:
    alternate = TEMPLATES["instruction"]
    report, _ = encode([{"messages": [QUESTION, QUESTION, ANSWER]}, {"messages": [QUESTION, ANSWER]}], alternate)
    [(kind, (count, first))] = report.findings.items()
    assert (kind, count) == ("refused by the chat template", 1)
    assert "line 1" in first
    assert "roles must alternate" in first
    with pytest.raises(TrainerError, match=r"no conversation can be trained on: 1: refused.*line 1\)"):
        encode([{"messages": TWO_TURNS}], "{% if %}")


def test_the_default_template_needs_its_tokens(tmp_path: Path, tokenizer_folder: Path) -> None:
    tokens = {byte: bytes([byte]) for byte in range(256)}
    other = Tokenizer(
        Vocabulary(tokens=tokens, merges=(), added=(AddedToken(256, END),), pattern=PATTERNS["gpt2"], eos=None)
    )
    with pytest.raises(
        UsageError, match=r"lacks <\|im_start\|>, <\|im_end\|>: add them \(--extend-tokens '<\|im_start"
    ):
        choose_template(None, tmp_path, other)
    chosen = choose_template(None, tokenizer_folder, Tokenizer.from_files(tokenizer_folder))
    assert (chosen.file.templates, chosen.source) == ({"default": DEFAULT_TEMPLATE}, "the default")
