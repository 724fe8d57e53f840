"""TensorBoard and W&B get what metrics.jsonl gets, every point once."""

import importlib.util
import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import trainer.training.trainer as module
from trainer.errors import TrainerError, UsageError
from trainer.runs.folder import RunFolder
from trainer.runs.metrics import MetricsFile, read_metrics
from trainer.runs.trackers import TensorBoard, trackers
from trainer.settings.train import TrainSettings
from trainer.training.trainer import train

Change = Callable[..., TrainSettings]


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of a protocol buffer's fields, by the wire format that protobuf.dev describes."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        size = {1: 8, 2: varint() if kind == 2 else 0, 5: 4}[kind]
        content = message[place : place + size]
        place += size
        yield number, content if kind == 2 else struct.unpack("<d" if kind == 1 else "<f", content)[0]


def events(folder: Path) -> list[tuple[int, str, Any]]:
    """Step, tag and value of all points: TFRecord frames of Event messages, as tensorflow's event.proto has them."""
    (path,) = folder.glob("events.out.tfevents.*")
    content, found, place = path.read_bytes(), [], 0
    while place < len(content):
        (size,) = struct.unpack_from("<Q", content, place)
        event = dict(fields(content[place + 12 : place + 12 + size]))
        place += 16 + size
        for number, value in fields(event.get(5, b"")):  # summary
            assert number == 1
            point = dict(fields(value))
            tag = point[1].decode()
            tensor = dict(fields(point[8])) if 8 in point else None
            found.append((event.get(2, 0), tag, tensor[8].decode() if tensor else point[2]))
    return found


def expected(settings: TrainSettings) -> list[tuple[int, str, Any]]:
    """What metrics.jsonl says."""
    return [
        (record["step"], name if not isinstance(value, str) else f"{name}/text_summary", value)
        for record in read_metrics(settings.output / "metrics.jsonl")
        for name, value in record.items()
        if name not in ("step", "seconds") and value is not None
    ]


def assert_same(found: list[tuple[int, str, Any]], wanted: list[tuple[int, str, Any]]) -> None:
    assert [point[:2] for point in found] == [point[:2] for point in wanted]
    for (_, _, one), (_, _, other) in zip(found, wanted, strict=True):
        assert one == (other if isinstance(other, str) else pytest.approx(other, rel=1e-6))


