"""How fast this device trains: from the rate of its matrix products, or from a few real steps."""

import statistics
import time
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import nn

from shared.lm import ModelConfig
from shared.lm.linear import fast_product, has_fast_product
from shared.system.memory import peak_memory
from trainer.components.loss import TrainingLoss
from trainer.components.model import apply_recipe, new_model
from trainer.components.optimizer import build_optimizer
from trainer.compute.device import Device
from trainer.settings.train import TrainSettings

_UTILIZATION_ON_CPU = {torch.float32: 0.7, torch.bfloat16: 0.5}
_UTILIZATION_ON_GPU = 0.4

_ROWS = 2048  # of a measured product at most: more are not faster
_SECONDS = 0.04  # for each shape
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


def usual_utilization(device: Device) -> float:
    """The share of the rate of its matrix products that a training step reaches; small models reach less.

    CPU: docs/lab/log.md; in bfloat16 less, since products are faster and all else is not. GPUs: what nanochat and llm.c
    report for dense models of 100 million parameters and more.
    """
    return _UTILIZATION_ON_CPU[device.dtype] if device.torch_device.type == "cpu" else _UTILIZATION_ON_GPU


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
    """Operations a second of one product: the best of several measurements."""
    left = torch.ones(rows, inputs, device=device.torch_device, dtype=device.dtype)
    right = torch.ones(outputs, inputs, device=device.torch_device, dtype=device.dtype)
    multiply = fast_product if has_fast_product(left, right) else F.linear
    best, begin = float("inf"), time.perf_counter()
    for repeat in range(20):
        start = time.perf_counter()
        multiply(left, right)
        _wait_for(device)
        if repeat:  # the first warms up
            best = min(best, time.perf_counter() - start)
            if time.perf_counter() - begin > _SECONDS:
                break
    return 2.0 * rows * inputs * outputs / best


def measure_steps(settings: TrainSettings, config: ModelConfig, device: Device) -> MeasuredSteps:
    """Take a few real steps of the run, on random tokens, and discard the model.

    Accumulated passes are equal: two are measured, and the time of the others is computed from the second.
    """
    o = settings.optimization
    model = new_model(settings.model, config.vocab_size, o.seed).to(device.torch_device).train()
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
