"""A step in algebra, against the published answers of CS336's assignment 1 and a naive forward pass."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from shared.lm import ModelConfig
from shared.lm.accounting import count_parameters, forward_flops, optimizer_flops
from tests.shared.lm.test_accounting import configs
from trainer.estimate.algebra import Algebra, step_algebra
from trainer.estimate.gpt2 import gpt2_configs

XL = gpt2_configs()["xl"]


def evaluate(algebra: Algebra, formula: str, batch: int) -> int:
    """The formula as printed, by Python."""
    values = {name: value for name, (_, value) in algebra.symbols.items()}
    values["P"] = int(eval(algebra.parameters.formula, {}, values))
    return int(eval(formula, {}, values | {"B": batch}))


def test_gpt2_xl_has_the_published_answers() -> None:
    """Problem adamwAccounting: 14.45 B + 31.70 GiB, so 3 windows in 80 GiB, and 14 operations a parameter.

    Written out, with the same list of activations, in answers that students published: 4 [L (16 B T d + 2 B h T²) +
    B T d + 2 B T V] + 16 P, P = 2 V d + L (16 d² + 2 d) + d = 2,127,057,600.
    """
    found = step_algebra(XL, memory_bytes=80 << 30)
    v, t, layers, d, h = 50_257, 1_024, 48, 1_600, 25
    parameters = 2 * v * d + layers * (16 * d**2 + 2 * d) + d
    assert found.parameters.value == f"{parameters:,}" == "2,127,057,600"
    assert found.slope == 4 * (layers * (16 * t * d + 2 * h * t**2) + t * d + 2 * t * v)
    assert found.constant == 16 * parameters
    assert (round(found.slope / 2**30, 2), round(found.constant / 2**30, 2)) == (14.45, 31.70)
    assert found.largest_batch == 3
    operations = {line.name: line.value for line in found.operations}
    assert operations["forward pass"] == "4,513,336,524,800*B"
    assert operations["AdamW's update"] == f"{14 * parameters:,}"


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    found = step_algebra(XL, memory_bytes=34_032_921_600 + 5 * 15_517_753_344)
    assert found.largest_batch == 5
    assert replace(found, memory_bytes=found.memory_bytes - 1).largest_batch == 4
    assert replace(found, memory_bytes=1024).largest_batch == 0
    assert replace(found, memory_bytes=None).largest_batch is None


@pytest.mark.parametrize(("momentum", "values", "operations"), [(0.0, 0, 4), (0.9, 1, 6)])
def test_sgd_keeps_and_computes_less_than_adamw(momentum: float, values: int, operations: int) -> None:
    found = step_algebra(XL, "sgd", momentum=momentum)
    assert found.constant == (2 + values) * 4 * 2_127_057_600
    lines = {line.name: line for line in (*found.memory, *found.operations)}
    assert lines["optimizer state"].value == f"{values * 4 * 2_127_057_600:,}"
    assert lines["SGD's update"].value == f"{operations * 2_127_057_600:,}"
    assert optimizer_flops(XL, "sgd", momentum=momentum) == operations * 2_127_057_600
    assert "AdamW's update" not in lines


@settings(max_examples=25, deadline=None)
@given(configs())
def test_printed_formulas_count_what_the_model_has(config: ModelConfig) -> None:
    found = step_algebra(config)
    assert evaluate(found, found.parameters.formula, 1) == count_parameters(config).total
    lines = {line.name: line for line in (*found.memory, *found.operations)}
    assert evaluate(found, lines["forward pass"].formula, 3) == forward_flops(config, sequences=3).total
    assert evaluate(found, lines["AdamW's update"].formula, 1) == optimizer_flops(config)
    assert evaluate(found, lines["total"].formula, 3) == 3 * found.slope + found.constant
    assert evaluate(found, lines["activations"].formula, 1) == 4 * naive_activations(config)


def naive_activations(config: ModelConfig) -> int:
    """Numbers that a forward pass of one window makes, operator by operator, of those that the exercise lists."""
    c, made = config, 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal made
        made += tensor.numel()
        return tensor

    def project(x: Tensor, width: int) -> Tensor:
        return x @ torch.zeros(x.shape[-1], width)

    def heads(x: Tensor, number: int) -> Tensor:
        return x.view(c.context_length, number, c.head_dim).repeat_interleave(c.num_heads // number, 1).transpose(0, 1)

    stream = torch.zeros(c.context_length, c.d_model)
    for layer in range(c.num_layers):
        if c.norm != "none":
            count(stream / 1), count(stream / 1)  # before attention and before the feed-forward layer, or after them
        queries = count(project(stream, c.num_heads * c.head_dim))
        keys, values = (count(project(stream, c.num_kv_heads * c.head_dim)) for _ in range(2))
        if c.value_residual and layer:
            count(values + values)
        scores = count(heads(queries, c.num_heads) @ heads(keys, c.num_kv_heads).transpose(1, 2))
        mixed = count(count(scores.softmax(-1)) @ heads(values, c.num_kv_heads))
        count(project(mixed.transpose(0, 1).flatten(1), c.d_model))
        inner = count(project(stream, c.d_ff))
        active = count(torch.relu(inner) if c.activation == "relu2" else torch.nn.functional.silu(inner))
        count(project(count(active.square()) if c.activation == "relu2" else active, c.d_model))
    if c.norm == "pre":
        count(stream / 1)
    logits = count(project(stream, c.vocab_size))
    if c.logit_soft_cap:
        logits = count(logits.tanh())
    count(logits.log_softmax(-1))
    return made


@pytest.mark.parametrize("change", [{"num_kv_heads": 5}, {"head_dim": 32}, {"num_kv_heads": 1, "head_dim": 128}])
def test_widths_that_differ_have_symbols_of_their_own(change: dict[str, Any]) -> None:
    found = step_algebra(replace(XL, **change))
    assert {"q", "k"} & set(found.symbols)
    assert evaluate(found, found.parameters.formula, 1) == replace(XL, **change).num_parameters


def test_muon_has_one_value_of_state_for_its_matrices() -> None:
    adamw, muon = (step_algebra(XL, name) for name in ("adamw", "muon"))
    assert adamw.constant - muon.constant == 4 * 48 * 16 * 1600**2


def test_sgd_has_state_with_momentum_alone() -> None:
    adamw, plain, momentum = (
        step_algebra(XL),
        step_algebra(XL, "sgd"),
        step_algebra(XL, "sgd", momentum=0.9),
    )
    assert adamw.constant - plain.constant == 8 * XL.num_parameters
    assert momentum.constant - plain.constant == 4 * XL.num_parameters
    for found, rate in ((plain, 0.0), (momentum, 0.9)):
        operations = {line.name: line for line in found.operations}
        flops = optimizer_flops(XL, "sgd", momentum=rate)
        assert evaluate(found, operations["SGD's update"].formula, 1) == flops
