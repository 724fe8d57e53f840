import itertools
import json
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor

from shared.lm import load_model_folder
from trainer.checkpoints.checkpoint import load_newest_checkpoint
from trainer.checkpoints.folders import list_checkpoints
from trainer.components.loss import TrainingLoss
from trainer.errors import DivergedError
from trainer.settings.train import TrainSettings
from trainer.tokens.windows import ShuffledWindows
from trainer.training.divergence import divergence, remember
from trainer.training.trainer import train

Change = Callable[..., TrainSettings]
Poison = Callable[..., None]


class TestSpikes:
    """The rule, on losses that a sound run might have."""

    STEADY = tuple(NormalDist(3.0, 0.1).samples(100, seed=0))

    @pytest.mark.parametrize("loss", [float("nan"), float("inf")])
    def test_what_is_no_number_is_a_fault_whatever_the_settings(self, loss: float) -> None:
        assert "loss" in (divergence(loss, 1.0, [], 0.0) or "")
        assert "gradient norm" in (divergence(1.0, loss, [], 0.0) or "")

    def test_a_jump_counts_from_the_threshold_on(self) -> None:
        """The median deviation of a hundred normal numbers with a standard deviation of 0.1 is close to that."""
        assert divergence(3.9, 1.0, self.STEADY, 10.0) is None
        message = divergence(4.2, 1.0, self.STEADY, 10.0)
        assert message is not None
        assert "jumped to 4.2" in message
        assert "the median of the last 100 steps (--spike-threshold 10)" in message
        assert divergence(4.2, 1.0, self.STEADY, 0.0) is None

    def test_earlier_spikes_do_not_hide_the_next(self) -> None:
        assert divergence(5.0, 1.0, (*self.STEADY[:90], *([9.0] * 10)), 10.0) is not None

    def test_a_fall_is_none(self) -> None:
        assert divergence(0.1, 1.0, self.STEADY, 10.0) is None

    def test_losses_that_hardly_differ_leave_room(self) -> None:
        assert divergence(3.05, 1.0, [3.0] * 100, 10.0) is None
        assert divergence(3.4, 1.0, [3.0] * 100, 10.0) is not None

    def test_the_first_steps_are_too_few_to_judge_by(self) -> None:
        assert divergence(9.0, 1.0, [3.0] * 19, 10.0) is None
        assert divergence(9.0, 1.0, [3.0] * 20, 10.0) is not None

    def test_the_oldest_are_forgotten(self) -> None:
        losses: list[float] = []
        for number in range(150):
            remember(float(number), losses)
        assert losses == [float(number) for number in range(50, 150)]


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Poison:
    """Multiply the loss, and so its gradient, in the batches with these numbers, from 0; in lasting, from there on."""
    poisoned: set[tuple[int, ...]] = set()
    batch, forward = ShuffledWindows.batch, TrainingLoss.forward

    def poison(*numbers: int, lasting: int | None = None, by: float = float("nan")) -> None:
        def poisoned_batch(self: ShuffledWindows, index: int, size: int) -> tuple[Tensor, Tensor]:
            inputs, targets = batch(self, index, size)
            if index in numbers or (lasting is not None and index >= lasting):
                poisoned.add(tuple(inputs[0].tolist()))
            return inputs, targets

        def poisoned_forward(self: TrainingLoss, inputs: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
            is_real = type(inputs) is Tensor  # and not one of the estimate's, which have no values
            factor = by if is_real and tuple(inputs[0].tolist()) in poisoned else 1.0
            loss, nats = forward(self, inputs, *rest, **options)
            return loss * factor, nats * factor

        monkeypatch.setattr(ShuffledWindows, "batch", poisoned_batch)
        monkeypatch.setattr(TrainingLoss, "forward", poisoned_forward)

    return poison


def metrics(settings: TrainSettings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (settings.output / "metrics.jsonl").read_text().splitlines()]


def events(settings: TrainSettings) -> list[tuple[int, str]]:
    return [(record["step"], record["event"]) for record in metrics(settings) if "event" in record]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_model_folder(folder).model.state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one | other)


