"""The tests marked `cuda`, and those of the kernels, which run on a GPU where there is one."""

import subprocess
import sys
import xml.etree.ElementTree as ET

from benchmarks.gpu.environment import ROOT
from benchmarks.gpu.options import part_parser
from benchmarks.gpu.rows import Row, report


def main() -> None:
    """Run them, and report how many passed and which did not."""
    options = part_parser(__doc__).parse_args()
    results = options.work / "results.xml"
    chosen = ["-m", "cuda" if options.quick else "cuda or triton", "-p", "no:cacheprovider", f"--junitxml={results}"]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *chosen, *FOLDERS], cwd=ROOT, check=False)
    if not results.exists():
        report(Row("tests", "pytest", f"ended with {done.returncode}", met=False))
        return
    suite = ET.parse(results).getroot().find("testsuite")
    assert suite is not None
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    bad = counts["failures"] + counts["errors"]
    passed = counts["tests"] - bad - counts["skipped"]
    met = bad == 0 and passed > 0 if options.device == "cuda" else bad == 0
    report(Row("tests", "marked cuda or triton", f"{passed} passed, {bad} failed, {counts['skipped']} skipped", met))
    for case in suite.iter("testcase"):
        for fault in (*case.iter("failure"), *case.iter("error")):
            reason = " ".join((fault.get("message") or "").split())[:200]
            report(Row("tests", f"{case.get('classname')}.{case.get('name')}", reason, met=False))


FOLDERS = (
    "tests/services/inference/engine/runner/torch",
    "tests/services/inference/engine/sampler",
    "tests/trainer/test_on_a_gpu.py",
)

if __name__ == "__main__":
    main()
