"""What ours is to reach, and whether it does."""

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.bpe.jobs import OURS, Measurement, Results
from benchmarks.report import Verdict

# Of text that grows to many times the common size: the share of the rate that is left, and the growth of memory.
_COMMON_MB = 200
_LINEAR, _FLAT = 0.8, 1.2


class Ahead(NamedTuple):
    """Ours is to be so many times as fast as a peer, or as each one that gives the same ids.

    A peer that was called only once in a process is taken by that call.
    """

    job: str
    discipline: str
    factor: float
    peer: str | None = None


class Limit(NamedTuple):
    """The seconds of these disciplines together are to stay below a limit."""

    job: str
    disciplines: tuple[str, ...]
    seconds: float


AHEAD = (
    *(Ahead(f"training {size}", "first", 3) for size in (32000, 10000)),
    *(Ahead(f"training {size}", "again", 4) for size in (32000, 10000)),
    Ahead("training stories", "first", 1),
    Ahead("documents", "first", 1.1),
    Ahead("documents", "again", 1),
    Ahead("documents", "first", 10, "tiktoken"),
    *(Ahead("string", discipline, factor) for discipline, factor in (("first", 1.1), ("again", 1))),
    Ahead("string", "first", 10, "tiktoken"),
    *(Ahead("batch", discipline, factor) for discipline, factor in (("first", 1.1), ("again", 1))),
    Ahead("batch", "first", 10, "tiktoken"),
    Ahead("stories", "first", 1.1),
    Ahead("stories", "again", 1),
    Ahead("short", "again", 1),
    *(Ahead(f"file {threads}", "first", 1.2) for threads in (1, 2)),
)
LIMITS = (
    Limit("short", ("again",), 15e-6),
    Limit("start", ("import",), 0.6),
    Limit("start from nothing", ("import", "open", "encode", "learn"), 40),
)


def judge(results: Results, *, quick: bool) -> list[Verdict]:
    """Hold the results against the targets; in short runs ours is just to be ahead, by whatever factor."""
    verdicts = [verdict for target in AHEAD for verdict in _judge_ahead(target, results, quick=quick)]
    verdicts += [_judge_limit(limit, results) for limit in LIMITS if limit.job in results]
    return [*verdicts, *_judge_memory(results), *_judge_scaling(results)]


def _judge_ahead(target: Ahead, results: Results, *, quick: bool) -> Iterator[Verdict]:
    measured = results.get(target.job, {})
    rates = {
        package: _rate(measurement, target.discipline)
        for package, measurement in measured.items()
        if measurement.seconds and package != OURS and measurement.equal is not False
        and target.peer in {None, package}
    }  # fmt: skip
    if not rates:
        return
    fastest = max(rates, key=rates.__getitem__)
    reached = _rate(measured[OURS], target.discipline) / rates[fastest]
    factor = min(1.0, target.factor) if quick else target.factor
    level = "level with" if factor == 1 else f"{factor:g} times"
    wanted = f"{target.job}, {target.discipline}: {level} {target.peer or 'the fastest peer'}"
    yield Verdict(wanted, f"{reached:.2f} times {fastest}", reached >= factor)


def _rate(measurement: Measurement, discipline: str) -> float:
    return measurement.rate(discipline if discipline in measurement.seconds else "first")


def _judge_limit(limit: Limit, results: Results) -> Verdict:
    ours = results[limit.job][OURS]
    seconds = sum(ours.seconds[discipline] for discipline in limit.disciplines)
    work = f"{limit.job}, {' + '.join(limit.disciplines)}"
    return Verdict(f"{work}: under {limit.seconds:g} s", f"{seconds:.3g} s", seconds < limit.seconds)


def _judge_memory(results: Results) -> Iterator[Verdict]:
    for size in (32000, 10000):
        measured = results.get(f"training {size}", {})
        peer = measured.get("tokenizers")
        if peer and peer.num_bytes == measured[OURS].num_bytes:
            share = measured[OURS].peak / peer.peak
            target = f"training {size}, memory: under half of tokenizers"
            yield Verdict(target, f"{share:.2f} of it", share < 0.5)


def _judge_scaling(results: Results) -> Iterator[Verdict]:
    for kind in ("training", "file"):
        ours = {
            int(name.rsplit(" ", 1)[1]): measured[OURS]
            for name, measured in results.items()
            if name.startswith(f"scaling {kind} ")
        }
        largest = max(ours, default=0)
        if _COMMON_MB not in ours or largest == _COMMON_MB:
            continue
        common, work = ours[_COMMON_MB], f"scaling of {kind}, {largest:,} MB"
        share = ours[largest].rate("first") / common.rate("first")
        target = f"{work}: {_LINEAR} of the rate at {_COMMON_MB} MB"
        yield Verdict(target, f"{share:.2f} of it", share >= _LINEAR)
        if kind == "file":
            growth = ours[largest].peak / common.peak
            target = f"{work}: at most {_FLAT} of the memory at {_COMMON_MB} MB"
            yield Verdict(target, f"{growth:.2f} of it", growth <= _FLAT)
