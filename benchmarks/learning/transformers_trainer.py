"""The run of transformers' Trainer with a Llama."""

import tempfile
from typing import Any

import numpy as np
import torch

from benchmarks.learning import shape
from benchmarks.learning.curves import Curve
from benchmarks.learning.watch import EvaluatedModel, Watch
from trainer.tokens.dataset import TrainingData

BATCH_SIZE = 8  # Trainer's default


def train(data: TrainingData, steps: int, evaluations: int, *, tuned: bool) -> Curve:
    """Train a Llama with `transformers.Trainer` on consecutive windows in shuffled order, as its run_clm.py does.

    Args:
        data: The tokens.
        steps: Of the optimizer.
        evaluations: On the way.
        tuned: With a learning rate of 2e-3 and 100 steps of warm-up; else with Trainer's default of 5e-5, which is
            meant for finished models. All else is its default: AdamW, no decay, linear schedule to 0, clipping at 1.
    """
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    config = LlamaConfig(
        vocab_size=shape.VOCAB_SIZE,
        hidden_size=shape.D_MODEL,
        intermediate_size=shape.D_FF,
        num_hidden_layers=shape.NUM_LAYERS,
        num_attention_heads=shape.NUM_HEADS,
        max_position_embeddings=shape.CONTEXT_LENGTH,
        tie_word_embeddings=True,
    )
    torch.manual_seed(42)
    model = LlamaForCausalLM(config)
    count = len(data.train.tokens) // shape.CONTEXT_LENGTH
    rows = np.asarray(data.train.tokens[: count * shape.CONTEXT_LENGTH], np.int64).reshape(count, -1)
    examples = [{"input_ids": row, "labels": row} for row in torch.from_numpy(rows)]
    watch = Watch(
        data,
        EvaluatedModel(lambda tokens: model.model(input_ids=tokens).last_hidden_state, model.lm_head.weight),
        steps=steps,
        evaluations=evaluations,
        tokens_per_step=BATCH_SIZE * shape.CONTEXT_LENGTH,
    )

    class OnTheWay(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            watch.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            watch.after(state.global_step)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        if tuned:
            arguments.learning_rate, arguments.warmup_steps = 2e-3, min(100, steps // 2)
        Trainer(model=model, args=arguments, train_dataset=examples, callbacks=[OnTheWay()]).train()
    name = "transformers, 2e-3" if tuned else "transformers, default rate"
    return Curve(name, model.num_parameters(), watch.points)
