"""Fuzzed text against tiktoken and Hugging Face: the same ids, string for string."""

import base64
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import tiktoken
import tokenizers

from shared.bpe import PATTERNS, Tokenizer

pytestmark = pytest.mark.extended

ALPHABETS = (
    "aab ", " \n\t\ra1'", "'srtvemdl SRTVEMDL\u017f", "aA1! \n\u00a0\u2003\u0301", "中文。，", "-=*~/ \n",
    "0123456789 a", "\u0e01\u0e32\u0e48 \u0939\u093f", "\U0001f600\u200d\u2764\ufe0f ",
    "\u00e9e\u0301\ud55c\u1112\u1161\u11ab", "<|>imstart_end/thnkocl ",
)  # fmt: skip
# Code points that all packages classify alike, whichever version of Unicode they know: assigned long ago.
RANDOM_UP_TO = 0x0370

Peer = Callable[[list[str]], list[list[int]]]


def fuzz(rng: random.Random, real: str) -> str:
    choice = rng.random()
    if choice < 0.35:
        start = rng.randrange(len(real))
        return real[start : start + rng.randrange(1, 300)]
    if choice < 0.8:
        alphabet = rng.choice(ALPHABETS) + rng.choice(["", rng.choice(ALPHABETS)])
        return "".join(rng.choices(alphabet, k=rng.choice([1, 3, 8, 20, 70, 150])))
    if choice < 0.9:
        return rng.choice("a -*\n=_.的 é") * rng.randrange(1, 700)
    return "".join(chr(rng.randrange(RANDOM_UP_TO)) for _ in range(rng.randrange(1, 40)))


def pair(name: str, folder: Path) -> tuple[Tokenizer, Peer]:
    if name == "qwen":
        path = folder / "qwen" / "qwen3_tokenizer.json"
        theirs = tokenizers.Tokenizer.from_file(str(path))
        return Tokenizer.from_files(path), lambda texts: [
            encoding.ids for encoding in theirs.encode_batch(texts, add_special_tokens=False)
        ]
    if name == "gpt2":
        ours = Tokenizer.from_files(folder / "gpt2")
        ids, tokens = ours.vocabulary.ids, ours.vocabulary.tokens
        order = [bytes([byte]) for byte in range(256)]
        order += [tokens[left] + tokens[right] for left, right in ours.vocabulary.merges]
    else:
        path = folder / "tiktoken" / f"{name}_base.tiktoken"
        ours = Tokenizer.from_tiktoken(path, pattern=name, special_tokens={})
        ids = ours.vocabulary.ids
        order = [base64.b64decode(line.split()[0]) for line in path.read_bytes().splitlines()]
    ranks = (
        {token: rank for rank, token in enumerate(order)} if name == "gpt2" else {token: ids[token] for token in order}
    )
    encoding = tiktoken.Encoding(name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens={})
    ours_by_rank = {rank: ids[token] for token, rank in ranks.items()}
    return ours, lambda texts: [
        [ours_by_rank[rank] for rank in found] for found in encoding.encode_ordinary_batch(texts, num_threads=1)
    ]


def check(name: str, data_dir: Path, strings: int, seed: int) -> None:
    ours, peer = pair(name, data_dir / "tokenizers")
    real = "".join(path.read_text("utf-8")[:100_000] for path in sorted((data_dir / "lang").glob("*.txt")))
    rng = random.Random(seed)
    for _ in range(0, strings, 2000):
        texts = [fuzz(rng, real) for _ in range(2000)]
        found = ours.encode_batch(texts, allowed_special="all")
        for text, our_ids, their_ids in zip(texts, found, peer(texts), strict=True):
            assert our_ids == their_ids, text
        if name != "qwen":  # which normalizes
            assert [ours.decode(ids) for ids in found] == texts


@pytest.mark.parametrize("name", ["gpt2", "cl100k", pytest.param("o200k", marks=pytest.mark.slow), "qwen"])
def test_fuzzed_strings_give_the_ids_of_peers(name: str, data_dir: Path) -> None:
    check(name, data_dir, strings=10_000, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "cl100k", pytest.param("o200k", marks=pytest.mark.slow), "qwen"])
def test_100000_fuzzed_strings_give_the_ids_of_peers(name: str, data_dir: Path) -> None:
    check(name, data_dir, strings=100_000, seed=4)
