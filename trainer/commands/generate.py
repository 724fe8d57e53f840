"""`generate`: a model's text in the terminal."""

import secrets
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from cyclopts import Parameter


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    """How to continue the prompt; what is not given comes from the model folder's generation_config.json."""

    max_tokens: int = 256
    """The most tokens to write; it ends earlier where the model ends its text or its context is full."""

    temperature: float | None = None
    """0 always takes the likeliest token; around 0.8 is lively and coherent; above 1 gets wild."""

    top_p: float | None = None
    """Draw only from the likeliest tokens that together have this probability; 0.95 cuts off nonsense, 1 is off."""

    top_k: int | None = None
    """Draw only from this many of the likeliest tokens; 0 is off."""

    seed: int | None = None
    """The same seed gives the same text. Default: another one each time."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`: the first GPU that works, else the CPU."""


def generate(model: Path, prompt: str = "", *, settings: GenerateSettings = GenerateSettings()) -> None:
    """Continue a prompt with a trained model, as it is written.

    Args:
        model: A model folder: runs/first/model, or any of a run's checkpoints.
        prompt: What the text begins with. Default: begin as documents begin.
        settings: How to continue it.
    """
    from trainer.evaluation.sampling import stream_text

    seed = secrets.randbits(32) if settings.seed is None else settings.seed
    for text in stream_text(model, prompt, **asdict(settings) | {"seed": seed}):
        sys.stdout.write(text)
        sys.stdout.flush()
    sys.stdout.write("\n")