def crash_after(step: int, settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run, and fail as soon as a step was logged."""
    real = module.Trainer._after

    def after(self: Any, done: Any, report: Any) -> None:
        real(self, done, report)
        if done.number == step:
            raise OSError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(module.Trainer, "_after", after)
        with pytest.raises(OSError, match="power cut"):
            train(settings)


class TestTensorBoard:
    def test_it_holds_what_the_metrics_hold(self, settings: TrainSettings, change: Change) -> None:
        watched = change(settings, tensorboard=True, eval_interval=5, sample_interval=5)
        train(watched)
        found = events(settings.output)
        assert {tag for _, tag, _ in found} >= {"loss", "validation_loss", "learning_rate", "sample/text_summary"}
        assert_same(found, expected(watched))

    def test_after_a_crash_every_point_is_there_once(
        self, settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run goes back to step 5, so the points of the steps 6 to 8 come again."""
        watched = change(settings, tensorboard=True)
        crash_after(8, watched, monkeypatch)
        train(change(watched, resume=True))
        found = events(settings.output)
        assert [step for step, tag, _ in found if tag == "loss"] == list(range(1, 11))
        assert_same(found, expected(watched))

    def test_a_run_that_gets_it_later_shows_its_beginning_too(self, settings: TrainSettings, change: Change) -> None:
        train(settings)
        train(change(settings, resume=True, max_steps=12, tensorboard=True))
        assert [step for step, tag, _ in events(settings.output) if tag == "loss"] == list(range(1, 13))

    def test_its_failure_does_not_end_the_run(
        self,
        settings: TrainSettings,
        change: Change,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def full(self: TensorBoard, record: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(TensorBoard, "log", full)
        train(change(settings, tensorboard=True))
        assert (
            caplog.text.count("TensorBoard is disabled after an error: OSError: [Errno 28] No space left on device")
            == 1
        )
        assert (settings.output / "model").is_dir()


class FakeServer:
    """A wandb module that keeps what it is sent as W&B does: by step, and nothing of earlier steps."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[int, dict[str, Any]]] = {}
        self.calls: list[dict[str, Any]] = []
        self.exit_codes: list[int] = []

    def module(self) -> ModuleType:
        module = ModuleType("wandb")
        module.init = self.init  # type: ignore[attr-defined]
        return module

    def init(self, **options: Any) -> Any:
        self.calls.append(options)
        history = self.runs.setdefault(options["id"], {})
        starting_step = max(history) + 1 if history and options["resume"] == "allow" else 0

        def log(values: dict[str, Any], step: int) -> None:
            assert step >= max(history, default=0), "W&B takes no earlier step"
            repeated = set(values) & set(history.get(step, {})) - {"tokens", "seconds"}  # every record has these
            assert not repeated, "a point twice"
            history.setdefault(step, {}).update(values)

        return SimpleNamespace(starting_step=starting_step, log=log, finish=self.finish)

    def finish(self, *, exit_code: int) -> None:
        self.exit_codes.append(exit_code)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    server = FakeServer()
    monkeypatch.setitem(sys.modules, "wandb", server.module())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, real=importlib.util.find_spec: name or real(name))
    return server


class TestWeightsAndBiases:
    def test_a_run_that_goes_on_stays_one_run(
        self, settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch, server: FakeServer
    ) -> None:
        watched = change(settings, wandb="stories", eval_interval=5)
        crash_after(8, watched, monkeypatch)
        train(change(watched, resume=True))
        (history,) = server.runs.values()
        assert sorted(history) == list(range(1, 11))
        for step, name, value in expected(watched):
            if name not in ("tokens_per_second", "seconds"):  # the steps that were taken twice took another time
                assert history[step][name] == value
        assert server.exit_codes == [1, 0]
        assert server.calls[0]["project"] == "stories"
        assert server.calls[0]["config"]["learning_rate"] == 0.01

    def test_a_run_begun_anew_is_another_one(
        self, settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch, server: FakeServer
    ) -> None:
        watched = change(settings, wandb="stories")
        train(watched)
        monkeypatch.setattr(sys, "orig_argv", ["another", "command"])
        train(change(watched, overwrite=True))
        assert len(server.runs) == 2

    def test_what_hinders_it_is_said_before_the_first_step(
        self, settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch, server: FakeServer
    ) -> None:
        def refuse(**options: Any) -> None:
            raise RuntimeError("No API key configured")

        monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
        with pytest.raises(TrainerError, match=r"No API key configured.*WANDB_MODE=offline"):
            train(change(settings, wandb="stories"))
        assert not list(read_metrics(settings.output / "metrics.jsonl"))


def test_a_run_that_goes_back_leaves_no_point_twice(
    settings: TrainSettings, change: Change, server: FakeServer
) -> None:
    """After divergence a run goes back to a checkpoint: its metrics drop what came later, and begin there again."""
    watched = change(settings, tensorboard=True, wandb="stories")
    run = RunFolder(settings.output)
    run.path.mkdir()
    start = {"time": "2026-01-01T00:00:00+00:00", "machine": {}, "command": "", "git": None}
    run.record_file.write_text(json.dumps({"starts": [start]}))
    metrics = MetricsFile(run.metrics_file)
    metrics.rewind(0)
    with trackers(metrics, run, watched):
        for step in range(1, 6):
            metrics.write(step=step, loss=float(step))
        metrics.rewind(3)
        metrics.write(step=3, event="rolled back from step 5 to 3")
        for step in range(4, 8):
            metrics.write(step=step, loss=10.0 + step)
    found = events(settings.output)
    assert_same(found, expected(watched))
    assert [value for _, tag, value in found if tag == "loss"] == [1, 2, 3, 14, 15, 16, 17]
    (history,) = server.runs.values()
    assert [history[step]["loss"] for step in range(1, 8)] == [1, 2, 3, 4, 5, 16, 17]  # W&B takes none back
    assert history[5]["event"] == "rolled back from step 5 to 3"


@pytest.mark.parametrize(
    ("asked", "package"), [({"tensorboard": True}, "tensorboardX"), ({"wandb": "stories"}, "pip install wandb")]
)
def test_a_missing_package_is_named_before_anything_is_done(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], package: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=package):
        train(change(settings, **asked))
    assert not settings.output.exists()
