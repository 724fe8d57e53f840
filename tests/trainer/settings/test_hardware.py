"""Figures of machines that are not here."""

import pytest

from trainer.errors import UsageError
from trainer.settings.fields import option
from trainer.settings.hardware import HardwareSettings


@pytest.mark.parametrize(
    "hardware",
    [
        {"memory": "0"},
        {"memory": "-1G"},
        {"memory": "eighty"},
        {"memory": "infG"},
        {"memory": "nan"},
        {"peak_flops": 0.0},
        {"peak_flops": -1.0},
        {"peak_flops": float("inf")},
        {"peak_flops": float("nan")},
        {"utilization": 0.0},
        {"utilization": 2.0},
        {"utilization": -0.5},
        {"utilization": float("nan")},
        {"devices": 0},
        {"price_per_hour": -1.0},
        {"price_per_hour": float("inf")},
    ],
)
def test_figures_that_no_machine_has_are_refused(hardware: dict[str, object]) -> None:
    (name,) = hardware
    with pytest.raises(UsageError, match=f"{option(name)} must be|is not a size"):
        HardwareSettings(**hardware)


def test_units_are_powers_of_1024() -> None:
    assert HardwareSettings(memory="80G").memory_bytes == 80 << 30
    assert HardwareSettings(memory="80e9").memory_bytes == 80_000_000_000
    assert not HardwareSettings(devices=8, price_per_hour=2.0).describes
