"""`make sbom`: a software bill of materials for each image that is there, in CycloneDX's format, under build/sbom.

It lists the Python packages of the image, as found in it, with versions and licenses. What the base image holds, its
publisher lists.
"""

import json
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "sbom"
COMPOSE = ("docker-compose.yml", "docker-compose.gpu.yml")


def main() -> int:
    """Write the files; 1 if there is no image, or one cannot be read."""
    tools = FOLDER / "tools"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(tools)]
    subprocess.run([*install, "cyclonedx-bom>=7.0,<8"], check=True)
    images = [image for image in our_images() if is_there(image)]
    print("not built:", ", ".join(set(our_images()) - set(images)) or "none")
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
    files = [yaml.safe_load((ROOT / name).read_text(encoding="utf-8")) for name in COMPOSE]
    images = {service.get("image") for file in files for service in file["services"].values() if "image" in service}
    return sorted(images)


def is_there(image: str) -> bool:
    """Whether the Docker engine has an image."""
    command = ["docker", "image", "inspect", image]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def bill_of(image: str, tools: Path) -> dict[str, object]:
    """What cyclonedx-bom finds from inside an image, which it is mounted into."""
    inside = ["-v", f"{tools}:/tools:ro", "-w", "/", image, "python", "-c", PROGRAM]
    done = subprocess.run(["docker", "run", "--rm", "--network", "none", *inside], check=True, stdout=subprocess.PIPE)
    bill: dict[str, object] = json.loads(done.stdout)
    metadata = bill.setdefault("metadata", {})
    assert isinstance(metadata, dict)
    metadata["component"] = {"type": "container", "name": image}
    return bill


# Not by PYTHONPATH, which the interpreter that is looked at would have too.
PROGRAM = """
import runpy, sys
sys.path.insert(0, "/tools")
sys.argv = ["cyclonedx-py", "environment", "--no-validate", "--output-format", "JSON", sys.executable]
runpy.run_module("cyclonedx_py", run_name="__main__")
"""


if __name__ == "__main__":
    sys.exit(main())
