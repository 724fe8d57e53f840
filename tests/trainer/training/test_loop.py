import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from shared.lm import Transformer
from trainer.checkpoints.run_state import RunState
from trainer.components.loss import TrainingLoss
from trainer.components.model import new_model
from trainer.components.optimizer import build_optimizer
from trainer.compute.device import choose_device
from trainer.errors import DivergedError
from trainer.settings.train import TrainSettings
from trainer.tokens.dataset import open_training_data
from trainer.tokens.windows import ShuffledWindows
from trainer.training.loop import Step, accumulate_gradients, training_steps

CPU = choose_device("cpu")


Loss = Callable[..., tuple[Tensor, Tensor]]


def take_steps(
    settings: TrainSettings, change_loss: Callable[[Loss], Loss] = lambda loss: loss
) -> tuple[Transformer, list[Step], BaseException | None]:
    """Train on the settings' data, with the loss replaced; the error that ended it, if one did."""
    data = open_training_data(settings.data)
    model = new_model(settings.model, data.tokenizer.vocab_size, seed=0)
    steps: list[Step] = []
    try:
        for step in steps_of(settings, model, change_loss(TrainingLoss(model))):
            steps.append(step)  # noqa: PERF402 - those before an error count
    except DivergedError as error:
        return model, steps, error
    return model, steps, None


def steps_of(
    settings: TrainSettings,
    model: Transformer,
    loss_function: Loss,
    state: RunState | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Iterator[Step]:
    optimizer = optimizer or build_optimizer(model, learning_rate=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    windows = ShuffledWindows(open_training_data(settings.data).train, settings.model.context_length, seed=0)
    return training_steps(
        model, optimizer, windows, settings, CPU, state=state or RunState(), loss_function=loss_function
    )


@pytest.mark.parametrize("batch_size", [1, 3, 5, 6])
def test_accumulated_gradients_are_those_of_one_large_batch(settings: TrainSettings, batch_size: int) -> None:
    """Also where the last pass is smaller: the mean is over the tokens of the whole batch."""
    model = new_model(settings.model, 300, seed=0)
    tokens = torch.randint(0, 300, (6, 17), generator=torch.Generator().manual_seed(0))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    expected_loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    expected = torch.autograd.grad(expected_loss, list(model.parameters()))
    loss = accumulate_gradients(TrainingLoss(model), inputs, targets, batch_size=batch_size, device=CPU)
    assert loss.item() == pytest.approx(expected_loss.item(), abs=1e-6)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 2, 4, 6])
def test_each_scored_target_counts_the_same_in_whichever_pass_it_is(settings: TrainSettings, batch_size: int) -> None:
    """B82: short windows, and one without a target at all, which is a pass of its own; against torch's own mean."""
    model = new_model(settings.model, 300, seed=0)
    tokens = torch.randint(0, 300, (6, 17), generator=torch.Generator().manual_seed(0))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    for window, scored in enumerate([16, 0, 3, 16, 1, 9]):
        targets[window, scored:] = -100
    expected_loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
    expected = torch.autograd.grad(expected_loss, list(model.parameters()))
    loss = accumulate_gradients(TrainingLoss(model), inputs, targets, batch_size=batch_size, device=CPU)
    assert loss.item() == pytest.approx(expected_loss.item(), abs=1e-6)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-5)


def test_the_loss_of_many_passes_is_as_exact_as_that_of_one() -> None:
    """Summed in float32, sixty times 0.1 is off by seven times the last bit."""
    weight, part = torch.ones(1, requires_grad=True), torch.tensor(0.1)

    def loss(inputs, targets, *, scale, z_loss):  # type: ignore[no-untyped-def]
        return weight.sum(), part

    windows = torch.zeros((60, 4), dtype=torch.int64)
    total = accumulate_gradients(loss, windows, windows, batch_size=1, device=CPU)
    assert total.item() == (60 * part.double()).float().item()
    assert total.item() != sum([part] * 60, torch.zeros(())).item()


def test_a_step_without_a_scored_target_adds_nothing(settings: TrainSettings) -> None:
    """B82: not 0/0."""
    model = new_model(settings.model, 300, seed=0)
    inputs = torch.zeros((2, 16), dtype=torch.int64)
    loss = accumulate_gradients(TrainingLoss(model), inputs, inputs - 100, batch_size=1, device=CPU)
    assert loss.item() == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


def test_a_run_in_small_passes_is_the_run_in_large_ones(
    settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    _, whole, _ = take_steps(change(settings, batch_size=6, total_batch_size=6))
    _, parts, _ = take_steps(change(settings, batch_size=2, total_batch_size=6))
    assert [step.loss for step in parts] == pytest.approx([step.loss for step in whole], abs=1e-4)


def test_it_learns(settings: TrainSettings, change: Callable[..., TrainSettings]) -> None:
    """B82: no loss is NaN; ten words at random cost 2.3 nats per word."""
    _, steps, _ = take_steps(change(settings, max_steps=150))
    assert steps[0].loss == pytest.approx(torch.tensor(290.0).log().item(), abs=0.3)
    assert steps[-1].loss < 2.6


def test_long_gradients_are_scaled_to_the_limit(settings: TrainSettings, change: Callable[..., TrainSettings]) -> None:
    """Of two first steps that differ in the limit alone, AdamW's second moments tell the gradients."""
    data = open_training_data(settings.data)
    norms = {}
    for limit in (0.0, 1e-3):
        limited = change(settings, clip_grad_norm=limit)
        model = new_model(limited.model, data.tokenizer.vocab_size, seed=0)
        optimizer = build_optimizer(model, learning_rate=1.0, betas=(0.9, 0.95), weight_decay=0.1)
        step = next(steps_of(limited, model, TrainingLoss(model), optimizer=optimizer))
        squares = sum(optimizer.state[p]["exp_avg_sq"].sum().item() for p in model.parameters())
        norms[limit] = (squares / 0.05) ** 0.5
        assert step.grad_norm > 0.1
    assert norms[0.0] == pytest.approx(step.grad_norm, rel=1e-3)
    assert norms[1e-3] == pytest.approx(1e-3, rel=1e-2)


def poisoned(*numbers: int, by: float = float("nan")) -> Callable[[Loss], Loss]:
    """A loss whose gradient is multiplied in the passes with these numbers, from 1, its value being as it was."""

    def change(loss_function: Loss) -> Loss:
        passes = itertools.count(1)

        def poisoned(*arguments: Tensor, **options: float) -> tuple[Tensor, Tensor]:
            loss, nats = loss_function(*arguments, **options)
            return loss * (by if next(passes) in numbers else 1.0), nats

        return poisoned

    return change


def test_a_gradient_that_is_not_a_number_stops_before_it_reaches_the_weights(settings: TrainSettings) -> None:
    """B81: one NaN gradient, in the third step."""
    model, steps, error = take_steps(settings, poisoned(3))
    assert len(steps) == 2
    assert "diverged at step 3: loss 5." in str(error)
    assert "gradient norm nan" in str(error)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
