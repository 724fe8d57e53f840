"""Conversations and templates of any kind: what counts is what the assistant says, and every fault is an error."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.bpe import PATTERNS, AddedToken, Tokenizer, Vocabulary
from shared.chat import DEFAULT_TEMPLATE, ChatRenderer, ChatTemplateError, Conversation, TemplateFile
from tests.shared.chat.templates import CHATML, TEMPLATES
from trainer.conversations.template import choose_template
from trainer.settings.encode import EncodeSettings
from trainer.tokens.encode import encode_files
from trainer.tokens.token_file import TokenFile

pytestmark = pytest.mark.slow

END, START, STOP = 256, 257, 258
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PIECES = st.lists(
    st.sampled_from([*SPECIAL, "<|im_", "end|>", "<", " ", "\n", "a", "é", "\u2028", "{{ x }}", "\ufdd0"])
)
CONTENTS = PIECES.map("".join).filter(lambda text: text and not text.isspace())
TURNS = st.lists(st.tuples(CONTENTS, CONTENTS), min_size=1, max_size=4)


@pytest.mark.parametrize("template", [DEFAULT_TEMPLATE, CHATML.replace(" | trim", "")], ids=["marks", "rendering"])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TURNS, min_size=1, max_size=30))
def test_any_conversation(tmp_path: Path, template: str, conversations: list[list[tuple[str, str]]]) -> None:
    """Bytes are tokens here, so that the ids and the mask can be written down."""
    tokens = {byte: bytes([byte]) for byte in range(256)}
    added = tuple(AddedToken(256 + number, token) for number, token in enumerate(SPECIAL))
    tokenizer = Tokenizer(Vocabulary(tokens=tokens, merges=(), added=added, pattern=PATTERNS["gpt2"], eos=SPECIAL[0]))
    lines, ids, mask = [], [], []
    for turns in conversations:
        messages = []
        for question, answer in turns:
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            asked = [START, *b"user\n", *question.encode(), STOP, *b"\n", START, *b"assistant\n"]
            answered = [*answer.encode(), STOP]
            ids += [*asked, *answered, *b"\n"]
            mask += [0] * len(asked) + [1] * len(answered) + [0]
        ids.append(END)
        mask.append(0)
        lines.append(json.dumps({"messages": messages}) + "\n")
    (tmp_path / "chat.jsonl").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "given.jinja").write_text(template, encoding="utf-8")
    chosen = choose_template(tmp_path / "given.jinja", tmp_path, tokenizer)
    options = EncodeSettings(chat=True, overwrite=True, threads=1)
    encode_files([tmp_path / "chat.jsonl"], tokenizer, tmp_path / "tokens", options, template=chosen)
    file = TokenFile.open(tmp_path / "tokens", "train")
    assert file.tokens.tolist() == ids
    assert file.read_mask(0, len(file)).tolist() == mask


def test_templates_with_random_damage() -> None:
    """Each is rendered, or refused in words and in bounded time; the answers that are found are within the text."""
    draw = random.Random(0)
    sources = [*TEMPLATES.values(), DEFAULT_TEMPLATE]
    snippets = [
        "{% generation %}",
        "{% endgeneration %}",
        "{{ ''.__class__ }}",
        "{{ 'a' * 10**9 }}",
        "| trim",
    ]
    messages: list[Any] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}] * 2
    rendered = refused = 0
    for _ in range(80):
        source = draw.choice(sources)
        begin = draw.randrange(len(source))
        stop = min(len(source), begin + draw.randrange(12))
        source = source[:begin] + draw.choice(["", source[stop : stop + 9], *snippets]) + source[stop:]
        renderer = ChatRenderer(TemplateFile({"default": source}, {"eos_token": "</s>"}))
        try:
            [found] = renderer.render_answers(
                [Conversation(messages)], ("\ufdd1", "\ufdd2"), draw.choice([None, "<end>"])
            )
        except ChatTemplateError as error:
            found = error
        finally:
            renderer.close()
        if isinstance(found, ChatTemplateError):
            assert str(found)
            refused += 1
            continue
        rendered += 1
        places = [place for span in found.answers for place in span]
        assert places == sorted(places)
        assert not places or 0 <= places[0] <= places[-1] <= len(found.text)
    assert rendered >= 5
    assert refused >= 5
