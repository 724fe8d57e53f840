"""Loss by position: how much a model gains from what comes before a token."""

from collections.abc import Iterable

import numpy as np

from shared.lm import Transformer
from trainer.compute.device import Device
from trainer.evaluation.scoring import Floats, score_tokens
from trainer.evaluation.windows import Window, batches

_WINDOWS_AT_ONCE = 16


def score_positions(
    model: Transformer, windows: Iterable[Window], length: int, *, device: Device
) -> tuple[Floats, Floats]:
    """Sums over windows for each position in them.

    Args:
        model: The model; it is put into evaluation mode.
        windows: The windows.
        length: The most inputs of a window.
        device: Where the model is.

    Returns:
        Negative log-likelihood in nats, and the number of scored tokens; both [length].
    """
    model.eval()
    sums, counts = np.zeros(length), np.zeros(length)
    for batch in batches(windows, batch_size=_WINDOWS_AT_ONCE, batch_tokens=0):
        scores = score_tokens(model, batch, device=device)
        sums += np.bincount(scores.positions, scores.nats, length)
        counts += np.bincount(scores.positions, minlength=length)
    return sums, counts
