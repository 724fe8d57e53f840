"""Finished folders in several versions of transformers: equal ids, logits, greedy tokens and conversations.

`TRANSFORMERS_PYTHONS=PATH:PATH pytest -m slow tests/shared/lm/test_transformers_versions.py`, with the interpreters of
environments that have other versions beside the one that is installed here.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.bpe import Tokenizer, train_bpe
from shared.chat import ChatRenderer, read_templates
from shared.lm import GenerationDefaults, ModelConfig, Transformer, load_model_folder, save_model_folder
from shared.lm.rope_config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from tests.shared.lm.transformers_peer import NEW_TOKENS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

INTERPRETERS = [sys.executable, *filter(None, os.environ.get("TRANSFORMERS_PYTHONS", "").split(":"))]
LLAMA = ModelConfig(
    vocab_size=400, context_length=256, d_model=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=96,
    tie_embeddings=False, initializer_range=0.2,
)  # fmt: skip
MODELS = {
    "llama": LLAMA,
    "llama, tied, wide heads": replace(LLAMA, tie_embeddings=True, head_dim=32),
    "llama, biases": replace(LLAMA, attention_bias="qkvo"),
    "llama, linear": replace(LLAMA, rope=RopeConfig(1e4, LinearScaling(2.5))),
    "llama, llama3": replace(LLAMA, rope=RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 64))),
    "llama, yarn": replace(LLAMA, rope=RopeConfig(1e4, YarnScaling(4.0, 64))),
    "qwen2": replace(LLAMA, attention_bias="qkv", tie_embeddings=True),
    "qwen3": replace(LLAMA, qk_norm=True, rope=RopeConfig(1e6)),
    "qwen3, biases": replace(LLAMA, qk_norm=True, attention_bias="qkvo"),
}
# As docs/reference/transformers.md states.
FIRST = {"llama": (4, 45), "qwen2": (4, 45), "qwen3": (4, 51), "yarn": (4, 51), "conversations": (4, 47)}
PATTERNS = ("gpt2", "llama3", "qwen", "o200k")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [{"role": "system", "content": "Be «brief»."}, {"role": "user", "content": "Who's there? 12345 🦊"}]
CHARACTERS = "abzéßЖ中あ🦊क्षि१Ⅷ²09'stlvd.,!-\t\n\r \u00a0\u2028\u3000"
TEXT = "Once upon a time there was a little fox. The fox had 12 red balls, naïve 🦊 friends and «tea».\n\n\n  "


def texts() -> list[str]:
    draw = random.Random(3)
    pieces = [*CHARACTERS, "'ll", "'S", "123", "  ", "\n\n", "the", " fox", "naïve", "<|endoftext|>"]
    return [TEXT, *("".join(draw.choices(pieces, k=draw.randint(1, 40))) for _ in range(200))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each model with one of the patterns in turn; conversations in `chat_template.jinja` or the tokenizer's file."""
    root, made = tmp_path_factory.mktemp("models"), {}
    for number, (name, config) in enumerate(MODELS.items()):
        pattern = PATTERNS[number % len(PATTERNS)]
        tokenizer = train_bpe([TEXT * 3, *texts()], 380, special_tokens=SPECIAL, pattern=pattern).tokenizer
        torch.manual_seed(number)
        model = Transformer(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.copy_(torch.rand_like(parameter) + 0.5)
        eos = (tokenizer.special_tokens["<|endoftext|>"], tokenizer.special_tokens["<|im_end|>"])
        save_model_folder(
            root / str(number),
            model=model,
            tokenizer=tokenizer,
            generation=GenerationDefaults(temperature=0.7, eos_token_ids=eos),
            provenance={},
            extra_files=write_template,
        )
        made[name] = root / str(number)
    return made


def write_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TEMPLATE)


@pytest.fixture(scope="module", params=INTERPRETERS)
def answer(request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    work = tmp_path_factory.mktemp("peer")
    question = {"folders": [str(path) for path in folders.values()], "texts": texts(), "messages": MESSAGES}
    (work / "question.json").write_text(json.dumps(question))
    script = Path(__file__).with_name("transformers_peer.py")
    command = [request.param, str(script), str(work / "question.json"), str(work / "answer.json")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((work / "answer.json").read_text())


def works(answer: Any, what: str) -> bool:
    """Whether this version is one from which on it works."""
    return tuple(map(int, answer["version"].split(".")[:2])) >= FIRST[what]


@pytest.mark.parametrize("name", MODELS)
def test_it_opens_and_computes_the_same(answer: Any, folders: dict[str, Path], name: str) -> None:
    found = answer["folders"][str(folders[name])]
    if not works(answer, MODELS[name].family):
        assert "error" in found, "this version opens it, too: the documentation may say so"
        return
    assert "error" not in found, found["error"]
    folder = load_model_folder(folders[name])
    tokenizer = folder.tokenizer
    expected = [tokenizer.encode(text, allowed_special="all", add_special_tokens=True) for text in texts()]
    assert found["ids"] == expected
    assert found["decoded"] == [tokenizer.decode(ids) for ids in expected]
    assert found["faults"] == []
    assert found["eos"] == list(folder.generation.eos_token_ids)
    with torch.no_grad():
        logits = folder.model(torch.tensor(expected[:1]))[0]
    is_close = (torch.tensor(found["logits"]) - logits).abs().max() < 1e-4 * logits.abs().max()
    if isinstance(MODELS[name].rope.scaling, YarnScaling) and not works(answer, "yarn"):
        assert not is_close, "this version reads the original length, too: the documentation may say so"
        return
    assert is_close
    assert found["greedy"] == greedy(folder.model, expected[0], folder.generation.eos_token_ids)


def greedy(model: Transformer, ids: list[int], ends: tuple[int, ...]) -> list[int]:
    made: list[int] = []
    while len(made) < NEW_TOKENS and (not made or made[-1] not in ends):
        with torch.no_grad():
            made.append(int(model(torch.tensor([[*ids, *made]]))[0, -1].argmax()))
    return made


@pytest.fixture
def renderer(folders: dict[str, Path]) -> Iterator[ChatRenderer]:
    file = read_templates(folders["llama"])
    assert file is not None
    renderer = ChatRenderer(file)
    yield renderer
    renderer.close()


def test_conversations(answer: Any, folders: dict[str, Path], renderer: ChatRenderer) -> None:
    found = answer["conversation"]
    if not works(answer, "conversations"):
        assert "error" in found, "this version has the template, too: the documentation may say so"
        return
    text = renderer.render(MESSAGES, add_generation_prompt=True)
    assert found["text"] == text
    assert found["ids"] == Tokenizer.from_files(folders["llama"]).encode(text, allowed_special="all")
