"""Cleaning a corpus: two passes over the text, and one over what the first has kept of it."""

import bisect
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.system.cpu_count import available_processors
from shared.system.files import to_json
from shared.system.memory import resident_memory, total_memory
from trainer.cleaning.corpus import Corpus, Part, divide_inputs, tools_of
from trainer.cleaning.duplicates import STAYS, DuplicateFinder, Verdicts
from trainer.cleaning.examination import Examined
from trainer.cleaning.output import STATE, CleanOutput, examined_name, written_name
from trainer.cleaning.report import CleaningReport, Example, count_reasons
from trainer.cleaning.tasks import Common, Verdict, examine_part, write_part
from trainer.cluster.processes import run_in_processes
from trainer.cluster.ray_cluster import check_ray, ray_cluster
from trainer.cluster.task_output import TaskOutput
from trainer.console.progress import NewBar
from trainer.console.signals import StopRequest, stop_on_signals
from trainer.errors import InterruptedRunError, TrainerError, UsageError
from trainer.settings.clean import CleanSettings
from trainer.settings.fields import names_affecting
from trainer.storage.folder import StorageError
from trainer.storage.remote import display_path, local_path, url_of
from trainer.storage.remote_folder import open_folder
from trainer.text.sources import Input, open_inputs

logger = logging.getLogger(__name__)

RunTasks = Callable[[Callable[[Common, Any], Any], Common, Sequence[Any]], Iterator[tuple[int, Any]]]
"""Takes a function, what all tasks share, and the items; see `RayCluster.run`."""

_VERSION = 2  # of what an unfinished run leaves
_PART_BYTES = 64 << 20
_LEAST_PASS = 64 << 20


def clean_files(
    paths: Sequence[Path], output: Path, settings: CleanSettings, new_bar: NewBar, *, part_bytes: int = _PART_BYTES
) -> CleaningReport:
    """Write the documents that stay to OUTPUT/part-00000.jsonl, ..., and what left and why to OUTPUT/cleaning.json.

    The result depends on the text, the order of the inputs and the settings alone. Parts appear when all are finished;
    until then they are in OUTPUT/clean-state, from which the same call continues after an interruption, on one machine
    or a cluster.

    Args:
        paths: As in `open_inputs`; of equal and similar documents the first one stays.
        output: The folder to write to; made if missing.
        settings: Which documents stay.
        new_bar: Shows the progress of each pass.
        part_bytes: About the text that a process takes at once.

    Raises:
        UsageError: If an input can be read only once, a filter does not exist, or a package is missing.
        CorpusError: If an input cannot be read.
        TrainerError: If a filter fails, the output has text of another run, or no documents remain.
        StorageError: If the output cannot be written.
        InterruptedRunError: If a signal stopped it.
    """
    if settings.ray is not None:
        check_ray()
    tools = tools_of(settings)
    inputs = open_inputs(paths, text_field=settings.text_field)
    _check_inputs(inputs, output)
    processes = 1 if settings.ray is not None else settings.workers or available_processors()
    corpus = Corpus(settings, tools, processes)
    out = CleanOutput(open_folder(output), _identity(corpus, inputs))
    parts = divide_inputs(inputs, settings, part_bytes)
    with stop_on_signals() as stop, out.opened(overwrite=settings.overwrite) as scratch:
        cleaning = _Cleaning(corpus, parts, out, scratch, new_bar=new_bar, stop=stop)
        with cleaning.errors_say_what_is_kept(), _tasks(corpus, stop) as run_tasks:
            return cleaning.run(paths, run_tasks)


def _check_inputs(inputs: Sequence[Input], output: Path) -> None:
    there = url_of(output)
    for given in inputs:
        url = url_of(given.path)
        if there is None and url is None:
            is_inside = given.path.resolve().is_relative_to(local_path(output).resolve())
        else:
            is_inside = there is not None and url is not None and url.startswith(f"{there.rstrip('/')}/")
        if is_inside:
            raise UsageError(
                f"{display_path(given.path)} is in --output {display_path(output)}, which is written: name another "
                "output"
            )
        if given.content.version is None:
            raise UsageError(
                f"cleaning reads text twice, and {given.content.name} can be read only once: write it to a file"
            )


def _identity(corpus: Corpus, inputs: Sequence[Input]) -> dict[str, Any]:
    """What the result depends on."""
    settings = {name: getattr(corpus.settings, name) for name in sorted(names_affecting(CleanSettings, "result"))}
    versions = [[display_path(given.path), given.content.version] for given in inputs]
    return json.loads(  # type: ignore[no-any-return]
        to_json({"version": _VERSION, **settings, **corpus.tools, "inputs": versions})
    )


@contextmanager
def _tasks(corpus: Corpus, stop: StopRequest) -> Iterator[RunTasks]:
    """What runs tasks: processes of this machine, or a cluster."""
    if corpus.settings.ray is not None:
        with ray_cluster(corpus.settings.ray, stop) as cluster:
            yield cluster.run
        return
    yield lambda function, common, items: run_in_processes(partial(function, common), items, corpus.processes, stop)


