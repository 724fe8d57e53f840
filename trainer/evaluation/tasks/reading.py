"""Reading the files of tasks, one record at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from shared.bpe.training import changed, version_of
from trainer.errors import UsageError
from trainer.evaluation.tasks.formats import COLUMNS, Format, Record, recognize
from trainer.evaluation.tasks.items import Item
from trainer.text.formats import decompressor, json_lines, parse_json
from trainer.text.parquet import parquet_records
from trainer.text.sources import STANDARD_INPUT
from trainer.text.utf8 import CorpusError


@dataclass(frozen=True)
class TaskFile:
    """A file of questions of one format.

    Attributes:
        path: The file.
        memory: Bytes that reading a record may take.
        limit: The most records to read; None for all.
        prompt: For questions that the model answers: what it reads, with `{question}` in it.
        version: As it was when it was opened.
    """

    path: Path
    memory: int
    limit: int | None
    prompt: str
    version: str

    @classmethod
    def open(cls, path: Path, *, memory: int, limit: int | None, prompt: str) -> "TaskFile":
        """A file that exists and whose name says what it holds.

        Raises:
            UsageError: If its name does not.
            CorpusError: If it is not a file, or cannot be read.
        """
        if path in STANDARD_INPUT:
            raise UsageError("questions are read twice, which standard input cannot be: write them to a file")
        if not path.is_file():
            there = "it is a directory; name the files in it" if path.is_dir() else "No such file"
            raise CorpusError(f"{path} cannot be read: {there}")
        _kind(path)
        return cls(path, memory, limit, prompt, version_of(path))

    def items(self) -> Iterator[tuple[Format, Item]]:
        """Its questions, each with the format, which is the same for all.

        Raises:
            CorpusError: If a record is not one; names the line or row. Also if the file changed since it was opened.
        """
        file_format: Format | None = None
        for record in islice(self._records(), self.limit):
            file_format = recognize(record, file_format)
            yield file_format, file_format.read(record, self.prompt)
        if version_of(self.path) != self.version:
            raise changed(str(self.path))

    def _records(self) -> Iterator[Record]:
        path, kind = self.path, _kind(self.path)
        open_file = decompressor(path) or (lambda: path.open("rb"))
        if kind == ".txt":  # LAMBADA's original files have a passage on each line
            for line, place in json_lines(path, open_file, self.memory):
                yield Record(place, {"text": line.rstrip("\r\n")})
            return
        is_parquet = kind == ".parquet"
        records = (
            parquet_records(path, COLUMNS, self.memory) if is_parquet else json_lines(path, open_file, self.memory)
        )
        for text, place in records:
            fields = parse_json(text, place)
            if not isinstance(fields, dict):
                raise CorpusError(f"{place}: expected an object, found {type(fields).__name__}")
            yield Record(place, fields)


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = "".join(suffixes[-2:-1] if decompressor(path) else suffixes[-1:])
    if kind in (".jsonl", ".ndjson", ".txt") or suffixes[-1:] == [".parquet"]:
        return kind
    raise UsageError(
        f"{path}: expected a file of questions: .jsonl, .ndjson or .txt (LAMBADA's passages, one a line), plain or "
        "compressed as .gz or .zst, or .parquet"
    )
