"""`make sbom`: a software bill of materials for each image that is there, in CycloneDX's format, under build/sbom.

It lists the Python packages and Debian's, as found in the image: the first with their licenses.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "sbom"


def main() -> int:
    """Write the files; 1 if there is no image, or one cannot be read."""
    tools = FOLDER / "tools"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(tools)]
    subprocess.run([*install, "cyclonedx-bom>=7.0,<8"], check=True)
    ours = our_images()
    images = [image for image in ours if is_there(image)]
    print("not built:", ", ".join(image for image in ours if image not in images) or "none")
    if not images:
        print("no image of ours is there: docker compose build", file=sys.stderr)
        return 1
    for image in images:
        path = FOLDER / f"{image.replace(':', '-')}.cdx.json"
        path.write_text(json.dumps(bill_of(image, tools), indent=1) + "\n", encoding="utf-8")
        print(f"{image}: {path.relative_to(ROOT)}")
    return 0


def our_images() -> list[str]:
    """Those that the compose files build."""
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in ROOT.glob("docker-compose*.yml")]
    services = [service for file in files for service in file["services"].values()]
    return sorted({service["image"] for service in services if "build" in service and "image" in service})


def is_there(image: str) -> bool:
    """Whether the Docker engine has an image."""
    command = ["docker", "image", "inspect", image]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def bill_of(image: str, tools: Path) -> dict[str, Any]:
    """What cyclonedx-bom finds from inside an image, which it is mounted into, and Debian's packages."""
    bill: dict[str, Any] = json.loads(output_of(image, "python", "-c", PROGRAM, options=["-v", f"{tools}:/tools:ro"]))
    bill.setdefault("metadata", {})["component"] = {"type": "container", "name": image}
    found = output_of(image, "dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\n")
    bill.setdefault("components", []).extend(debian_component(*line.split()) for line in found.splitlines())
    return bill


def output_of(image: str, *command: str, options: Sequence[str] = ()) -> str:
    """What a command prints in a container without network."""
    run = ["docker", "run", "--rm", "--network", "none", "-w", "/", *options, image, *command]
    return subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout


def debian_component(name: str, version: str, architecture: str) -> dict[str, str]:
    """A package as https://github.com/package-url/purl-spec names it."""
    purl = f"pkg:deb/debian/{name}@{quote(version, safe='')}?arch={architecture}"
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


# Not by PYTHONPATH, which the interpreter that is looked at would have too.
PROGRAM = """
import runpy, sys
sys.path.insert(0, "/tools")
sys.argv = ["cyclonedx-py", "environment", "--no-validate", "--output-format", "JSON", sys.executable]
runpy.run_module("cyclonedx_py", run_name="__main__")
"""


if __name__ == "__main__":
    sys.exit(main())
