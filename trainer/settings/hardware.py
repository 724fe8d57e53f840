"""The options of `estimate` that describe another machine than the one it runs on."""

from dataclasses import dataclass

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.fields import Settings, setting
from trainer.text.sizes import parse_limit


@Parameter(name="*", group=Group("Another machine: what the run would take there", sort_key=8))
@dataclass(frozen=True, kw_only=True)
class HardwareSettings(Settings):
    """A machine by its figures; what is not given is that of this one."""

    machine: str | None = None
    """A GPU by name, with the memory and the peak rate of its data sheet: a100-40g, a100-80g, b200, h100, h200, l4,
    rtx-2060, rtx-3090, rtx-4090, rtx-5090, t4, v100-16g or v100-32g. The options below take precedence."""

    memory: str | None = None
    """Memory of one device, such as 80G or a number of bytes; units are powers of 1024, as nvidia-smi counts."""

    peak_flops: float | None = setting(None, minimum=1)
    """Operations a second that a device reaches at most in matrix products of the precision of --dtype, such as
    19.5e12: the data sheet's figure without sparsity."""

    utilization: float | None = None
    """Share of the peak that training reaches (MFU), above 0 and at most 1. Default: 0.4 on GPUs; on CPUs
    computed from the model."""

    devices: int = setting(1, minimum=1)
    """How many such devices train together, one process each (--parallel); what they exchange is not counted."""

    price_per_hour: float | None = setting(None, minimum=0)
    """Dollars for an hour of one device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_limit(self.memory)
        if self.utilization is not None and not 0 < self.utilization <= 1:
            raise UsageError(f"--utilization must be above 0 and at most 1, as in 0.5 for 50 %; got {self.utilization}")

    @property
    def memory_bytes(self) -> int | None:
        """The memory of a device as a number; None if it is not set."""
        return parse_limit(self.memory)

    @property
    def describes(self) -> bool:
        """Whether any figure of another machine is given."""
        return any(figure is not None for figure in (self.machine, self.memory, self.peak_flops, self.utilization))
