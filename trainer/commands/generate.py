"""`generate`: continue a prompt in the terminal."""

import secrets
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from cyclopts import Parameter


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    """Sampling; values that are not given come from the model folder's generation_config.json."""

    max_tokens: int = 256
    """The most tokens to write; fewer where the model ends its text or its context is full."""

    temperature: float | None = None
    """0 always takes the most likely token; around 0.8 is varied and coherent; above 1 loses coherence."""

    top_p: float | None = None
    """Sample only from the most likely tokens whose probabilities sum to this; 1 disables it, 0.95 cuts off errors."""

    top_k: int | None = None
    """Sample only from this many of the most likely tokens; 0 disables it."""

    seed: int | None = None
    """The same seed gives the same text. Default: a new one each time."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`: the first GPU that works, else the CPU."""


def generate(model: Path, prompt: str = "", *, settings: GenerateSettings = GenerateSettings()) -> None:
    """Continue a prompt with a trained model, and print the text as it is generated.

    Args:
        model: A model folder: runs/first/model, or any of a run's checkpoints.
        prompt: What the text begins with. Default: the beginning of a document.
        settings: How to continue it.
    """
    from trainer.compute.threads import prepare_threads
    from trainer.evaluation.sampling import stream_text

    prepare_threads(None)

    seed = secrets.randbits(32) if settings.seed is None else settings.seed
    for text in stream_text(model, prompt, **asdict(settings) | {"seed": seed}):
        sys.stdout.write(text)
        sys.stdout.flush()
    sys.stdout.write("\n")
