"""Runs the planned runs one after another, and resumes after an interruption."""

import dataclasses
import itertools
import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson

from shared.lm import ModelConfig
from shared.system.locks import lock
from trainer.checkpoints.folders import has_intact_checkpoint
from trainer.console.progress import progress
from trainer.console.signals import StopRequest, stop_on_signals
from trainer.errors import InterruptedRunError, TrainerError, UsageError
from trainer.runs.folder import RunFolder
from trainer.runs.results import read_run
from trainer.settings.fields import names_affecting
from trainer.settings.train import TrainSettings, to_table, to_toml
from trainer.sweep.child import run_child
from trainer.sweep.edge import refine
from trainer.sweep.notes import notes_on
from trainer.sweep.plan import Design, PlannedRun, plan_runs
from trainer.sweep.record import Outcome, read_outcomes, write_sweep
from trainer.sweep.studies import VOCAB_SIZE
from trainer.sweep.vocabularies import Text, check_vocabularies, make_vocabulary, validation_tokens

logger = logging.getLogger(__name__)

_LOCK_SECONDS = 60.0  # within this time the run of a killed sweep saves its checkpoint and exits
_TAIL_BYTES = 4_096
# May differ from those of an existing run. Results are compared on the same validation tokens.
_MAY_DIFFER = (names_affecting(TrainSettings, "watching") - {"eval_tokens"}) | names_affecting(TrainSettings, "machine")


class Sweep:
    """The runs of one sweep folder.

    Raises on construction, before the first run:
        UsageError: settings that cannot be trained, or that differ from those of a run that is there.
        TrainerError: data that cannot be trained on.
    """

    def __init__(self, design: Design, runs: Sequence[PlannedRun], text: Text) -> None:
        self.output = design.base.output
        self.runs = list(runs)
        self.text = text
        self.outcomes: dict[str, Outcome] = {}
        self._design = design
        self._overwrite = design.base.checkpoints.overwrite
        self._lock: int | None = None
        self._stop = StopRequest()
        sizes = [run.changes[VOCAB_SIZE] for run in runs if VOCAB_SIZE in run.changes]
        if sizes:
            check_vocabularies(sizes, text)
        self.notes = notes_on(design, runs, _model_configs(runs))
        self._data: dict[int, tuple[Path, int]] = {}  # of each vocabulary: token files, and its eval_tokens
        if not sizes:
            self._check_same(runs)

    def run(self) -> list[Outcome]:
        """Run what is not done yet.

        Returns:
            How each run of the plan ended, in the order of the plan.

        Raises:
            InterruptedRunError: SIGINT, SIGTERM or SIGHUP came; the same call resumes from there.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        with stop_on_signals() as self._stop, _exclusive(self.output) as self._lock:
            self._make_vocabularies()
            self.outcomes = {} if self._overwrite else read_outcomes(self.output)
            self._run_all(self.runs)
            for _ in range(self._design.refinements):
                changes = refine([(run.changes, self.outcomes[run.name].status) for run in self.runs])
                if not changes:
                    break
                more = plan_runs(self._design, changes)
                self.runs += more
                self._run_all(more)
        return [self.outcomes[run.name] for run in self.runs]

    def _run_all(self, runs: Sequence[PlannedRun]) -> None:
        runs = [self._with_vocabulary(run) for run in runs]
        self._check_same(runs)
        for run in runs:
            if self._overwrite and RunFolder(run.settings.output).settings_file.is_file():
                shutil.rmtree(run.settings.output)
        for number, run in enumerate(runs, len(self.runs) - len(runs) + 1):
            self._run_one(run, f"run {number}/{len(self.runs)} {run.name}")

    def _make_vocabularies(self) -> None:
        """Make a vocabulary of each size, and scale `eval_tokens` so that each is evaluated on about as much text."""
        sizes = list(dict.fromkeys(run.changes[VOCAB_SIZE] for run in self.runs if VOCAB_SIZE in run.changes))
        first = 0
        for size in sizes:
            logger.info("vocabulary of %s", f"{size:,}")
            folder = self.output / "vocabularies" / str(size)
            data = make_vocabulary(size, self.text, folder, self._run_command)
            count = validation_tokens(data)
            first = first or count
            self._data[size] = data, round(self._design.base.watch.eval_tokens * count / first)

    def _with_vocabulary(self, run: PlannedRun) -> PlannedRun:
        """The run on the data of its vocabulary, if that varies."""
        if VOCAB_SIZE not in run.changes:
            return run
        data, eval_tokens = self._data[run.changes[VOCAB_SIZE]]
        watch = run.settings.watch
        if "eval_tokens" not in run.changes:
            watch = dataclasses.replace(watch, eval_tokens=eval_tokens)
        return dataclasses.replace(run, settings=dataclasses.replace(run.settings, data=data, watch=watch))

    def _run_command(self, arguments: Sequence[str], log: Path) -> tuple[int, str]:
        status, last_line = run_child(arguments, log, stop=self._stop, lock=self._lock, watch=lambda: None)
        if self._stop:
            raise self._interrupted("making a vocabulary")
        return status, last_line

    def _run_one(self, run: PlannedRun, title: str) -> None:
        folder = RunFolder(run.settings.output)
        before = self.outcomes.get(run.name)
        has_model = (folder.model / "ownlm.json").is_file()
        diverged = before is not None and before.status == "diverged" and folder.settings_file.is_file()
        if before is not None and (diverged or (has_model and before.status == "finished")):
            outcome = before
            logger.info("%s: already %s", title, outcome.status)
        elif has_model:  # killed before it was noted
            outcome = Outcome.of(run, read_run(folder.path), status=0, last_line="")
        else:
            outcome = self._train(run, folder, title)
        self.outcomes[run.name] = outcome
        write_sweep(self.output, self.outcomes.values(), self.notes)

    def _train(self, run: PlannedRun, folder: RunFolder, title: str) -> Outcome:
        """Start or resume the run."""
        resume = has_intact_checkpoint(folder.checkpoints)
        logger.info("%s: %s", title, "resuming" if resume else "starting")
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.settings_file.write_text(to_toml(run.settings), encoding="utf-8")
        arguments = ["train", "--config", str(folder.settings_file), "--resume" if resume else "--overwrite"]
        with progress() as new_bar:
            report = new_bar(title, run.settings.optimization.max_steps)
            shown = 0

            def watch() -> None:
                nonlocal shown
                step, note = _last_logged(folder.metrics_file)
                if step != shown:
                    report(step, note)
                shown = step

            status, last_line = run_child(
                arguments, folder.path / "train.log", stop=self._stop, lock=self._lock, watch=watch
            )
        if self._stop:
            raise self._interrupted(run.name)
        outcome = Outcome.of(run, read_run(folder.path), status=status, last_line=last_line)
        if outcome.status != "finished":
            logger.warning("%s: %s: %s", title, outcome.status, outcome.reason)
        return outcome

    def _interrupted(self, where: str) -> InterruptedRunError:
        number = self._stop.signal_number or signal.SIGTERM
        done = sum(run.name in self.outcomes for run in self.runs)
        return InterruptedRunError(f"stopped in {where}; {done} of {len(self.runs)} runs are done", number)

    def _check_same(self, runs: Sequence[PlannedRun]) -> None:
        """Refuse to mix in runs with other settings."""
        for run in [] if self._overwrite else runs:
            there = read_run(run.settings.output).settings
            if not there:
                continue
            decided = there.get("data_order") is not None  # by a run that got so far
            table = to_table(_with_order_of_data(run) if decided else run.settings)
            now = {name: value for name, value in table.items() if value is not None}
            differing = [name for name in sorted(set(there) | set(now)) if there.get(name) != now.get(name)]
            lines = [
                f"{n} is {there.get(n)} in the folder, {now.get(n)} now" for n in differing if n not in _MAY_DIFFER
            ]
            if lines:
                raise UsageError(
                    f"{run.settings.output} contains this run with other settings: {'; '.join(lines)}. Choose another "
                    "--output, or replace the runs with --overwrite"
                )


def _with_order_of_data(run: PlannedRun) -> TrainSettings:
    """The run's settings with the order of the data that `train` records, which the data decides by default."""
    from trainer.tokens.token_file import TokenFile

    optimization = run.settings.optimization
    if optimization.data_order is None:
        # A sweep that makes vocabularies encodes plain text.
        tokens = None if VOCAB_SIZE in run.changes else TokenFile.open(run.settings.data, "train").manifest
        optimization = optimization.for_data(has_mask=tokens is not None and tokens.has_mask)
    return dataclasses.replace(run.settings, optimization=optimization)


