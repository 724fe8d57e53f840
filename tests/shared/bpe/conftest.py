"""Tokenizers that many tests share. The published ones are read from the reference data."""

from pathlib import Path

import pytest
import tiktoken

from shared.bpe import PATTERNS, Tokenizer, train_bpe

END = "<|endoftext|>"

SAMPLE = (
    "Once upon a time there was a little fox. \"I'm hungry,\" said the fox, and it's 12345 o'clock!\r\n\r\n"
    "  def f(x):\n      return x  \t \n\n\nÀ côté de l'été, ça va? Это не так уж и трудно. "
    "日本語のテキスト。한국어 문장. ภาษาไทย हिन्दी ؟العربية 👨‍👩‍👧‍👦🇩🇪 "
    "\ufeffmid \x00 nul \u00bd\u0661\u0662 it'\u017f DON'T they'LL "
    "x/\n/y a\u0301b \u1e9b\u0323\n"
)


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    """A tokenizer trained on a sample, with two control tokens."""
    return train_bpe([SAMPLE * 3], 400, special_tokens=[END, "<|user|>"]).tokenizer


@pytest.fixture(scope="session")
def gpt2(data_dir: Path) -> Tokenizer:
    return Tokenizer.from_files(data_dir / "tokenizers/gpt2/vocab.json")


@pytest.fixture(scope="session")
def cl100k(data_dir: Path) -> Tokenizer:
    return Tokenizer.from_tiktoken(
        data_dir / "tokenizers/tiktoken/cl100k_base.tiktoken", pattern="cl100k", special_tokens={END: 100257}
    )


@pytest.fixture(scope="session")
def o200k(data_dir: Path) -> Tokenizer:
    return Tokenizer.from_tiktoken(
        data_dir / "tokenizers/tiktoken/o200k_base.tiktoken", pattern="o200k", special_tokens={END: 199999}
    )


@pytest.fixture(scope="session")
def qwen(data_dir: Path) -> Tokenizer:
    return Tokenizer.from_files(data_dir / "tokenizers/qwen/qwen3_tokenizer.json")


@pytest.fixture(scope="session")
def tiktoken_gpt2(data_dir: Path) -> tiktoken.Encoding:
    """tiktoken's own GPT-2 pattern over the ranks of GPT-2's merges.txt, read here without our reader."""
    order = [b for b in range(256) if chr(b).isprintable() and b not in (0x20, 0xAD)]
    order += [b for b in range(256) if b not in order]
    letters = {
        (chr(b) if chr(b).isprintable() and b not in (0x20, 0xAD) else chr(256 + i - 188)): b
        for i, b in enumerate(order)
    }
    ranks = {bytes([b]): i for i, b in enumerate(order)}
    for line in (data_dir / "tokenizers/gpt2/merges.txt").read_text(encoding="utf-8").splitlines():
        ranks[bytes(letters[c] for c in line if c != " ")] = len(ranks)
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={END: 50256})


@pytest.fixture(scope="session")
def real_texts(data_dir: Path) -> dict[str, str]:
    """A part of every language, of web prose and of children's stories, newlines untouched."""
    files = [
        *sorted((data_dir / "lang").glob("*.txt")),
        data_dir / "owt/owt_sample.txt",
        data_dir / "tinystories_valid.txt",
    ]
    return {path.stem: path.read_bytes()[:100_000].decode(errors="ignore") for path in files}


@pytest.fixture(scope="session", params=sorted(PATTERNS))
def named_pattern(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sample() -> str:
    """A text of many scripts and kinds of white space, contractions, digits and control characters."""
    return SAMPLE
