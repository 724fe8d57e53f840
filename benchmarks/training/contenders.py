"""The trainers, each as a function that takes one step, of the shape that CS336 trains on TinyStories."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.peers import nanogpt
from benchmarks.training import products
from benchmarks.training.shape import CONTEXT, D_FF, HEADS, LAYERS, VOCAB_SIZE, WIDTH
from trainer.settings.train import (
    CheckpointSettings,
    MachineSettings,
    ModelSettings,
    OptimizationSettings,
    TrainSettings,
    WatchSettings,
)
from trainer.training.loop import training_steps
from trainer.training.run import prepare_run
from trainer.training.trainer import Trainer

_NEVER_ENDING = 1_000_000


class Case(NamedTuple):
    """What is measured.

    Attributes:
        batch: Windows of a step.
        compiled: With torch.compile.
        dtype: Of products: "float32" or "bfloat16".
    """

    batch: int
    compiled: bool
    dtype: str

    def autocast(self) -> AbstractContextManager[object]:
        """What the peers' forward passes run in, as with nanoGPT's `dtype` and transformers' `bf16`."""
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.dtype == "bfloat16")


class Contender(NamedTuple):
    """A trainer that is ready.

    Attributes:
        step: Takes one step.
        flops_per_token: Of its matrix products, forward and backward.
    """

    step: Callable[[], object]
    flops_per_token: int


def our_settings(folder: Path, case: Case, max_steps: int = _NEVER_ENDING) -> TrainSettings:
    """A run of this shape over the token files, without evaluation and samples."""
    return TrainSettings(
        data=folder,
        output=folder.parent / f"run-{case.batch}-{case.compiled}-{max_steps}",
        model=ModelSettings(
            d_model=WIDTH, num_layers=LAYERS, num_heads=HEADS, d_ff=D_FF, context_length=CONTEXT, tie_embeddings=False
        ),
        optimization=OptimizationSettings(max_steps=max_steps, batch_size=case.batch),
        watch=WatchSettings(eval_interval=0, sample_interval=0),
        checkpoints=CheckpointSettings(checkpoint_interval=0, overwrite=True),
        machine=MachineSettings(device="cpu", dtype=case.dtype, compile=case.compiled),
    )


def ownlm(folder: Path, case: Case) -> Contender:
    """The product's own loop: data, schedule, loss, clipping, the guard and AdamW."""
    trainer = Trainer(prepare_run(our_settings(folder, case)))
    steps = training_steps(
        trainer.model,
        trainer.optimizer,
        trainer.run.windows,
        trainer.settings,
        trainer.run.device,
        state=trainer.state,
        loss_function=trainer.loss_function,
    )
    return Contender(lambda: next(steps), flops_per_token(trainer.model, tied=False))


def transformers_llama(_folder: Path, case: Case) -> Contender:
    """Hugging Face's Llama with its own loss, AdamW fused, and clipping as its Trainer does."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=D_FF,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=False,
            use_cache=False,
        )
    )
    if case.compiled:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> float:
        inputs, _ = _batch(case.batch)
        with case.autocast():
            loss = model(input_ids=inputs, labels=inputs).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return Contender(step, flops_per_token(model, tied=False))


def nanogpt_style(_folder: Path, case: Case) -> Contender:
    """A GPT-2 of this width and depth in nanoGPT's loop; its d_ff is 4 times the width."""
    model = nanogpt.GPT(nanogpt.GPTConfig(VOCAB_SIZE, CONTEXT, LAYERS, HEADS, WIDTH))
    if case.compiled:
        model.compile()
    optimizer = nanogpt.build_optimizer(model, learning_rate=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def step() -> float:
        return nanogpt.train_step(model, optimizer, *_batch(case.batch), context=case.autocast()).item()

    return Contender(step, flops_per_token(model, tied=True))


def torch_products(_folder: Path, case: Case) -> Contender:
    """A step's matrix products alone, by `torch.mm`."""
    return Contender(products.products(case.batch, onednn=False, dtype=case.dtype), products.FLOPS_PER_TOKEN)


def fast_products(_folder: Path, case: Case) -> Contender:
    """A step's matrix products alone, by oneDNN where ours are."""
    return Contender(products.products(case.batch, onednn=True, dtype=case.dtype), products.FLOPS_PER_TOKEN)


CONTENDERS: dict[str, Callable[[Path, Case], Contender]] = {
    "ownlm": ownlm,
    "transformers": transformers_llama,
    "nanoGPT-style": nanogpt_style,
    # The same once more with our setting of the allocator, which their users do not have.
    "transformers, memory kept": transformers_llama,
    "nanoGPT-style, memory kept": nanogpt_style,
    "products alone, torch.mm": torch_products,
    "products alone, oneDNN": fast_products,
}


PRODUCTS = ("products alone, torch.mm", "products alone, oneDNN")


def keeps_memory(name: str) -> bool:
    """Whether this contender runs with `keep_freed_memory`."""
    return name == "ownlm" or name.endswith("memory kept") or name in PRODUCTS


def _batch(size: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCAB_SIZE, (size, CONTEXT + 1))
    return tokens[:, :-1], tokens[:, 1:]


def flops_per_token(model: nn.Module, *, tied: bool) -> int:
    """Three products of two operations for each weight of a linear layer, and for attention over all the context.

    Attention counts in full, though half of it is masked, as in PaLM's appendix B (arXiv 2204.02311).
    """
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    return 6 * (weights + (VOCAB_SIZE * WIDTH if tied else 0)) + 12 * LAYERS * WIDTH * CONTEXT