class _Cleaning:
    """One call."""

    def __init__(
        self,
        corpus: Corpus,
        parts: Sequence[Part],
        out: CleanOutput,
        scratch: Path,
        *,
        new_bar: NewBar,
        stop: StopRequest,
    ) -> None:
        self._corpus = corpus
        self._parts = parts
        self._out = out
        self._scratch = scratch
        self._new_bar = new_bar
        self._stop = stop
        self._output = TaskOutput.of(out.folder, scratch)
        bands = 0 if corpus.banding is None else corpus.banding.bands
        self._examined = [Examined(scratch / examined_name(number), bands) for number in range(len(parts))]
        self._sizes = [sum(piece.size for piece in part) for part in parts]
        self._kept = out.examined() & {*range(len(parts))}

    def run(self, paths: Sequence[Path], run_tasks: RunTasks) -> CleaningReport:
        """All passes."""
        self._examine(run_tasks)
        verdicts = self._compare()
        counts = count_reasons(self._examined, verdicts)
        if not counts.kept.documents:
            left = ", ".join(f"{name}: {count.documents:,}" for name, count in counts.left.items())
            self._out.forget()
            raise TrainerError(f"no documents remain ({left or 'the input has none'}); nothing was written")
        wanted = {n for match in verdicts.examples for n in (match.document, match.earlier)}
        texts = self._write(run_tasks, verdicts.state, wanted)
        examples = [
            Example(*texts[match.document], *texts[match.earlier], match.similarity) for match in verdicts.examples
        ]
        report = CleaningReport(paths, self._corpus.settings, counts, examples)
        self._out.publish(report.to_json())
        return report

    def _examine(self, run_tasks: RunTasks) -> None:
        """The first pass, over parts of which the state has nothing that is complete."""
        self._fetch(sorted(self._kept))
        self._kept = {number for number, part in enumerate(self._examined) if part.is_complete()}
        open_parts = [number for number in range(len(self._parts)) if number not in self._kept]
        items = [(number, self._parts[number]) for number in open_parts]
        for number, _ in self._run(run_tasks, "examining", examine_part, open_parts, items):
            self._output.check_visible(f"{STATE}/{examined_name(number)}")
            self._kept.add(number)
        self._fetch(open_parts)

    def _fetch(self, numbers: Sequence[int]) -> None:
        self._out.folder.fetch(STATE, [examined_name(number) for number in numbers], self._scratch)

    def _compare(self) -> Verdicts:
        settings = self._corpus.settings
        memory = (settings.memory_bytes or total_memory() // 2) - resident_memory()
        finder = DuplicateFinder(self._examined, settings.near_duplicates, max(memory // 2, _LEAST_PASS))
        report = self._new_bar("comparing", finder.steps)
        for done in finder.find():
            if self._stop.signal_number is not None:
                raise InterruptedRunError("stopped", self._stop.signal_number)
            report(done)
        return finder.verdicts

    def _write(self, run_tasks: RunTasks, state: NDArray[np.uint8], wanted: set[int]) -> dict[int, tuple[str, str]]:
        """The second pass over the text; returns the place and the beginning of the wanted documents."""
        firsts = np.cumsum([0, *map(len, self._examined)]).tolist()
        stays = [state[begin:end] == STAYS for begin, end in pairwise(firsts)]
        shown_from = {bisect.bisect_right(firsts, document) - 1 for document in wanted}  # read again to be shown
        written = self._out.written()
        open_parts = [n for n in range(len(stays)) if n in shown_from or (stays[n].any() and n not in written)]
        items = [
            Verdict(
                number,
                self._parts[number],
                stays[number],
                tuple(n - firsts[number] for n in sorted(wanted) if firsts[number] <= n < firsts[number + 1]),
            )
            for number in open_parts
        ]
        texts: dict[int, tuple[str, str]] = {}
        for number, found in self._run(run_tasks, "writing", write_part, open_parts, items):
            if stays[number].any():
                self._output.check_visible(f"{STATE}/{written_name(number)}")
            texts |= {firsts[number] + index: text for index, text in found.items()}
        return texts

    def _run(
        self,
        run_tasks: RunTasks,
        name: str,
        function: Callable[[Common, Any], Any],
        numbers: Sequence[int],
        items: Sequence[Any],
    ) -> Iterator[tuple[int, Any]]:
        """The results of a pass over some parts, each with the number of its part."""
        done = sum(self._sizes) - sum(self._sizes[number] for number in numbers)
        report = self._new_bar(name, sum(self._sizes), done)
        for index, result in run_tasks(function, Common(self._corpus, self._output), items):
            yield numbers[index], result
            done += self._sizes[numbers[index]]
            report(done)

    @contextmanager
    def errors_say_what_is_kept(self) -> Iterator[None]:
        """Say what an error has left for the next call; where that is nothing, delete the state."""
        try:
            yield
        except Exception as error:
            if not self._kept:
                with suppress(Exception):  # it may be what failed
                    self._out.forget()
            kept = self._what_is_kept()
            if isinstance(error, InterruptedRunError):
                raise InterruptedRunError(f"stopped; {kept}", error.signal_number) from None
            if isinstance(error, StorageError):
                raise StorageError(f"{error}; {kept}") from None
            raise

    def _what_is_kept(self) -> str:
        if not self._kept:
            return "no part of the text was finished: run the same command again"
        again = "the command without --overwrite" if self._corpus.settings.overwrite else "the same command"
        return (
            f"{len(self._kept)} of {len(self._parts)} parts of the text are examined and kept in "
            f"{self._out.folder.path(STATE)}: {again} continues"
        )
