"""Cleaning a corpus: two passes over the text, and one over what the first has kept of it."""

import bisect
import json
import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from shared.system.cpu_count import available_processors
from shared.system.files import replaced_file, to_json, write_text
from shared.system.memory import resident_memory, total_memory
from trainer.cleaning.duplicates import STAYS, DuplicateFinder
from trainer.cleaning.examination import Corpus, Examined, examine
from trainer.cleaning.filters import hash_of_filter, load_filters
from trainer.cleaning.report import CleaningReport, Example, count_reasons
from trainer.cleaning.signatures import check_installed
from trainer.cluster.processes import LostProcessError, run_in_processes
from trainer.console.progress import NewBar
from trainer.console.signals import StopRequest, stop_on_signals
from trainer.errors import InterruptedRunError, TrainerError, UsageError
from trainer.settings.clean import CleanSettings
from trainer.storage.folder import LocalFolder
from trainer.storage.remote import local_path, shown, url_of
from trainer.text.sections import Section, divide
from trainer.text.sizes import size_of

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Part = Sequence[Section]

STATE, REPORT = "clean-state", "cleaning.json"

_PART_BYTES = 64 << 20
_LEAST_PASS = 64 << 20
_SHOWN = 300  # characters of an example


def clean_files(
    paths: Sequence[Path], output: Path, settings: CleanSettings, new_bar: NewBar, *, part_bytes: int = _PART_BYTES
) -> CleaningReport:
    """Write the documents that stay to OUTPUT/part-00000.jsonl, ..., and what left and why to OUTPUT/cleaning.json.

    The result depends on the text, the order of the inputs and the settings alone. Parts appear when all are finished;
    until then they are in OUTPUT/clean-state, from which the same call continues after an interruption.

    Args:
        paths: As in `open_inputs`; of equal and similar documents the first one stays.
        output: The directory to write to; made if missing.
        settings: Which documents stay.
        new_bar: Shows the progress of each pass.
        part_bytes: About the text that a process takes at once.

    Raises:
        UsageError: If an input can be read only once, a filter does not exist, or a package is missing.
        CorpusError: If an input cannot be read.
        TrainerError: If a filter fails, the output has text of another run, or no document stays.
        InterruptedRunError: If a signal stopped it.
    """
    if settings.near_duplicates < 1:
        check_installed()
    load_filters(settings.filter)
    if (url := url_of(output)) is not None:
        raise UsageError(f"--output {url}: clean writes to a folder of this machine; copy it to the store afterwards")
    output = local_path(output)
    corpus = Corpus(tuple(paths), settings, settings.workers or available_processors())
    for given in corpus.inputs:
        if url_of(given.path) is None and given.path.resolve().is_relative_to(output.resolve()):
            raise UsageError(f"{given.path} is in --output {output}, which is written: name another output")
        if given.content.version is None:
            raise UsageError(
                f"cleaning reads text twice, and {given.content.name} can be read only once: write it to a file"
            )
    parts = divide(corpus.inputs, settings.document_separator, part_bytes, at_any_pretoken=False)
    with stop_on_signals() as stop, _state(output, corpus) as state:
        return _Cleaning(corpus, parts, output, state, new_bar=new_bar, stop=stop).run()


