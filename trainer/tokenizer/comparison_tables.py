"""A comparison of tokenizers, as tables and as JSON."""

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shared.system.errors import printable
from trainer.tokenizer.comparison import Encoding, TextEncodings, TextSize


def to_json(results: dict[str, TextEncodings]) -> list[dict[str, Any]]:
    """One object for each text with each tokenizer."""
    return [
        {
            "text": text,
            **vars(result.size),
            "tokenizer": tokenizer,
            "vocabulary": encoding.vocab_size,
            "tokens": encoding.tokens,
            "bytes_per_token": result.size.bytes / encoding.tokens,
            "characters_per_token": result.size.characters / encoding.tokens,
            "tokens_per_word": encoding.tokens / result.size.words if result.size.words else None,
            "vocabulary_used": encoding.used,
            "megabytes_per_second": _speed(result.size, encoding),
        }
        for text, result in results.items()
        for tokenizer, encoding in result.encodings.items()
    ]


def to_tables(results: dict[str, TextEncodings]) -> list[Group]:
    """A title and a table for each text, with a row for each tokenizer."""
    return [Group(_title(text, result.size), _table(result)) for text, result in results.items()]


def _title(text: str, size: TextSize) -> Text:
    """A line of its own: a table folds its title to its own width."""
    line = f"{printable(text)}: {size.bytes:,} bytes, {size.words:,} words, {size.documents:,} documents"
    return Text(line, style="bold")


def _table(result: TextEncodings) -> Table:
    size = result.size
    table = Table(box=SIMPLE_HEAD)
    table.add_column("tokenizer", overflow="fold")
    for name in ("vocab-\nulary", "used", "tokens", "of the\nfirst", "bytes/\ntoken", "tokens/\nword", "MB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    first = next(iter(result.encodings.values())).tokens
    names = _short_names(list(result.encodings))
    for name, encoding in zip(names, result.encodings.values(), strict=True):
        table.add_row(
            printable(name),
            f"{encoding.vocab_size:,}",
            f"{encoding.used:.1%}",
            f"{encoding.tokens:,}",
            f"{encoding.tokens / first:.1%}",
            f"{size.bytes / encoding.tokens:.3f}",
            f"{encoding.tokens / size.words:.3f}" if size.words else "–",
            f"{_speed(size, encoding):.1f}",
        )
    return table


def _short_names(paths: list[str]) -> list[str]:
    """The fewest last parts of the paths that distinguish them."""
    parts = [Path(path).parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return paths


def _speed(size: TextSize, encoding: Encoding) -> float:
    return size.bytes / 1e6 / encoding.seconds
