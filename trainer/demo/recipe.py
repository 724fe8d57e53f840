"""The demo's settings: a small model of the embedded stories, trained in two and a half minutes on two CPU cores."""

from pathlib import Path

from trainer.settings.train import CheckpointSettings, ModelSettings, OptimizationSettings, TrainSettings, WatchSettings

CORPUS_BYTES = 10_000_000
VOCAB_SIZE = 1_536
VALIDATION_FRACTION = 0.01
SAMPLE_PROMPT = "Once upon a time"

CONVERSATIONS = 10_000
HELD_OUT_STORIES = 300
CHAT_CONTEXT = 384
"""A story with all questions about it, which the stories' own context has no room for; 98 in 100 fit."""


def training_settings(data: Path, output: Path) -> TrainSettings:
    """The demo's training run.

    Args:
        data: Folder of the token files.
        output: Folder of the run.
    """
    return TrainSettings(
        data=data,
        output=output,
        # With plain random weights, or larger batches, names change within a story (docs/lab/log.md).
        model=ModelSettings(
            d_model=128,
            num_layers=4,
            num_heads=4,
            context_length=256,
            qk_norm=True,
            rope_theta=100_000,
            initialization="mimetic",
            initializer_range=0.06,
        ),
        optimization=OptimizationSettings(
            max_steps=3_600,
            batch_size=2,
            learning_rate=3e-3,
            min_learning_rate_ratio=0.0,
            warmup_steps=100,
            betas=(0.9, 0.99),
        ),
        # The grammar's options are equally likely, so a low temperature keeps them all and removes most errors.
        watch=WatchSettings(
            temperature=0.4,
            top_p=0.9,
            log_interval=50,
            eval_interval=600,
            eval_tokens=20_000,
            sample_interval=600,
            sample_prompt=SAMPLE_PROMPT,
        ),
        checkpoints=CheckpointSettings(checkpoint_interval=600, keep=1),
    )


def chat_settings(data: Path, output: Path) -> TrainSettings:
    """The run that teaches the demo's model to answer questions about stories.

    Args:
        data: Folder of the token files.
        output: Folder of the run.
    """
    return TrainSettings(
        data=data,
        output=output,
        optimization=OptimizationSettings(
            max_steps=2_500,
            batch_size=4,
            learning_rate=1e-3,
            min_learning_rate_ratio=0.0,
            warmup_steps=50,
            betas=(0.9, 0.99),
        ),
        watch=WatchSettings(log_interval=50, eval_interval=600, sample_interval=0),
        checkpoints=CheckpointSettings(checkpoint_interval=600, keep=1),
    )
