"""The compiled operators of a training step against torch's own in float64."""

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.lm import ModelConfig, Transformer
from shared.lm.attention_operator import causal_attention
from shared.lm.kernel_calls import uses_kernels
from shared.lm.kv_cache import KVCache
from shared.lm.norm import RMSNorm
from shared.lm.operators import cross_entropy, rms_norm, rotate_heads, swiglu

TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
DTYPES = list(TOLERANCES)


def distance(found: Tensor, expected: Tensor) -> float:
    """Of the whole tensors, relative."""
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm().clamp(min=1e-30))


def check(
    ours: Callable[..., Tensor], torchs: Callable[..., Tensor], dtype: torch.dtype, *shapes: tuple[int, ...]
) -> None:
    """Values and gradients are those of torch in float64."""
    torch.manual_seed(0)
    inputs = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    found, expected = ours(*inputs), torchs(*exact)
    assert found.dtype == dtype
    assert distance(found, expected) < TOLERANCES[dtype]
    by_output = torch.randn(expected.shape).to(dtype)
    gradients = torch.autograd.grad(found, inputs, by_output)
    for gradient, right in zip(gradients, torch.autograd.grad(expected, exact, by_output.double()), strict=True):
        assert distance(gradient, right) < TOLERANCES[dtype]


@pytest.mark.parametrize("size", [3, 7, 16, 100, 512])
@pytest.mark.parametrize("rows", [1, 63, 200])
@pytest.mark.parametrize(("dtype", "result"), [(DTYPES[0], DTYPES[0]), (DTYPES[0], DTYPES[1]), (DTYPES[1], DTYPES[1])])
def test_rms_norm(size: int, rows: int, dtype: torch.dtype, result: torch.dtype) -> None:
    torch.manual_seed(0)
    x, gain = torch.randn(rows, size).to(dtype).requires_grad_(), torch.randn(size).requires_grad_()
    exact, exact_gain = (each.detach().double().requires_grad_() for each in (x, gain))
    found, expected = rms_norm(x, gain, 1e-2, result), F.rms_norm(exact, (size,), exact_gain, 1e-2)
    assert found.dtype == result
    assert distance(found, expected) < TOLERANCES[result]
    by_output = torch.randn(rows, size).to(result)
    by_x, by_gain = torch.autograd.grad(found, (x, gain), by_output)
    right_x, right_gain = torch.autograd.grad(expected, (exact, exact_gain), by_output.double())
    assert distance(by_x, right_x) < TOLERANCES[dtype]
    assert distance(by_gain, right_gain) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 15, 8_192, 40_001])
def test_swiglu(size: int, dtype: torch.dtype) -> None:
    check(swiglu, lambda gate, up: F.silu(gate) * up, dtype, (size,), (size,))


def test_swiglu_of_large_numbers() -> None:
    gate = torch.tensor([-1e4, -89.0, 0.0, 89.0, 1e4], requires_grad=True)
    inner = swiglu(gate, torch.ones(5))
    inner.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(inner, torch.tensor([0.0, 0.0, 0.0, 89.0, 1e4]))
    torch.testing.assert_close(gate.grad, torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [2, 10, 32, 64, 128])
def test_rotation(head_dim: int, dtype: torch.dtype) -> None:
    """Of heads as a projection writes them, those of a token side by side."""
    cos, sin = torch.randn(2, 33, head_dim // 2, dtype=torch.float64)

    def heads(x: Tensor) -> Tensor:
        return x.view(2, 33, 3, head_dim).transpose(1, 2)

    def expected(x: Tensor) -> Tensor:
        first, second = heads(x).chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    check(lambda x: rotate_heads(heads(x), cos.float(), sin.float()), expected, dtype, (2, 33, 3 * head_dim))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("tokens", "head_dim"), [(5, 8), (16, 32), (33, 24), (130, 64), (300, 16)])
def test_causal_attention(tokens: int, head_dim: int, num_kv_heads: int, dtype: torch.dtype) -> None:
    def expected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(2)

    keys = (2, num_kv_heads, tokens, head_dim)
    check(causal_attention, expected, dtype, (2, 4, tokens, head_dim), keys, keys)


def test_one_token_attends_to_itself() -> None:
    q, k, v = (torch.randn(1, 2, 1, 8).requires_grad_() for _ in range(3))
    found = causal_attention(q, k, v)
    torch.testing.assert_close(found, v.transpose(1, 2).flatten(2))
    for gradient in torch.autograd.grad(found.sum(), (q, k)):
        torch.testing.assert_close(gradient, torch.zeros(1, 2, 1, 8))


