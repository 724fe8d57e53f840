"""What counts of conversations in published chat templates of the package `trl`: by hand, and beside transformers."""

import json
from pathlib import Path

import jinja2
import pytest

from shared.bpe import PATTERNS, AddedToken, Tokenizer, Vocabulary
from shared.chat import ChatRenderer, Conversation, RenderedAnswers, TemplateFile
from tests.clients.test_chat_templates import VARIABLES, published
from trainer.conversations.template import choose_template
from trainer.settings.encode import EncodeSettings
from trainer.tokens.encode import encode_files
from trainer.tokens.token_file import TokenFile

pytestmark = pytest.mark.slow

MESSAGES = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yo"},
    {"role": "user", "content": "So?"},
    {"role": "assistant", "content": "No."},
]

# ⟦ and ⟧ are around what counts.
EXPECTED = {
    "llama3": "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n⟦Yo<|eot_id|>⟧"
    "<|start_header_id|>user<|end_header_id|>\n\nSo?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n⟦No.<|eot_id|>⟧<|endoftext|>",
    "qwen2_5": "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Yo<|im_end|>⟧\n"
    "<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n⟦No.<|im_end|>⟧\n<|endoftext|>",
    "qwen3": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Yo<|im_end|>⟧\n"
    "<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n⟦<think>\n\n</think>\n\nNo.<|im_end|>⟧\n<|endoftext|>",
    "gemma": "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n⟦Yo<end_of_turn>⟧\n"
    "<start_of_turn>user\nSo?<end_of_turn>\n<start_of_turn>model\n⟦No.<end_of_turn>⟧\n<|endoftext|>",
    "phi3": "<|user|>\nHi<|end|>\n<|assistant|>\n⟦Yo<|end|>⟧\n"
    "<|user|>\nSo?<|end|>\n<|assistant|>\n⟦No.<|end|>⟧\n</s><|endoftext|>",
    "lfm2": "<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Yo<|im_end|>⟧\n"
    "<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n⟦No.<|im_end|>⟧\n<|endoftext|>",
}
SPECIAL = [
    *("<|endoftext|>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
]


@pytest.fixture(scope="module")
def templates() -> dict[str, str]:
    found = {file.stem: file.read_text(encoding="utf-8") for file in published()}
    if not found:
        pytest.skip("trl is not installed: pip install -c constraints.txt -e '.[clients]'")
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_token_by_token(templates: dict[str, str], tmp_path: Path, name: str) -> None:
    """A token is a byte or a special token; what is written out has each of them."""
    tokens = {byte: bytes([byte]) for byte in range(256)}
    added = tuple(AddedToken(256 + number, token) for number, token in enumerate(SPECIAL))
    vocabulary = Vocabulary(tokens=tokens, merges=(), added=added, pattern=PATTERNS["gpt2"], bos="<s>", eos="</s>")
    tokenizer = Tokenizer(vocabulary)
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": MESSAGES}))
    (tmp_path / "given.jinja").write_text(templates[name], encoding="utf-8")
    chosen = choose_template(tmp_path / "given.jinja", tmp_path, tokenizer)
    settings = EncodeSettings(chat=True, threads=1)
    encode_files([tmp_path / "chat.jsonl"], tokenizer, tmp_path / "tokens", settings, template=chosen)
    file = TokenFile.open(tmp_path / "tokens", "train")
    expected: list[tuple[int, int]] = []
    counted = 0
    rest = EXPECTED[name]
    while rest:
        special = next((token for token in SPECIAL if rest.startswith(token)), None)
        if rest[0] in "⟦⟧":
            counted = int(rest[0] == "⟦")
        elif special:
            expected.append((tokenizer.special_tokens[special], counted))
        else:
            expected += [(byte, counted) for byte in rest[0].encode()]
        rest = rest[len(special or rest[0]) :]
    assert [*zip(file.tokens.tolist(), file.read_mask(0, len(file)).tolist(), strict=True)] == expected


def test_marked_answers_equal_those_of_transformers(templates: dict[str, str]) -> None:
    """`return_assistant_tokens_mask` gives the same characters for each template with `{% generation %}`."""
    from transformers.utils.chat_template_utils import render_jinja_template

    compared = 0
    for name, template in templates.items():
        if "generation" not in template or "endgeneration" not in template:
            continue
        try:
            texts, spans = render_jinja_template(
                [MESSAGES], chat_template=template, return_assistant_tokens_mask=True, **VARIABLES
            )
        except jinja2.TemplateError:  # of templates that take parts of text only
            continue
        renderer = ChatRenderer(TemplateFile({"default": template}, VARIABLES))
        try:
            [found] = renderer.render_answers([Conversation(MESSAGES)], ("\ufdd1", "\ufdd2"), None)
        finally:
            renderer.close()
        assert found == RenderedAnswers(texts[0], [tuple(span) for span in spans[0]]), name
        compared += 1
    print(f"\n{compared} templates with marks")
    assert compared >= 20
