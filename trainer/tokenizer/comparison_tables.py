"""A comparison of tokenizers, as tables and as JSON."""

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shared.system.errors import escape_unprintable
from trainer.console.token_text import token_text
from trainer.settings.tokenizer_comparison import ComparisonSettings
from trainer.text.sizes import parse_size
from trainer.tokenizer.comparison import Comparison, Encoding, TextEncodings
from trainer.tokenizer.projection import Rate
from trainer.tokenizer.vocabularies import shared_content

_SHORT_SECONDS = 1.0


def to_json(comparison: Comparison) -> dict[str, Any]:
    """`texts` has an object for each text with each tokenizer; `vocabularies` and `shared` need no text."""
    settings = comparison.settings
    return {
        "texts": [
            {
                "text": text,
                **vars(result.size),
                "drawn_from": result.drawn_from,
                "seed": settings.seed if result.drawn_from else None,
                "tokenizer": tokenizer,
                "vocabulary": encoding.vocab_size,
                "tokens": encoding.tokens,
                "bytes_per_token": result.size.bytes / encoding.tokens,
                "characters_per_token": result.size.characters / encoding.tokens,
                "tokens_per_word": encoding.tokens / result.size.words if result.size.words else None,
                "vocabulary_used": encoding.used,
                "megabytes_per_second": _speed(result, encoding),
                "projection": None if encoding.rate is None else _projection(encoding.rate, settings),
            }
            for text, result in comparison.texts.items()
            for tokenizer, encoding in result.encodings.items()
        ],
        "vocabularies": [
            {
                "tokenizer": name,
                "vocabulary": len(content.tokenizer),
                "tokens": len(content.tokens),
                "merges": len(content.merges),
                "longest": [
                    {"id": token_id, "bytes": len(token), "text": token_text(token)}
                    for token_id, token in content.longest(settings.longest)
                ],
            }
            for name, content in comparison.vocabularies.items()
        ],
        "shared": [asdict(shared) for shared in shared_content(comparison.vocabularies)],
    }


def to_tables(comparison: Comparison) -> list[Group]:
    """A title and a table: for each text with a row for each tokenizer, of vocabularies, and of rates."""
    names = _short_names(list(comparison.vocabularies))
    groups = [
        Group(_title(_describe(text, result, comparison.settings)), _table(result, names))
        for text, result in comparison.texts.items()
    ]
    if comparison.settings.project is not None:
        groups.append(_projections(comparison, names))
    groups.append(Group(_title("Vocabularies: tokens of two or more bytes"), _contents(comparison, names)))
    if len(names) > 1:
        groups.append(Group(_title("What they share, whatever ids and ranks are"), _shared(comparison, names)))
    return groups


def _title(line: str) -> Text:
    """A line of its own, whatever the width: a table folds its title."""
    return Text(line, style="bold", no_wrap=True, overflow="ignore")


def _describe(text: str, result: TextEncodings, settings: ComparisonSettings) -> str:
    size = result.size
    documents = f"{size.documents:,} documents"
    if result.drawn_from is not None:
        documents = f"{size.documents:,} of {result.drawn_from:,} documents (seed {settings.seed})"
    return f"{escape_unprintable(text)}: {size.bytes:,} bytes, {size.words:,} words, {documents}"


def _table(result: TextEncodings, names: dict[str, str]) -> Table:
    size = result.size
    table = Table(box=SIMPLE_HEAD)
    table.add_column("tokenizer", overflow="fold")
    for name in ("vocab-\nulary", "used", "tokens", "of the\nfirst", "bytes/\ntoken", "tokens/\nword", "MB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    first = next(iter(result.encodings.values())).tokens
    for name, encoding in result.encodings.items():
        speed = _speed(result, encoding)
        table.add_row(
            names[name],
            f"{encoding.vocab_size:,}",
            f"{encoding.used:.1%}",
            f"{encoding.tokens:,}",
            f"{encoding.tokens / first:.1%}",
            f"{size.bytes / encoding.tokens:.3f}",
            f"{encoding.tokens / size.words:.3f}" if size.words else "–",
            "–" if speed is None else f"{speed:.1f}",
        )
    return table


def _projections(comparison: Comparison, names: dict[str, str]) -> Group:
    settings = comparison.settings
    size = parse_size(settings.project or "")
    table = Table(box=SIMPLE_HEAD)
    table.add_column("text", overflow="fold")
    table.add_column("tokenizer", overflow="fold")
    for heading in ("MB read", "seconds", "MB/s", "all of it", "tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    texts = _short_names(list(comparison.texts))
    rates = []
    for text, result in comparison.texts.items():
        for name, encoding in result.encodings.items():
            rate = encoding.rate
            assert rate is not None
            rates.append(rate)
            table.add_row(
                texts[text],
                names[name],
                f"{rate.bytes / 1e6:,.1f}",
                f"{rate.seconds:.2f}",
                f"{rate.bytes_per_second / 1e6:.1f}",
                str(timedelta(seconds=round(rate.seconds_for(size)))),
                f"{rate.tokens_for(size):.3g}",
            )
    threads = "1 thread" if rates[0].threads == 1 else f"{rates[0].threads} threads"
    title = f"Reading and encoding {size:,} bytes with {threads}, at the rate of each whole text"
    lines: list[RenderableType] = [_title(title), table]
    if min(rate.seconds for rate in rates) < _SHORT_SECONDS:
        lines.append(Text("A rate from less than a second is rough: give larger texts.", no_wrap=True))
    return Group(*lines)


def _contents(comparison: Comparison, names: dict[str, str]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("tokenizer", overflow="fold")
    for heading in ("tokens", "merges"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("longest", overflow="fold")
    for name, content in comparison.vocabularies.items():
        longest = ", ".join(f"'{token_text(token)}'" for _, token in content.longest(comparison.settings.longest))
        table.add_row(names[name], f"{len(content.tokens):,}", f"{len(content.merges):,}", longest)
    return table


def _shared(comparison: Comparison, names: dict[str, str]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("first", "second"):
        table.add_column(heading, overflow="fold")
    for heading in ("", "in both", "of the first", "of the second"):
        table.add_column(heading, justify="right", no_wrap=True)
    for shared in shared_content(comparison.vocabularies):
        shares = ("–" if share is None else f"{share:.1%}" for share in (shared.of_first, shared.of_second))
        table.add_row(names[shared.first], names[shared.second], shared.kind, f"{shared.count:,}", *shares)
    return table


def _projection(rate: Rate, settings: ComparisonSettings) -> dict[str, Any]:
    size = parse_size(settings.project or "")
    return {
        "bytes": size,
        "seconds": rate.seconds_for(size),
        "tokens": rate.tokens_for(size),
        "measured": {**asdict(rate), "bytes_per_second": rate.bytes_per_second},
    }


def _short_names(paths: list[str]) -> dict[str, str]:
    """The fewest last parts of the paths that distinguish them, ready to be printed, by path."""
    parts = [Path(path).parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return {path: escape_unprintable(name) for path, name in zip(paths, names, strict=True)}
    return {path: escape_unprintable(path) for path in paths}


def _speed(result: TextEncodings, encoding: Encoding) -> float | None:
    """Megabytes per second of encoding alone; None for a sample, which is too short to measure."""
    return None if result.drawn_from is not None else result.size.bytes / 1e6 / encoding.seconds