def test_attention_in_several_parts_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 4, 50, 16).requires_grad_() for _ in range(3))
    whole = causal_attention(q, k, v)
    gradients = torch.autograd.grad(whole.sum(), (q, k, v))
    with patch("shared.lm.attention_operator._BYTES", 5 * 50 * 50 * 4):
        parts = causal_attention(q, k, v)
        assert torch.equal(parts, whole)
        for found, expected in zip(torch.autograd.grad(parts.sum(), (q, k, v)), gradients, strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [1, 15, 16, 1_000])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_cross_entropy(vocab_size: int, z_loss: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(40, vocab_size).to(dtype), torch.randint(vocab_size, (40, 1))
    counts = torch.rand(40, 1)
    counts[3] = 0
    exact = logits.double().requires_grad_()
    log_denominators = exact.logsumexp(1, keepdim=True)
    each = log_denominators - exact.gather(1, targets) + z_loss * log_denominators.square()
    (gradient,) = torch.autograd.grad((each * counts).sum(), exact)
    found_targets, found = cross_entropy(logits, targets, counts, z_loss, True)
    assert distance(found_targets, exact.gather(1, targets)) < 1e-7
    assert (found - log_denominators.detach()).abs().max() < 1e-6
    assert (logits.double() - gradient).norm() <= TOLERANCES[dtype] * gradient.norm() + 1e-7


def test_without_the_gradient_logits_stay() -> None:
    logits = torch.randn(3, 20)
    before = logits.clone()
    cross_entropy(logits, torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1), 0.0, False)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_seen(wrong: float) -> None:
    """So that a step that diverged is noticed, wherever in a vector the number stands."""
    for place in (0, 13, 37):
        numbers = torch.randn(2, 40)
        numbers[1, place] = wrong
        _, log_denominators = cross_entropy(
            numbers.clone(), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1), 0.0, False
        )
        assert log_denominators.isfinite().tolist() == [[True], [False]]
        normed = rms_norm(numbers.requires_grad_(), torch.ones(40), 1e-5, torch.bfloat16)
        assert not normed[1].isfinite().all()
        q, v = numbers.detach().view(1, 1, 2, 40).requires_grad_(), torch.randn(1, 1, 2, 40)
        assert not causal_attention(q, v, v)[0, 1].isfinite().all()


def test_kernels_are_for_training_on_a_cpu() -> None:
    x = torch.ones(2, requires_grad=True)
    assert uses_kernels(x)
    assert uses_kernels(x, torch.ones(2, dtype=torch.bfloat16))
    assert not uses_kernels(torch.ones(2))
    assert not uses_kernels(x.double())
    assert not uses_kernels(torch.ones(2, device="meta", requires_grad=True))
    with torch.no_grad():
        assert not uses_kernels(x)


def test_only_norms_before_products_are_narrow_under_autocast() -> None:
    x = torch.randn(2, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert RMSNorm(16, 1e-5, for_products=True)(x).dtype == torch.bfloat16
        assert RMSNorm(16, 1e-5)(x).dtype == torch.float32
    assert RMSNorm(16, 1e-5, for_products=True)(x).dtype == torch.float32


@pytest.mark.parametrize("changes", [{}, {"norm": "post"}, {"qk_norm": True, "num_kv_heads": 2}, {"position": "none"}])
def test_a_model_has_the_gradients_of_torchs_operators(changes: dict[str, object]) -> None:
    """In float32, to 1e-6 of each weight's gradient, as far as those of float32 go."""
    shape = {"d_model": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 4, "head_dim": 16, "d_ff": 96}
    config = ModelConfig(vocab_size=50, context_length=40, tie_embeddings=False, **shape | changes)  # type: ignore
    torch.manual_seed(0)
    model, tokens = Transformer(config), torch.randint(50, (3, 40))

    def gradients(model: nn.Module) -> list[Tensor]:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
        return list(torch.autograd.grad(loss, list(model.parameters())))

    ours = gradients(model)
    exact = gradients(model.double())
    for found, expected in zip(ours, exact, strict=True):
        assert distance(found, expected) < 2e-6


def test_a_cache_works_where_gradients_are_on() -> None:
    config = ModelConfig(
        vocab_size=50, context_length=8, d_model=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, d_ff=48
    )
    model, tokens = Transformer(config), torch.arange(6).unsqueeze(0)
    cache = KVCache(config, num_slots=1, max_length=8)
    for position in range(6):
        last = model.hidden(tokens[:, position : position + 1], cache, positions=torch.tensor([position]))
    torch.testing.assert_close(last, model.hidden(tokens)[:, -1:])


def test_two_threads_give_the_bits_of_one() -> None:
    torch.manual_seed(0)
    x, gain = torch.randn(1_000, 64, requires_grad=True), torch.randn(64, requires_grad=True)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            y = rms_norm(x, gain, 1e-5, torch.float32)
            results.append((y, *torch.autograd.grad(y.square().sum(), (x, gain))))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(map(torch.equal, result[:2], results[0][:2]))
        torch.testing.assert_close(result[2], results[0][2])