class _Cleaning:
    """One call."""

    def __init__(
        self, corpus: Corpus, parts: Sequence[Part], output: Path, state: Path, *, new_bar: NewBar, stop: StopRequest
    ) -> None:
        self._corpus = corpus
        self._parts = parts
        self._output = output
        self._new_bar = new_bar
        self._stop = stop
        bands = 0 if corpus.banding is None else corpus.banding.bands
        self._examined = [Examined(state / f"{_name(number)}.examined", bands) for number in range(len(parts))]
        self._written = [state / f"{_name(number)}.partial" for number in range(len(parts))]
        self._sizes = [sum(_size(section, corpus) for section in part) for part in parts]

    def run(self) -> CleaningReport:
        """All passes."""
        corpus, settings = self._corpus, self._corpus.settings
        open_parts = [number for number, part in enumerate(self._examined) if not part.is_complete()]
        work = [_Examination(corpus, self._parts[number], self._examined[number].path) for number in open_parts]
        self._run("examining", open_parts, work)
        memory = (settings.memory_bytes or total_memory() // 2) - resident_memory()
        finder = DuplicateFinder(self._examined, settings.near_duplicates, max(memory // 2, _LEAST_PASS))
        report_passes = self._new_bar("comparing", finder.steps)
        for done in finder.find():
            self._check()
            report_passes(done)
        verdicts = finder.verdicts
        counts = count_reasons(self._examined, verdicts)
        if not counts.kept.documents:
            left = ", ".join(f"{name}: {count.documents:,}" for name, count in counts.left.items()) or "there are none"
            raise TrainerError(f"no document stays ({left}); nothing was written")
        texts = self._write(verdicts.state, {n for match in verdicts.examples for n in (match.document, match.earlier)})
        examples = [
            Example(*texts[match.document], *texts[match.earlier], match.similarity) for match in verdicts.examples
        ]
        report = CleaningReport(corpus.paths, settings, counts, examples)
        self._publish(report)
        return report

    def _write(self, state: NDArray[np.uint8], wanted: set[int]) -> dict[int, tuple[str, str]]:
        """The second pass over the text; returns the place and the beginning of the wanted documents."""
        firsts = np.cumsum([0, *map(len, self._examined)]).tolist()
        shown_from = {bisect.bisect_right(firsts, document) - 1 for document in wanted}  # read again to be shown
        open_parts = [
            number
            for number, path in enumerate(self._written)
            if number in shown_from or not (path.exists() or self._final(number).exists())
        ]
        work = [
            _Writing(
                self._corpus,
                self._parts[number],
                self._written[number],
                state[firsts[number] : firsts[number + 1]] == STAYS,
                tuple(n - firsts[number] for n in sorted(wanted) if firsts[number] <= n < firsts[number + 1]),
            )
            for number in open_parts
        ]
        results = self._run("writing", open_parts, work)
        return {firsts[number] + index: found for number, part in results.items() for index, found in part.items()}

    def _run(self, name: str, numbers: Sequence[int], work: "Sequence[Callable[[], Result]]") -> dict[int, Result]:
        """The results of the work on some parts, by the number of the part."""
        sizes = [self._sizes[number] for number in numbers]
        done = sum(self._sizes) - sum(sizes)
        report = self._new_bar(name, sum(self._sizes), done)
        results = {}
        try:
            for index, result in run_in_processes(operator.call, work, self._corpus.processes, self._stop):
                results[numbers[index]] = result
                done += sizes[index]
                report(done)
        except InterruptedRunError as error:
            raise self._interrupted(error.signal_number) from None
        return results

    def _check(self) -> None:
        if self._stop.signal_number is not None:
            raise self._interrupted(self._stop.signal_number)

    def _interrupted(self, number: int) -> InterruptedRunError:
        kept = sum(part.is_complete() for part in self._examined)
        return InterruptedRunError(
            f"stopped; {kept} of {len(self._parts)} parts of the text are examined and kept in {self._output / STATE}: "
            + ("the same command" if not self._corpus.settings.overwrite else "the command without --overwrite")
            + " continues",
            number,
        )

    def _final(self, number: int) -> Path:
        return self._output / f"{_name(number)}.jsonl"

    def _publish(self, report: CleaningReport) -> None:
        """Give all parts their names, the report last."""
        for number, path in enumerate(self._written):
            if path.exists() and path.stat().st_size:
                path.replace(self._final(number))
        write_text(self._output / REPORT, to_json(report.to_json()))


@dataclass(frozen=True)
class _Examination:
    corpus: Corpus
    part: Part
    path: Path

    def __call__(self) -> int:
        return examine(self.corpus, self.part, self.path)


@dataclass(frozen=True)
class _Writing:
    """Writes the documents of a part that stay; returns the place and the beginning of those that are wanted."""

    corpus: Corpus
    part: Part
    path: Path
    stays: NDArray[np.bool_]
    wanted: tuple[int, ...]

    def __call__(self) -> dict[int, tuple[str, str]]:
        found = {}
        with replaced_file(self.path) as temporary, temporary.open("wb") as file:
            documents = zip(self.corpus.documents(self.part), self.stays.tolist(), strict=True)
            for number, ((text, place), stays) in enumerate(documents):
                if stays:
                    file.write(orjson.dumps({"text": text}, option=orjson.OPT_APPEND_NEWLINE))
                if number in self.wanted:
                    found[number] = (place, text.strip()[:_SHOWN])
        return found


def _name(number: int) -> str:
    return f"part-{number:05}"


def _size(section: Section, corpus: Corpus) -> int:
    end = size_of(corpus.inputs[section.source].path) if section.end is None else section.end
    return end - section.begin


@contextmanager
def _state(output: Path, corpus: Corpus) -> Iterator[Path]:
    """The folder of unfinished work, locked, and emptied when all is done; see `LocalFolder.scratch`.

    Raises:
        TrainerError: If it is of another job, or the output has cleaned text.
        StorageError: If another process works there, or it cannot be written.
    """
    identity = _identity(corpus)
    state = output / STATE
    there = state / "identity.json"
    is_finished = (output / REPORT).exists() or (not state.exists() and any(output.glob("part-*.jsonl")))
    if is_finished and not corpus.settings.overwrite:
        raise TrainerError(f"{output} has cleaned text; choose another --output, or replace it with --overwrite")
    with LocalFolder(output).scratch(STATE):
        if corpus.settings.overwrite:
            for path in (output / REPORT, *output.glob("part-*.jsonl"), *state.iterdir()):
                path.unlink(missing_ok=True)
        elif any(state.iterdir()) and (found := _other(there, identity)):
            raise TrainerError(
                f"{state} is what an interrupted run of other inputs or settings left ({found}); run the same command "
                "to continue it, or start again with --overwrite"
            )
        write_text(there, to_json(identity))
        try:
            yield state
        except (InterruptedRunError, LostProcessError, OSError):
            raise
        except TrainerError:
            _remove(state)
            raise
        _remove(state)


def _remove(state: Path) -> None:
    for path in sorted(state.iterdir(), key=lambda path: path.name == "identity.json"):  # which says what it is
        path.unlink()


def _identity(corpus: Corpus) -> dict[str, Any]:
    """What the result depends on."""
    settings = {
        name: value
        for name, value in asdict(corpus.settings).items()
        if name not in {"workers", "memory_limit", "overwrite"}
    }
    settings["filter"] = [[name, hash_of_filter(name)] for name in corpus.settings.filter]
    inputs = [[shown(given.path), given.content.version] for given in corpus.inputs]
    return json.loads(to_json({"version": 1, **settings, "inputs": inputs}))  # type: ignore[no-any-return]


def _other(path: Path, identity: dict[str, Any]) -> str:
    """The first thing that differs."""
    try:
        before = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        return str(error)
    return next((name for name, value in identity.items() if before.get(name) != value), "")
