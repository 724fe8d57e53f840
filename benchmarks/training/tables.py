"""The report as Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.report import table


def render(report: dict[str, Any]) -> str:
    """The tables of a run: its targets and its steps."""
    machine = ", ".join(str(value) for value in report["machine"].values())
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    heading = f"`{report['command']}` with {report['threads']} threads on {machine}; {versions}"
    verdicts = [(v["target"], v["measured"], "yes" if v["met"] else "**no**") for v in report["verdicts"]]
    return "\n\n".join(
        [
            heading,
            table(("target", "measured", "met"), verdicts),
            table(
                (
                    "trainer",
                    "batch",
                    "mode",
                    "tokens/s",
                    "best",
                    "per CPU-second",
                    "GFLOP/s",
                    "utilization",
                    "ownlm is",
                ),
                _steps(report["results"]),
            ),
        ]
    )


def _steps(results: Sequence[dict[str, Any]]) -> Iterable[Sequence[object]]:
    ours = {(r["batch"], r["compiled"]): r["tokens_per_second"] for r in results if r["trainer"] == "ownlm"}
    for r in results:
        ratio = ours[r["batch"], r["compiled"]] / r["tokens_per_second"]
        yield (
            *(r["trainer"], r["batch"], "compiled" if r["compiled"] else "eager"),
            *(f"{r['tokens_per_second']:,.0f}", f"{r['best_tokens_per_second']:,.0f}"),
            *(f"{r['tokens_per_processor_second']:,.0f}", f"{r['gflops']:.0f}"),
            *(f"{r['utilization']:.0%}", "" if r["trainer"] == "ownlm" else f"{ratio:.2f} times"),
        )
