"""What the benchmark of learning reads off its curves."""

from benchmarks.learning.curves import Curve, Point
from benchmarks.learning.ours import points
from benchmarks.learning.tables import summary


def curve(name: str, *points: tuple[int, float, float]) -> Curve:
    return Curve(name, 5_000_000, [Point(tokens, seconds, 2 * bits, bits) for tokens, seconds, bits in points])


def test_time_to_a_loss_lies_between_the_evaluations_around_it() -> None:
    ours = curve("ours", (100, 10.0, 2.0), (200, 20.0, 1.0), (300, 30.0, 1.2))
    assert ours.seconds_to(1.5) == 15
    assert ours.seconds_to(1.0) == 20
    assert ours.seconds_to(2.5) == 10  # not known to be earlier
    assert ours.seconds_to(0.9) is None


def test_table_tells_the_share_of_a_peers_time() -> None:
    ours, peer = curve("ours", (100, 60.0, 2.0), (200, 120.0, 1.0)), curve("peer", (100, 180.0, 1.5))
    rows = summary([ours, peer]).splitlines()
    assert rows[2].startswith("| **ours** |")
    assert rows[2].endswith(" – |")
    assert rows[3].endswith(" 0.50 |")  # 90 of 180 seconds


def test_clock_of_ours_is_the_sum_of_its_steps() -> None:
    records = [
        {"step": 1, "tokens": 512, "loss": 8.0, "tokens_per_second": 256.0, "seconds": 2.0},
        {"step": 2, "tokens": 1024, "loss": 8.0, "tokens_per_second": 512.0, "seconds": 3.0},
        {"step": 2, "tokens": 1024, "validation_loss": 7.0, "bits_per_byte": 2.5, "seconds": 30.0},
        {"step": 2, "tokens": 1024, "sample": "Once", "seconds": 31.0},
        {"step": 3, "tokens": 1536, "loss": 7.0, "tokens_per_second": 512.0, "seconds": 32.0},
        {"step": 3, "tokens": 1536, "validation_loss": 6.0, "bits_per_byte": 2.0, "seconds": 60.0},
    ]
    assert points(records) == [Point(1024, 3.0, 7.0, 2.5), Point(1536, 4.0, 6.0, 2.0)]
