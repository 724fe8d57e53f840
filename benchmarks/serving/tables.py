"""The report as Markdown, and what it is held against."""

from collections.abc import Sequence
from typing import Any

from benchmarks.report import Verdict, table

_RATIOS = {
    ("ownlm float32", "llama.cpp f32"): (1.1, 2.5, 3.0),
    ("ownlm float32", "llama.cpp f32, top-k 40"): (1.1, 2.5, 3.0),
    ("ownlm int8", "llama.cpp q8_0"): (1.0, 1.4, 1.6),
    ("ownlm float32", "transformers f32"): (3.0, 3.0, 2.0),
}
_MOST_OF_FIRST_TOKEN = 0.5  # of llama.cpp's, with several clients
_MOST_OF_MEDIAN = 2.0  # the 99th percentile of the time between tokens


def judge(results: Sequence[dict[str, Any]]) -> list[Verdict]:
    """Hold the medians against the targets."""
    found = {(result["name"], result["clients"]): result for result in results}
    verdicts = []
    for (our, peer), ratios in _RATIOS.items():
        for clients, needed in zip((1, 8, 32), ratios, strict=True):
            if (our, clients) in found and (peer, clients) in found:
                a, b = found[our, clients], found[peer, clients]
                ratio = a["tokens_per_second"] / b["tokens_per_second"]
                target = f"{our}, {clients} clients: {needed} times {peer}"
                verdicts.append(Verdict(target, f"{ratio:.2f} times", ratio >= needed))
                if clients > 1 and b["first_token_ms"] is not None:
                    share = a["first_token_ms"] / b["first_token_ms"]
                    target = f"{our}, {clients} clients: first token in half the time of {peer}"
                    verdicts.append(Verdict(target, f"{share:.2f} times", share <= _MOST_OF_FIRST_TOKEN))
    for result in results:
        if result["name"].startswith("ownlm"):
            median, p99 = result["between_ms"], result["between_p99_ms"]
            # The median is 0 where the client reads most tokens together with the one before.
            measured = f"{p99 / median:.2f} times" if median else f"{p99:.1f} ms, median 0"
            target = f"{result['name']}, {result['clients']} clients: p99 between tokens under twice the median"
            verdicts.append(Verdict(target, measured, p99 < _MOST_OF_MEDIAN * median))
    return verdicts


def render(report: dict[str, Any]) -> str:
    """The tables of a run: its targets and its measurements."""
    machine = ", ".join(str(value) for value in report["machine"].values())
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    verdicts = [(v["target"], v["measured"], "yes" if v["met"] else "**no**") for v in report["verdicts"]]
    header = ("server", "clients", "tokens/s", "least", "most", "first token, ms", "between, ms", "p99, ms", "MB")
    return "\n\n".join(
        [
            f"`{report['command']}` on {machine}; {versions}",
            table(("target", "measured", "met"), verdicts),
            table(header, map(_line, report["results"])),
        ]
    )


def _line(result: dict[str, Any]) -> Sequence[object]:
    rates = (f"{result[key]:,.0f}" for key in ("tokens_per_second", "least", "most"))
    times = ("" if result[key] is None else f"{result[key]:.1f}" for key in _TIMES)
    memory = "" if result["memory_mb"] is None else f"{result['memory_mb']:.0f}"
    return result["name"], result["clients"], *rates, *times, memory


_TIMES = ("first_token_ms", "between_ms", "between_p99_ms")
