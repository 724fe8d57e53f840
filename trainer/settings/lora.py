"""Settings of low-rank adapters (LoRA)."""

from dataclasses import dataclass

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.fields import Settings, option, setting

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The layers that may have adapters, by Hugging Face's names."""

_ALL = "all-linear"
_ALPHA = 32.0


@Parameter(name="*", group=Group("LoRA: train small matrices beside the frozen weights of --init", sort_key=3.2))
@dataclass(frozen=True, kw_only=True)
class LoraSettings(Settings):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685)."""

    lora_rank: int | None = setting(None, minimum=1)
    """Freeze the weights of --init, and train beside each chosen matrix the product of two small ones of this rank: a
    fraction of the memory for gradients and optimizer, and checkpoints without its state. 8 to 64 is usual; more for
    more text. The best learning rate is about ten times that of training all weights."""

    lora_alpha: float = setting(_ALPHA, minimum=0)
    """The product counts alpha / rank times. With one alpha for all ranks the best learning rate hardly depends on the
    rank (Schulman et al. 2025, "LoRA Without Regret", which uses 32)."""

    lora_targets: str = _ALL
    """The layers that have adapters, with commas between: q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj.
    Default: all-linear, all of them in every block, without which LoRA learns less than full training (Dettmers et al.
    2023, "QLoRA", arXiv 2305.14314, section 4); q_proj,v_proj are those of the first paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lora_rank is None:
            for name, default in (("lora_alpha", _ALPHA), ("lora_targets", _ALL)):
                if getattr(self, name) != default:
                    raise UsageError(f"{option(name)} is an option of LoRA: give --lora-rank as well")
        if self.lora_alpha == 0:
            raise UsageError("--lora-alpha must be above 0; got 0")
        wrong = [name for name in self._names if name not in LINEAR_LAYERS]
        if wrong:
            raise UsageError(
                f"--lora-targets must be {_ALL}, or some of {','.join(LINEAR_LAYERS)} with commas between; "
                f"got {wrong[0]!r}"
            )

    @property
    def all_linear(self) -> bool:
        """Whether all linear layers that a model has are adapted."""
        return self.lora_targets.strip() == _ALL

    @property
    def _names(self) -> list[str]:
        return list(LINEAR_LAYERS) if self.all_linear else [name.strip() for name in self.lora_targets.split(",")]

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the layers, in the order of a block; without LoRA none."""
        return () if self.lora_rank is None else tuple(name for name in LINEAR_LAYERS if name in self._names)

    @property
    def scale(self) -> float:
        """What the product of an adapter's matrices counts."""
        return self.lora_alpha / (self.lora_rank or 1)


ALL_WEIGHTS = LoraSettings()
"""Without LoRA."""
