"""What the learning rate does: SGD on a quadratic, the study of CS336 (assignment 1, section 4.2.1).

    python examples/sgd_toy.py --steps 10 100 400

The loss is the mean square of a 10 x 10 matrix, and step t (from 0) has the rate a / sqrt(t + 1). Its gradient is the
matrix / 50, so each step multiplies every weight by 1 - a / (50 sqrt(t + 1)):

- a = 1: slightly below 1 always. The loss decays slowly.
- a = 10: 0.8 at first. It decays faster.
- a = 100: -1, -0.41, -0.15, and 0 at the fourth step, since sqrt(4) = 2: the minimum, up to rounding.
- a = 1,000: -19 at first, and beyond -1 for 99 steps. The loss diverges, to 10^65 times its first value. Only because
  the rate decays does it fall after the hundredth step; after four hundred it is 0.
"""

import argparse
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.components.optimizer import build_optimizer, set_learning_rate

RATES = (1.0, 10.0, 100.0, 1_000.0)


class Quadratic(nn.Module):
    """The mean square of 100 weights, which are normal with a standard deviation of 5."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        # In float64, since the loss grows to 10^67, beyond float32.
        self.weight = nn.Parameter(5 * torch.randn((10, 10), dtype=torch.float64, generator=generator))

    def forward(self) -> Tensor:
        """Return the loss."""
        return (self.weight**2).mean()


def losses(rate: float, steps: int, seed: int = 0) -> list[float]:
    """The losses before each step and after the last.

    Args:
        rate: The learning rate of the first step.
        steps: How many steps.
        seed: Of the initial weights.
    """
    model = Quadratic(seed)
    optimizer = build_optimizer(model, name="sgd", learning_rate=rate, betas=(0.9, 0.95), weight_decay=0.0)
    found = []
    for step in range(steps):
        loss = model()
        found.append(loss.item())
        loss.backward()
        set_learning_rate(optimizer, rate / math.sqrt(step + 1))
        optimizer.step()
        optimizer.zero_grad()
    return [*found, model().item()]


def verdict(start: float, end: float) -> str:
    """What happened to the loss."""
    if not end <= start:  # NaN too
        return f"diverges, 10^{math.log10(end / start):.0f} times as high"
    return "reaches the minimum" if end < 1e-20 * start else f"decays to {100 * end / start:.2g} %"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each number of steps."""
    parser = argparse.ArgumentParser(description="SGD on a quadratic, with a rate that decays as 1/sqrt(t + 1).")
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 100], help="numbers of steps (default: 10 100)")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES), help="learning rates of the first step")
    options = parser.parse_args(arguments)
    if min(options.steps) < 1 or not all(0 < rate < math.inf for rate in options.rates):
        parser.error("--steps must be at least 1, and --rates above 0")
    for steps in options.steps:
        print(f"After {steps} steps:")
        for rate in options.rates:
            found = losses(rate, steps)
            print(f"  rate {rate:7g}: loss {found[0]:.4g} -> {found[-1]:.4g}, {verdict(found[0], found[-1])}")


if __name__ == "__main__":
    main()
