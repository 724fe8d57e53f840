"""Copies of the metrics for TensorBoard and Weights & Biases.

`metrics.jsonl` is the source; a tracker is filled from it when a run starts or resumes, and then gets each new record.
So it has every point once, even after crashes and rollbacks.
"""

import hashlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shared.system.errors import how_to_install
from trainer.errors import TrainerError, UsageError
from trainer.runs.folder import RunFolder
from trainer.runs.metrics import MetricsFile, read_metrics
from trainer.runs.record import read_record
from trainer.settings.train import TrainSettings, WatchSettings, to_table

if TYPE_CHECKING:
    from tensorboardX.event_file_writer import EventsWriter

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """A service or file format that displays metrics."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Take one record of `metrics.jsonl`."""

    def go_back(self, records: Sequence[Mapping[str, Any]]) -> None:
        """The run returned to a checkpoint; these are all its records now, of which the last one is new."""

    def close(self, *, failed: bool) -> None:
        """The run is over."""


def require_trackers(watch: WatchSettings) -> None:
    """Raise UsageError where the package of a requested tracker is not installed."""
    if watch.tensorboard and importlib.util.find_spec("tensorboardX") is None:
        raise UsageError(f"--tensorboard needs the package tensorboardX: {how_to_install('tensorboard')}")
    if watch.wandb is not None and importlib.util.find_spec("wandb") is None:
        raise UsageError("--wandb needs the package wandb: pip install wandb")


@contextmanager
def trackers(metrics: MetricsFile, run: RunFolder, settings: TrainSettings) -> Iterator[None]:
    """While active, the trackers that the settings request follow the metrics.

    Raises:
        TrainerError: one cannot be opened. Later failures disable the tracker with a warning, and do not stop the run.
    """
    started = datetime.fromisoformat(read_record(run.record_file)["starts"][0]["time"])
    opened: list[Tracker] = []
    if settings.watch.tensorboard:
        opened.append(TensorBoard(run.path, started.timestamp()))
    if settings.watch.wandb is not None:
        opened.append(WeightsAndBiases(run, settings))
    last_step = 0
    for record in read_metrics(run.metrics_file) if opened else ():
        last_step = record["step"]
        for tracker in opened:
            tracker.log(record)

    def log(record: Mapping[str, Any]) -> None:
        nonlocal last_step
        gone_back, last_step = record["step"] < last_step, record["step"]
        for tracker in list(opened):
            records = list(read_metrics(run.metrics_file)) if gone_back else []
            if not _succeeds(tracker, partial(tracker.go_back, records) if gone_back else partial(tracker.log, record)):
                opened.remove(tracker)
                _succeeds(tracker, partial(tracker.close, failed=True))

    metrics.listener = log
    failed = True
    try:
        yield
        failed = False
    finally:
        metrics.listener = None
        for tracker in opened:
            _succeeds(tracker, partial(tracker.close, failed=failed))


def _succeeds(tracker: Tracker, action: Callable[[], None]) -> bool:
    """Whether the action succeeds; if not, log a warning: a tracker must not end a long run."""
    try:
        action()
    except Exception as error:
        logger.warning("%s is disabled after an error: %s: %s", type(tracker).__name__, type(error).__name__, error)
        return False
    return True


class TensorBoard:
    """Event files beside `metrics.jsonl`, rewritten at each start.

    tensorboardX's own SummaryWriter is not used: it writes from a thread with a short queue, and if that thread ends,
    for example on a full disk, the next point blocks forever.
    """

    def __init__(self, folder: Path, started: float) -> None:
        """Open a new event file; `started` is the run's start in seconds since 1970."""
        self._folder, self._started = folder, started
        self._writer = self._open()

    def _open(self) -> "EventsWriter":
        """A new file in place of older ones; at its start marker, a running TensorBoard discards earlier points."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        for old in self._folder.glob("events.out.tfevents.*"):
            old.unlink()
        writer = EventsWriter(str(self._folder / "events"))
        writer.write_event(Event(step=0, wall_time=self._started, session_log=SessionLog(status=SessionLog.START)))
        return writer

    def go_back(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write a new file of these records."""
        self._writer.close()
        self._writer = self._open()
        for record in records:
            self.log(record)

    def log(self, record: Mapping[str, Any]) -> None:
        """Write one event with the numbers of a record as scalars, and its texts."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import scalar, text

        values = []
        for name, value in record.items():
            if name in ("step", "seconds") or value is None:
                continue
            if isinstance(value, str):
                values += text(name, value).value
            elif isinstance(value, int | float):
                values += scalar(name, value).value
        time = self._started + record.get("seconds", 0)
        self._writer.write_event(Event(step=record["step"], wall_time=time, summary=Summary(value=values)))
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        """Close the file."""
        del failed
        self._writer.close()


class WeightsAndBiases:
    """One W&B run for one run folder, resumed when the run is."""

    def __init__(self, run: RunFolder, settings: TrainSettings) -> None:
        import wandb

        first = read_record(run.record_file)["starts"][0]
        facts = (first["time"], first.get("machine"), first.get("command"))
        identity = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
        try:
            self._run = wandb.init(
                project=settings.watch.wandb,
                name=run.path.resolve().name,
                id=identity,
                resume="allow",
                dir=str(run.path),
                config=to_table(settings) | {"git": first["git"]},
            )
        except Exception as error:
            raise TrainerError(
                f"W&B cannot start: {error}; use `wandb login`, or WANDB_MODE=offline to write files only"
            ) from error
        self._next_step = self._run.starting_step  # the server would refuse earlier steps, each with a warning

    def log(self, record: Mapping[str, Any]) -> None:
        """Send the numbers and texts of a record; W&B joins records of one step."""
        values = {name: value for name, value in record.items() if name != "step" and value is not None}
        if record["step"] >= self._next_step:
            self._next_step = record["step"]
            self._run.log(values, step=record["step"])

    def go_back(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Log the return at W&B's current step, since it accepts no earlier one: the points after it stay."""
        self.log({**records[-1], "step": self._next_step})
        self._next_step += 1

    def close(self, *, failed: bool) -> None:
        """Wait until all is sent."""
        self._run.finish(exit_code=int(failed))
