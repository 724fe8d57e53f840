from pathlib import Path

import pytest

SEPARATOR = "<|endoftext|>"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Fifty documents of different words, the last one not closed by a separator."""
    path = tmp_path / "corpus.txt"
    texts = [f"The fox number {n} can't find its {n * n} kegs of été, 雨 or vodka.\n" * (1 + n % 3) for n in range(50)]
    path.write_text(SEPARATOR.join(texts), "utf-8")
    return path
