"""The targets, and whether a run met them."""

from typing import Any

from benchmarks.report import Verdict


def judge(results: list[dict[str, Any]], overhead: dict[str, float], start_up_seconds: float) -> list[Verdict]:
    """Hold the measurements against the targets."""
    verdicts = []
    for ours in (result for result in results if result["trainer"] == "ownlm"):
        case = f"{ours['dtype']}, batch {ours['batch']}, {'compiled' if ours['compiled'] else 'eager'}"
        for peer in results:
            same = (peer["batch"], peer["compiled"]) == (ours["batch"], ours["compiled"])
            if same and peer["trainer"] in _RATIOS:
                needed, ratio = _RATIOS[peer["trainer"]], ours["tokens_per_second"] / peer["tokens_per_second"]
                verdicts.append(
                    Verdict(f"{case}: {needed} times {peer['trainer']}", f"{ratio:.2f} times", ratio >= needed)
                )
        share = ours["utilization"]
        needed = _UTILIZATION[ours["dtype"]]
        verdicts.append(Verdict(f"{case}: {needed:.0%} of matmul throughput", f"{share:.1%}", share >= needed))
    share = overhead["share"]
    verdicts.append(Verdict("data and logging below 1 % of a step", f"{share:.2%}", share < _OVERHEAD))
    verdicts.append(
        Verdict("first step within 15 s", f"{start_up_seconds:.1f} s", start_up_seconds < _START_UP_SECONDS)
    )
    return verdicts


_RATIOS = {
    "transformers": 1.1,
    "nanoGPT-style": 1.05,
    "transformers, memory kept": 1.05,
    "nanoGPT-style, memory kept": 1.05,
}
_UTILIZATION = {"float32": 0.8, "bfloat16": 0.45}
_OVERHEAD = 0.01
_START_UP_SECONDS = 15