def crash_at_checkpoint(number: int, settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run, and crash right after this many checkpoints."""
    import trainer.checkpoints.saving as module

    saved, real = itertools.count(1), module.save_checkpoint

    def crashing(*arguments: Any, **options: Any) -> Path:
        path = real(*arguments, **options)
        if next(saved) == number:
            raise OSError("power cut")
        return path

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_checkpoint", crashing)
        with pytest.raises(OSError, match="power cut"):
            train(settings)


class TestSkip:
    def test_one_bad_step_is_left_out_and_told(self, settings: TrainSettings, change: Change, poison: Poison) -> None:
        """B81: the fourth step changes nothing, the fifth does."""
        poison(3)
        train(change(settings, on_divergence="skip", checkpoint_interval=1))
        assert events(settings) == [(4, "skipped: loss nan, gradient norm nan")]
        assert [record["loss"] is None for record in metrics(settings) if "loss" in record] == [
            step == 4 for step in range(1, 11)
        ]
        third, fourth, fifth = (weights(settings.output / f"checkpoints/step-0000000{n}") for n in (3, 4, 5))
        assert same(third, fourth)
        assert not same(fourth, fifth)

    def test_a_fault_that_lasts_stops_the_run(self, settings: TrainSettings, change: Change, poison: Poison) -> None:
        """B81: three steps in a row are left out, the next ends it; the checkpoint meanwhile holds good weights."""
        poison(lasting=3)
        with pytest.raises(DivergedError, match=r"step 7: loss nan.*4 steps in a row; .*checkpoint is .*00000005"):
            train(change(settings, on_divergence="skip", max_skips=3))
        assert [step for step, _ in events(settings)] == [4, 5, 6, 7]
        assert events(settings)[-1][1].startswith("stopped: training diverged at step 7")
        assert load_newest_checkpoint(settings.output / "checkpoints").run.step == 5

    def test_it_goes_on_to_the_bit(
        self, settings: TrainSettings, change: Change, poison: Poison, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        poison(3, 4, 7)
        settings = change(settings, on_divergence="skip", max_skips=2)
        whole = change(settings, output=settings.output.with_name("whole"))
        train(whole)
        crash_at_checkpoint(1, settings, monkeypatch)
        train(change(settings, resume=True))
        assert same(weights(settings.output / "model"), weights(whole.output / "model"))
        assert events(settings) == events(whole)


class TestRollback:
    def test_it_goes_back_and_on_with_other_data(
        self, settings: TrainSettings, change: Change, poison: Poison, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B81: from step 8 to the checkpoint of step 5; the batches of steps 6 to 8 are met no more."""
        poison(7)
        used: list[int] = []
        batch = ShuffledWindows.batch
        monkeypatch.setattr(
            ShuffledWindows, "batch", lambda self, index, size: used.append(index) or batch(self, index, size)
        )
        train(change(settings, on_divergence="rollback", rollback_learning_rate_factor=0.5))
        assert used == [*range(9), *range(8, 14)]  # one more than is used is fetched before each end
        ((step, event),) = events(settings)
        assert step == 5
        assert event.startswith("rolled back from step 8 to 5: training diverged at step 8: loss nan")
        losses = [record for record in metrics(settings) if "loss" in record]
        assert [record["step"] for record in losses] == list(range(1, 11))
        seconds = [record["seconds"] for record in metrics(settings)]
        assert seconds == sorted(seconds)
        last = load_newest_checkpoint(settings.output / "checkpoints").run
        assert (last.rollbacks, last.batches_left_out, last.learning_rate_scale) == (1, 3, 0.5)
        assert losses[-1]["learning_rate"] < 0.6 * 0.5 * 1e-2

    def test_before_the_first_checkpoint_it_goes_back_to_the_start(
        self, settings: TrainSettings, change: Change, poison: Poison
    ) -> None:
        poison(2)
        train(change(settings, on_divergence="rollback"))
        assert [step for step, _ in events(settings)] == [0]

    def test_a_fault_that_lasts_stops_the_run(self, settings: TrainSettings, change: Change, poison: Poison) -> None:
        poison(lasting=7)
        with pytest.raises(DivergedError, match=r"step 6: loss nan.* after 2 rollbacks; .*is .*step-00000005"):
            train(change(settings, on_divergence="rollback", max_rollbacks=2))
        assert all(
            weight.isfinite().all() for weight in weights(settings.output / "checkpoints/step-00000005").values()
        )

    @pytest.mark.parametrize("checkpoint", [2, 3])
    def test_it_goes_on_to_the_bit(
        self,
        settings: TrainSettings,
        change: Change,
        poison: Poison,
        monkeypatch: pytest.MonkeyPatch,
        checkpoint: int,
    ) -> None:
        """Also where it is killed just when it has gone back (its third checkpoint), with dropout."""
        poison(7)
        settings = change(settings, on_divergence="rollback", dropout=0.3)
        whole = change(settings, output=settings.output.with_name("whole"))
        train(whole)
        crash_at_checkpoint(checkpoint, settings, monkeypatch)
        train(change(settings, resume=True))
        assert same(weights(settings.output / "model"), weights(whole.output / "model"))

    def test_a_spike_counts_where_a_threshold_is_set(
        self, settings: TrainSettings, change: Change, poison: Poison
    ) -> None:
        """One batch of a loss ten times as high, of a run that has found its level."""
        poison(30, by=10.0)
        settings = change(
            settings, max_steps=35, on_divergence="rollback", spike_threshold=10.0, checkpoint_interval=10
        )
        train(settings)
        ((step, event),) = events(settings)
        assert step == 30
        assert "the loss jumped to" in event


def test_weights_that_are_no_numbers_never_push_out_a_good_checkpoint(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B81: an update that overflows, which neither loss nor gradient of its step tell."""
    import trainer.training.trainer as module

    real = module.training_steps

    def steps(model: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
        for step in real(model, *arguments, **options):
            if step.number == 6:
                next(model.parameters()).data[0, 0] = float("inf")
            yield step

    monkeypatch.setattr(module, "training_steps", steps)
    with pytest.raises(
        DivergedError, match=r"NaN or infinite weight after step 6: .*; the last good checkpoint is .*step-00000004"
    ):
        train(change(settings, checkpoint_interval=2, keep=1))
    assert [path.name for path in list_checkpoints(settings.output / "checkpoints")] == ["step-00000004"]


def test_a_sample_of_weights_that_went_wrong_leaves_it_to_the_guard(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B81: an update that overflows, right before a sample: the run goes back rather than ends."""
    import trainer.training.trainer as module

    real, poisoned = module.training_steps, []

    def steps(model: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
        for step in real(model, *arguments, **options):
            if step.number == 6 and not poisoned:
                poisoned.append(step.number)
                next(model.parameters()).data.fill_(float("nan"))
            yield step

    monkeypatch.setattr(module, "training_steps", steps)
    train(change(settings, sample_interval=3, on_divergence="rollback"))
    assert poisoned
    assert [step for step, _ in events(settings)] == [5]
    assert [record["step"] for record in metrics(settings) if "sample" in record] == [3, 6, 9]


def test_the_last_weights_are_guarded_too(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B81: the update of the last step overflows; the message names the last good checkpoint."""
    import trainer.training.trainer as module

    real = module.training_steps

    def steps(model: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
        for step in real(model, *arguments, **options):
            if step.number == 10:
                next(model.parameters()).data[0, 0] = float("inf")
            yield step

    monkeypatch.setattr(module, "training_steps", steps)
    with pytest.raises(
        DivergedError, match=r"NaN or infinite weight after step 10: .*; the last good checkpoint is .*00000005"
    ):
        train(settings)