def _model_configs(runs: Sequence[PlannedRun]) -> dict[str, ModelConfig]:
    """The model of each run, by name, which checks the data and every model's shape before the first run starts."""
    from trainer.components.parent import trained_config
    from trainer.tokens.dataset import open_training_data

    vocab_sizes: dict[Path, int] = {}
    configs = {}
    for run in runs:
        settings = run.settings
        size = run.changes.get(VOCAB_SIZE)
        if size is None:
            if settings.data == Path():
                raise UsageError("give --data, the folder that `encode` wrote")
            if settings.data not in vocab_sizes:
                vocab_sizes[settings.data] = open_training_data(settings.data).tokenizer.vocab_size
            size = vocab_sizes[settings.data]
        try:
            configs[run.name] = trained_config(settings, size)
        except UsageError as error:
            raise UsageError(f"run {run.name}: {error}") from error
    return configs


def _last_logged(path: Path) -> tuple[int, str]:
    """The last step in the metrics of a running run, and its loss."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return 0, ""
    for line in reversed(lines):
        try:
            record = orjson.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("loss"), float):
            return record["step"], f"loss {record['loss']:.3f}"
    return 0, ""


@contextmanager
def _exclusive(folder: Path) -> Iterator[int | None]:
    """Keep other sweeps out; the lock lives as long as any process that holds the file, for children to inherit."""
    with (folder / ".lock").open("w", encoding="utf-8") as file:
        _wait_for(file.fileno(), folder)
        yield file.fileno() if os.name == "posix" else None  # other systems cannot pass it to children


def _wait_for(file: int, folder: Path) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    for attempt in itertools.count():
        if lock(file, holder="file"):
            return
        if not attempt:
            logger.info("waiting: another sweep is running in %s, or its last run is still stopping", folder)
        if time.monotonic() > deadline:
            raise TrainerError(f"another sweep is running in {folder}; wait for it, or choose another --output")
        time.sleep(0.5)
