"""Reading the files of tasks, one record at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from shared.bpe.training import changed, version_of
from trainer.errors import UsageError
from trainer.evaluation.tasks.formats import Format, Record, recognize
from trainer.evaluation.tasks.items import Item
from trainer.text.formats import decompressor, json_values, numbered_lines
from trainer.text.parquet import parquet_values
from trainer.text.sources import STANDARD_INPUT
from trainer.text.utf8 import CorpusError, valid_utf8


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
        path, memory, kind = self.path, self.memory, _kind(self.path)
        open_file = decompressor(path) or (lambda: path.open("rb"))
        if kind == ".parquet":
            for number, fields in parquet_values(path, memory):
                yield Record(f"{path}, row {number}", fields)
        elif kind == ".txt":  # LAMBADA's original files have a passage on each line
            for number, line in numbered_lines(path, open_file, memory):
                text, _ = valid_utf8(line, f"{path}, line {number},", 0, "strict")
                yield Record(f"{path}, line {number}", {"text": text.decode().rstrip("\r\n")})
        else:
            for number, fields in json_values(path, open_file, memory):
                if not isinstance(fields, dict):
                    raise CorpusError(f"{path}, line {number}: expected an object, found {type(fields).__name__}")
                yield Record(f"{path}, line {number}", fields)


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = "".join(suffixes[-2:-1] if decompressor(path) else suffixes[-1:])
    if kind not in (".jsonl", ".ndjson", ".txt") and suffixes[-1:] != [".parquet"]:
        raise UsageError(
            f"{path}: expected a file of questions: .jsonl, .ndjson or .txt (LAMBADA's passages, one a line), plain or "
            "compressed as .gz or .zst, or .parquet"
        )
    return kind
