"""How fast this device trains: from the rate of its matrix products, or from a few real steps."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor, nn

from shared.lm import ModelConfig, Transformer
from shared.lm.accounting import forward_flops
from shared.lm.linear import fast_product, has_fast_product
from shared.system.memory import peak_memory
from trainer.components.lora import add_adapters
from trainer.components.loss import TrainingLoss
from trainer.components.model import apply_recipe
from trainer.components.optimizer import build_optimizer
from trainer.compute.device import Device
from trainer.settings.train import TrainSettings

_UTILIZATION_ON_GPU = 0.4
_BYTES_A_SECOND = 10e9
"""What a core moves in the parts of a step that are no products: kernels, casts, the update."""

_ROWS = 2048  # of a measured product at most: more are not faster
_SECONDS = 0.02  # for each product
_WARMUP_STEPS, _STEPS = 1, 3


@dataclass(frozen=True)
class MeasuredSteps:
    """What a few real steps took.

    Attributes:
        seconds: Of one optimizer step: the median.
        peak_bytes: The most memory that the process (on CUDA: its tensors) ever held.
    """

    seconds: float
    peak_bytes: int


def usual_utilization(settings: TrainSettings, config: ModelConfig, device: Device, rate: float, flops: float) -> float:
    """The share of the rate of its matrix products that a training step reaches; small models reach less.

    GPUs: what nanochat and llm.c report for dense models of 100 million parameters and more. CPUs: products take their
    time, and all else that of the bytes it moves. What is computed again for --checkpoint-activations is no progress.

    Args:
        settings: The run's.
        config: The model's.
        device: Where.
        rate: Of the device's products, operations a second.
        flops: Of a step.
    """
    if device.torch_device.type != "cpu":
        share = _UTILIZATION_ON_GPU
    else:
        rest = _bytes_beside_products(settings, config, device) / (_BYTES_A_SECOND * torch.get_num_threads())
        share = flops / (flops + rate * rest)
    if settings.optimization.checkpoint_activations:
        forward = forward_flops(config, sequences=settings.total_batch_size)
        share *= flops / (flops + forward.total - forward.output)
    return share


def _bytes_beside_products(settings: TrainSettings, config: ModelConfig, device: Device) -> int:
    """About what a step reads and writes outside of products: how often each number passes is counted in its code."""
    c = config
    layer = 30 * c.d_model + 12 * c.d_ff + 10 * c.num_heads * c.context_length
    tokens = settings.tokens_per_step * (c.num_layers * layer + 6 * c.vocab_size)
    return device.dtype.itemsize * (tokens + 13 * c.num_parameters)


@lru_cache(maxsize=16)
def matmul_rate(config: ModelConfig, tokens: int, device: Device) -> float:
    """Operations a second of the model's matrix products: the mean over its shapes, weighted by what each costs.

    Args:
        config: The model's.
        tokens: How many go through it at once.
        device: Where.
    """
    c, rows = config, min(tokens, _ROWS)
    queries = c.num_heads * c.head_dim
    shapes = {  # inputs and outputs of each kind of product, and how many there are
        (c.d_model, queries): 2 * c.num_layers,
        (c.d_model, c.num_kv_heads * c.head_dim): 2 * c.num_layers,
        (c.d_model, c.d_ff): (3 if c.activation == "swiglu" else 2) * c.num_layers,
        (c.d_model, c.vocab_size): 1,
    }
    total = seconds = 0.0
    for (inputs, outputs), count in shapes.items():
        flops = 2.0 * rows * inputs * outputs
        total += count * flops
        seconds += count * flops / _rate(rows, inputs, outputs, device)
    return total / seconds


def _rate(rows: int, inputs: int, outputs: int, device: Device) -> float:
    """Operations a second of a product and of those of its backward pass, as a step computes them."""
    x, weight, by_output = (
        torch.ones(shape, device=device.torch_device, dtype=device.dtype)
        for shape in ((rows, inputs), (outputs, inputs), (rows, outputs))
    )
    multiply = fast_product if has_fast_product(x, weight) else F.linear
    seconds = _best_time(lambda: multiply(x, weight), device)
    seconds += _best_time(lambda: multiply(by_output, weight.t()), device)
    seconds += _best_time(lambda: by_output.t() @ x, device)
    return 6.0 * rows * inputs * outputs / seconds


def _best_time(multiply: Callable[[], Tensor], device: Device) -> float:
    """Seconds of a product: the least of several measurements."""
    best, begin = float("inf"), time.perf_counter()
    for repeat in range(20):
        start = time.perf_counter()
        multiply()
        _wait_for(device)
        if repeat:  # the first warms up
            best = min(best, time.perf_counter() - start)
            if time.perf_counter() - begin > _SECONDS:
                break
    return best


def measure_steps(settings: TrainSettings, config: ModelConfig, device: Device) -> MeasuredSteps:
    """Take a few real steps of the run, on random tokens, and discard the model.

    Accumulated passes are equal: two are measured, and the time of the others is computed from the second.
    """
    o = settings.optimization
    torch.manual_seed(o.seed)
    model = Transformer(config)
    add_adapters(model, settings.lora)
    model = model.to(device.torch_device).train()
    apply_recipe(model, o, end_of_text_id=0)
    optimizer = build_optimizer(
        model,
        learning_rate=1e-6,
        betas=o.betas,
        weight_decay=o.weight_decay,
        momentum=o.momentum,
        name=o.optimizer,
    )
    training_loss = TrainingLoss(model)
    if settings.machine.compile:
        training_loss.compile()
    passes = settings.total_batch_size // o.batch_size
    shape = (o.batch_size, config.context_length + 1)
    seconds: list[float] = []
    for step in range(_WARMUP_STEPS + _STEPS):
        tokens = torch.randint(config.vocab_size, shape).to(device.torch_device)
        taken: list[float] = []
        for _ in range(min(2, passes)):
            begin = time.perf_counter()
            with device.autocast():
                loss, _ = training_loss(tokens[:, :-1], tokens[:, 1:], scale=1 / tokens[:, 1:].numel(), z_loss=o.z_loss)
            loss.backward()
            _wait_for(device)
            taken.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        nn.utils.clip_grad_norm_(model.parameters(), o.clip_grad_norm or float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        _wait_for(device)
        if step >= _WARMUP_STEPS:
            seconds.append(taken[-1] * (passes - len(taken)) + sum(taken) + time.perf_counter() - begin)
    on_cuda = device.torch_device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(device.torch_device) if on_cuda else peak_memory()
    return MeasuredSteps(statistics.median(seconds), peak)


def _wait_for(device: Device) -> None:
    """GPU calls are asynchronous: wait for the queued work."""
    if device.torch_device.type == "cuda":
        torch.cuda.synchronize(device.torch_device)
    elif device.torch_device.type == "mps":
        torch.mps.synchronize()
