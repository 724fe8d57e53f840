"""Training on a GPU, as far as it can be run without one: whole runs on devices that compute on the CPU.

What they give is compared with the same run on the CPU, whose kernels differ: chunks of other sizes, another attention.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from shared.lm import load_model_folder
from tests.pretend_cuda import PretendCuda
from trainer.components.model import model_config
from trainer.compute.device import choose_device
from trainer.estimate.estimate import estimate_run
from trainer.estimate.formula import formula_peak
from trainer.estimate.memory import Peak, step_memory
from trainer.estimate.target import choose_target, target_here
from trainer.estimate.traced_step import traced_peak
from trainer.evaluation.sampling import stream_text
from trainer.evaluation.validation import evaluate, token_byte_lengths
from trainer.report.models import examine
from trainer.runs.results import RunResults, read_run
from trainer.settings.hardware import HardwareSettings
from trainer.settings.train import MachineSettings, TrainSettings
from trainer.tokens.token_file import TokenFile
from trainer.training.run import prepare_run
from trainer.training.trainer import train

pytestmark = [pytest.mark.extended, pytest.mark.usefixtures("cuda")]

Change = Callable[..., TrainSettings]


@pytest.fixture
def watched(settings: TrainSettings, change: Change) -> TrainSettings:
    """Ten steps in float32, with an evaluation, a sample and a checkpoint at the fifth."""
    every_five = dict.fromkeys(("eval_interval", "sample_interval", "checkpoint_interval"), 5)
    return change(settings, dtype="float32", keep_best=True, **every_five)


@pytest.fixture
def deterministic() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def run_on(device: str, settings: TrainSettings, change: Change, **values: Any) -> RunResults:
    run = change(settings, device=device, output=settings.output / device.replace(":", "-"), **values)
    train(run)
    return read_run(run.output)


def check_alike(run: RunResults, other: RunResults, tolerance: float = 1e-3) -> None:
    for name in ("loss", "validation_loss"):
        assert run.curve(name).values == pytest.approx(other.curve(name).values, abs=tolerance)
        assert len(run.curve(name)) > 1
    assert [step for step, _ in run.samples] == [5]


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_a_run_gives_what_it_gives_on_the_cpu(
    watched: TrainSettings, change: Change, device: str, optimizer: str
) -> None:
    """Estimate, steps, evaluation, sample, checkpoints and the finished model."""
    asked = {"optimizer": optimizer, "document_mask": True, "z_loss": 1e-4}
    run, same = (run_on(name, watched, change, **asked) for name in (device, "cpu"))
    check_alike(run, same)
    assert run.samples == same.samples
    weights, others = (load_model_folder(one.folder / "model").model.state_dict() for one in (run, same))
    for name, weight in weights.items():
        assert torch.allclose(weight, others[name], atol=1e-2), name


def test_by_default_a_run_is_in_bfloat16(watched: TrainSettings, change: Change) -> None:
    run, exact = (run_on(name, watched, change, dtype=dtype) for name, dtype in (("cuda", "auto"), ("cpu", "float32")))
    check_alike(run, exact, tolerance=0.02)
    assert run.curve("loss").values.tolist() != exact.curve("loss").values.tolist()
    assert run.record["starts"][0]["device"] == "a pretended GPU (cuda:0), bfloat16"


def test_a_resumed_run_equals_one_that_was_not_interrupted(watched: TrainSettings, change: Change) -> None:
    on_cuda = change(watched, device="cuda")
    model = load_model_folder(train(on_cuda)).model
    for left in (on_cuda.output / "checkpoints").glob("step-*10"):
        left.rename(on_cuda.output / "gone")
    resumed = load_model_folder(train(change(on_cuda, resume=True))).model
    for weight, other in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(weight, other)


@pytest.mark.usefixtures("deterministic")
def test_a_deterministic_run_draws_its_samples(watched: TrainSettings, change: Change) -> None:
    """A GPU has no cumulative sum of floats in a fixed order; see `torch.use_deterministic_algorithms`."""
    assert ":func:`torch.cumsum` when called on a CUDA tensor" in (torch.use_deterministic_algorithms.__doc__ or "")
    asked = {"temperature": 1.2, "top_p": 0.9, "document_mask": True, "dropout": 0.1}
    run = run_on("cuda", watched, change, deterministic=True, **asked)
    assert len(run.samples) == 1
    with pytest.raises(RuntimeError, match="cumsum does not have a deterministic implementation"):
        torch.ones(3, device="cuda").double().cumsum(0)


@pytest.mark.parametrize("peak", [formula_peak, traced_peak])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_estimate_of_a_gpu_counts_what_that_of_the_cpu_does(
    settings: TrainSettings, change: Change, optimizer: str, peak: Peak
) -> None:
    config = model_config(settings.model, 290)
    asked = change(settings, optimizer=optimizer, dropout=0.1, document_mask=True)
    found = [step_memory(asked, config, choose_device(name, "float32"), peak=peak) for name in ("cuda:1", "cpu")]
    assert found[0].parameters == found[1].parameters == 4 * (config.num_parameters + config.head_dim // 2)
    assert found[0].gradients == found[1].gradients
    assert found[0].optimizer >= found[1].optimizer > 0
    assert set(found[0].activations) == set(found[1].activations)


def test_steps_are_measured(settings: TrainSettings) -> None:
    target = target_here(choose_device("cuda", "float32"))
    found = estimate_run(settings, model_config(settings.model, 290), target, measure=True)
    assert found.speed is not None
    assert found.speed.measured is not None
    assert found.target.memory == 1 << 30


def test_what_looks_at_a_model_runs_there_too(watched: TrainSettings, change: Change) -> None:
    """`evaluate`, `generate` and `report`, in float32 and the first in bfloat16 as well."""
    run = run_on("cpu", watched, change)
    path = run.folder / "model"
    texts = [list(stream_text(path, "the", max_tokens=8, seed=3, device=name)) for name in ("cuda", "cpu")]
    assert texts[0] == texts[1]
    tokens = TokenFile.open(watched.data, "val").tokens[:300]
    losses = []
    for name, dtype in (("cpu", "float32"), ("cuda", "float32"), ("cuda:1", "bfloat16")):
        device = choose_device(name, dtype)
        folder = load_model_folder(path, device=device.torch_device)
        lengths = token_byte_lengths(folder.tokenizer, folder.valid_tokens)
        scored = evaluate(folder.model, [tokens], lengths, context_length=16, batch_size=4, device=device)
        losses.append(scored.loss)
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert losses[2] == pytest.approx(losses[0], abs=0.02)
    found, expected = (examine(run, prompt="the", device=name) for name in ("cuda:1", "cpu"))
    assert found.notes == expected.notes == []
    assert found.samples == expected.samples
    assert found.positions is not None


def test_the_device_of_a_run_is_the_current_one(settings: TrainSettings, change: Change, cuda: PretendCuda) -> None:
    """Without that, a context or pinned memory goes to the first GPU."""
    prepare_run(change(settings, device="cuda:1"))
    assert cuda.current == 1


def test_tensors_of_two_devices_do_not_mix() -> None:
    """The pretence refuses what a GPU refuses, or the tests here would prove nothing."""
    on_gpu = torch.ones(2, 3, device="cuda")
    assert (on_gpu * torch.tensor(2.0)).tolist() == [[2.0] * 3] * 2
    for other in (torch.ones(3), torch.ones(3, device="cuda:1")):
        with pytest.raises(RuntimeError, match="on the same device"):
            on_gpu + other
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.ones(3)[torch.tensor([1], device="cuda")]
    assert on_gpu[torch.tensor([0])].device == torch.device("cuda", 0)
    with pytest.raises((TypeError, RuntimeError)):
        on_gpu.numpy()


def test_an_estimate_takes_figures_beside_a_gpu_of_this_machine() -> None:
    """As it is, or with the memory and the peak of another."""
    machine = MachineSettings(device="cuda", dtype="float32")
    own = choose_target(machine, HardwareSettings(), d_model=64)
    assert (own.here, own.memory, own.peak) == (True, 1 << 30, None)
    other = choose_target(machine, HardwareSettings(memory="80G", peak_flops=19.5e12), d_model=64)
    assert (other.here, other.memory, other.peak) == (True, 80 << 30, 19.5e12)
    assert other.name == "cuda as described, float32"
