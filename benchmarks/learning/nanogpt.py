"""The run of nanoGPT's recipe."""

import numpy as np
import torch

from benchmarks.learning import shape
from benchmarks.learning.curves import Curve
from benchmarks.learning.watch import EvaluatedModel, Watch
from benchmarks.peers.nanogpt import GPT, GPTConfig, build_optimizer, train_step
from trainer.components.schedule import learning_rate
from trainer.tokens.dataset import TrainingData

# nanoGPT's own settings for a model of this kind: config/train_shakespeare_char.py, without dropout, as its README has
# it for CPUs; what that leaves open are train.py's defaults.
BATCH_SIZE = 12
_PEAK, _MIN_RATIO, _WARMUP_STEPS = 1e-3, 0.1, 100
_BETAS, _WEIGHT_DECAY = (0.9, 0.99), 0.1


def train(data: TrainingData, steps: int, evaluations: int) -> Curve:
    """Train a GPT-2 as nanoGPT does, on windows at random places."""
    torch.manual_seed(1337)
    model = GPT(GPTConfig(shape.VOCAB_SIZE, shape.CONTEXT_LENGTH, shape.NUM_LAYERS, shape.NUM_HEADS, shape.D_MODEL))
    optimizer = build_optimizer(model, learning_rate=_PEAK, betas=_BETAS, weight_decay=_WEIGHT_DECAY)
    tokens = torch.from_numpy(np.asarray(data.train.tokens, np.int64))
    watch = Watch(
        data,
        EvaluatedModel(model.hidden, model.wte.weight),
        steps=steps,
        evaluations=evaluations,
        tokens_per_step=BATCH_SIZE * shape.CONTEXT_LENGTH,
    )
    watch.start()
    for step in range(steps):
        rate = learning_rate(
            step, peak=_PEAK, min_ratio=_MIN_RATIO, warmup_steps=min(_WARMUP_STEPS, steps), max_steps=steps
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(tokens) - shape.CONTEXT_LENGTH, (BATCH_SIZE,)).tolist()
        windows = torch.stack([tokens[start : start + shape.CONTEXT_LENGTH + 1] for start in starts])
        train_step(model, optimizer, windows[:, :-1], windows[:, 1:])
        watch.after(step + 1)
    return Curve("nanoGPT", sum(parameter.numel() for parameter in model.parameters()), watch.points)
