"""GGUF files in llama.cpp itself: the same ids, the same greedy text, the same log-probabilities.

`LLAMA_SERVER=PATH pytest -m slow tests/trainer/export/test_llama_cpp.py`, with the path of its server.
"""

import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from shared.bpe import Tokenizer, train_bpe
from shared.lm import ModelConfig, load_model_folder
from shared.lm.rope_config import RopeConfig
from tests.trainer.export.test_gguf_file import LLAMA, MODELS, SCALINGS, TEXT, save
from trainer.export.gguf_file import write_gguf

SERVER = os.environ.get("LLAMA_SERVER")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(SERVER is None, reason="LLAMA_SERVER does not name llama.cpp's server"),
]

PATTERNS = ("gpt2", "llama3", "qwen")
NUM_TEXTS = 10_000
NUM_TOKENS = 24
ALL_MODELS = {
    **MODELS,
    "biases": replace(LLAMA, attention_bias="qkvo"),
    "qwen3, wide heads": replace(LLAMA, qk_norm=True, head_dim=32),
    **{name: replace(LLAMA, rope=RopeConfig(1e4, scaling)) for name, scaling in SCALINGS.items()},
}
CHARACTERS = "abzéßЖ中あ🦊क्षि १Ⅷ²09'stlvd.,!-\t\n\r \u00a0\u2028\u3000_<|>im_end"


@contextmanager
def llama_cpp(model: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(SERVER), "-m", str(model), "--port", str(port), "--host", "127.0.0.1", "-t", "1", "-c", "64",
        "-ctk", "f32", "-ctv", "f32", "-fa", "off",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                try:
                    if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                        break
                except httpx.TransportError:
                    assert process.poll() is None, "llama.cpp refuses the file"
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def random_texts(seed: int) -> list[str]:
    draw = random.Random(seed)
    words = [*CHARACTERS, "'ll", "'S", "123", "  ", "\n\n", "\r\n", "the", " fox", "naïve", "<|endoftext|>"]
    return ["".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(NUM_TEXTS)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_ids(tmp_path: Path, pattern: str) -> None:
    tokenizer: Tokenizer = train_bpe(
        [TEXT * 3, *random_texts(1)], 1_000, special_tokens=["<|endoftext|>", "<|im_end|>"], pattern=pattern
    ).tokenizer
    folder = save(tmp_path / "model", replace(LLAMA, vocab_size=1_000), tokenizer)
    write_gguf(folder, tmp_path / "model.gguf", "f16")
    different = []
    with llama_cpp(tmp_path / "model.gguf") as url, httpx.Client(timeout=60) as client:
        for text in random_texts(2):
            body = {"content": text, "add_special": False, "parse_special": False}
            found = client.post(f"{url}/tokenize", json=body).json()["tokens"]
            if found != tokenizer.encode(text):
                different.append(text)
    assert different == []


def test_ids_of_a_sentencepiece_vocabulary(tmp_path: Path, data_dir: Path) -> None:
    tokenizer = Tokenizer.from_files(data_dir / "models" / "stories260K" / "tok512.bin")
    folder = save(tmp_path / "model", replace(LLAMA, vocab_size=512), tokenizer, eos="</s>")
    write_gguf(folder, tmp_path / "model.gguf", "f16")
    draw, pieces = random.Random(3), [token.decode() for token in tokenizer.vocabulary.tokens.values()]
    made = ["".join(draw.choices([*pieces, "  ", "</s>", "<0x0A>", "▁", "🦊"], k=12)) for _ in range(NUM_TEXTS)]
    different = []
    with llama_cpp(tmp_path / "model.gguf") as url, httpx.Client(timeout=60) as client:
        for text in [*made, *random_texts(2)[:1_000]]:
            body = {"content": text, "add_special": False, "parse_special": False}
            if client.post(f"{url}/tokenize", json=body).json()["tokens"] != tokenizer.encode(text):
                different.append(text)
    assert different == []


def greedy(config: ModelConfig, folder: Path, ids: list[int]) -> tuple[list[int], list[float]]:
    """The most likely token each time, and its log-probability."""
    model = load_model_folder(folder).model
    tokens: list[int] = []
    values = []
    for _ in range(NUM_TOKENS):
        with torch.no_grad():
            logprobs = model(torch.tensor([[*ids, *tokens]]))[0, -1].log_softmax(-1)
        tokens.append(int(logprobs.argmax()))
        values.append(float(logprobs.max()))
    assert len(ids) + len(tokens) <= config.context_length
    return tokens, values


@pytest.mark.parametrize("name", ALL_MODELS)
def test_greedy_tokens_and_their_log_probabilities(tmp_path: Path, name: str) -> None:
    config = ALL_MODELS[name]
    tokenizer = train_bpe([TEXT * 3], 330, special_tokens=["<|endoftext|>", "<|im_end|>"]).tokenizer
    folder = save(tmp_path / "model", config, tokenizer)
    write_gguf(folder, tmp_path / "model.gguf", "f32")
    ids = tokenizer.encode(TEXT)[:30]
    tokens, values = greedy(config, folder, ids)
    body: dict[str, Any] = {
        "prompt": ids, "n_predict": NUM_TOKENS, "temperature": 0, "n_probs": 1, "return_tokens": True,
        "cache_prompt": False, "ignore_eos": True,
    }  # fmt: skip
    with llama_cpp(tmp_path / "model.gguf") as url:
        found = httpx.post(f"{url}/completion", json=body, timeout=120).json()
    assert found["tokens"] == tokens
    expected = list(zip(tokens, values, strict=True))
    reported = found["completion_probabilities"]
    for entry in reported:  # tokens that are parts of characters are not among them
        while expected[0][0] != entry["id"]:
            expected.pop(0)
        assert entry["logprob"] == pytest.approx(expected.pop(0)[1], abs=1e-3)
    assert len(reported) > NUM_TOKENS // 3
