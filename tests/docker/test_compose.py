"""`docker compose up` on a clean engine: trains the demo model into a volume, then serves both services.

Opt-in: `pytest -m docker`. `PYTHON_IMAGE` names the base image (the Dockerfiles' default otherwise), and
`DOCKER_BUILD_FLAGS` adds flags to `docker build` (such as `--network host` where the build needs it).
"""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
IMAGES = {
    "train": ("ownlm-train:0.1.0", "trainer/Dockerfile", "train"),
    "inference": ("ownlm-inference:0.1.0", "services/inference/Dockerfile", None),
    "tokenizer": ("ownlm-tokenizer:0.1.0", "services/tokenizer/Dockerfile", None),
    "proxy": ("ownlm-proxy:0.1.0", "deploy/proxy/Dockerfile", None),
}
# Starts children until no more may be started.
_FORK = """
import subprocess
children = []
try:
    while len(children) < 2000:
        children.append(subprocess.Popen(["sleep", "600"]))
except OSError as error:
    print(len(children), error)
for child in children:
    child.kill()
    child.wait()
"""
TRAINED_AND_READY = 15 * 60  # seconds for the whole demo on a slow machine

pytestmark = [pytest.mark.docker, pytest.mark.timeout(40 * 60)]


def run(*command: str, env: dict[str, str] | None = None, timeout: float | None = None) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | (env or {}), capture_output=True, text=True, check=False, timeout=timeout
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def compose() -> list[str]:
    has_plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
    return ["docker", "compose"] if has_plugin else ["docker-compose"]


def base_image() -> str:
    """What the images are built on."""
    default = re.search(r"PYTHON_IMAGE=(\S+)", (ROOT / IMAGES["tokenizer"][1]).read_text(encoding="utf-8"))
    return os.environ.get("PYTHON_IMAGE") or default[1]  # type: ignore[index]


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker engine answers on this machine")
    flags = shlex.split(os.environ.get("DOCKER_BUILD_FLAGS", ""))
    flags += ["--build-arg", f"PYTHON_IMAGE={base_image()}"]
    for tag, dockerfile, target in IMAGES.values():
        stage = ["--target", target] if target else []
        context = str(Path(dockerfile).parent) if dockerfile.startswith("deploy/") else "."
        run("docker", "build", *flags, *stage, "-f", dockerfile, "-t", tag, context)


@pytest.fixture(scope="module")
def stack() -> Iterator[dict[str, str]]:
    """Base URLs of the running services, by name."""
    ports = {"inference": free_port(), "tokenizer": free_port()}
    env = {f"{name.upper()}_PORT": str(port) for name, port in ports.items()}
    command = [*compose(), "-p", "ownlm-test"]
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    try:
        run(*command, "up", "-d", "--no-build", env=env)
        for url in urls.values():
            wait_until_ready(url)
        yield urls
    finally:
        run(*command, "down", "-v", "--timeout", "15", env=env)


def container_of(service: str) -> str:
    return run(*compose(), "-p", "ownlm-test", "ps", "-q", service).strip()


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + TRAINED_AND_READY
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/readyz", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    pytest.fail(f"{url} was not ready within {TRAINED_AND_READY} s")


def test_images_run_as_a_plain_user() -> None:
    for tag, _, _ in IMAGES.values():
        assert run("docker", "run", "--rm", tag, "id", "-u").strip() == "10001"


@pytest.mark.parametrize("service", ["inference", "tokenizer"])
def test_the_images_of_the_services_have_no_torch_no_trainer_and_no_compiler(service: str) -> None:
    absent = "torch", "trainer", "numba", "llvmlite", "matplotlib", "pip"
    program = f"import importlib.util as u; print([name for name in {absent} if u.find_spec(name)])"
    command = "docker", "run", "--rm", "-w", "/", IMAGES[service][0], "python", "-c", program
    # On other processors than x86-64 they have the compiler.
    assert run(*command).strip() in {"[]", "['numba', 'llvmlite']" if platform.machine() != "x86_64" else "[]"}


@pytest.mark.parametrize(("service", "megabytes"), [("inference", 400), ("tokenizer", 220)])
def test_an_image_adds_little_to_its_base(service: str, megabytes: int) -> None:
    """Beyond the layers of the base image, which all images of a host share."""
    sizes = run("docker", "history", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", IMAGES[service][0])
    base = run("docker", "history", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", base_image())
    added = sum(int(line.split()[0]) for line in sizes.splitlines()[: -len(base.splitlines())])
    assert 50e6 < added < megabytes * 1e6


def test_what_the_train_image_compiles_it_can_load() -> None:
    """Behind a read-only file system, as the compose file runs it: /tmp is mounted noexec."""
    code = "import torch; print(float(torch.compile(lambda x: x.sin() + 1)(torch.zeros(8))[0]))"
    folders = ("--tmpfs", "/tmp", "--tmpfs", "/var/cache/ownlm:exec,mode=1777")
    headers = "import pathlib, sysconfig; print(pathlib.Path(sysconfig.get_path('include'), 'Python.h').exists())"
    if run("docker", "run", "--rm", IMAGES["train"][0], "python", "-c", headers).strip() != "True":
        pytest.skip("the base image has no headers of Python, which torch.compile needs (official images have them)")
    output = run("docker", "run", "--rm", "--read-only", *folders, IMAGES["train"][0], "python", "-c", code)
    assert output.strip() == "1.0"


def test_both_services_speak_the_same_tokenizer(stack: dict[str, str]) -> None:
    infos = [httpx.get(f"{url}/info").json() for url in stack.values()]
    assert infos[0]["fingerprint"] == infos[1]["fingerprint"]


def test_a_story_streams_and_ends(stack: dict[str, str]) -> None:
    body = {"prompt": "Once upon a time", "stream": True, "max_tokens": 200, "seed": 1}
    with httpx.stream("POST", f"{stack['inference']}/generate", json=body, timeout=60) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1] if json.loads(event)["choices"])


def test_health_checks_turn_healthy(stack: dict[str, str]) -> None:
    deadline = time.monotonic() + 60
    names = ("inference", "tokenizer")
    states: dict[str, str] = {}
    while time.monotonic() < deadline and set(states.values()) != {"healthy"}:
        for name in names:
            states[name] = run("docker", "inspect", "-f", "{{.State.Health.Status}}", container_of(name)).strip()
        time.sleep(1)
    assert states == dict.fromkeys(names, "healthy")


@pytest.mark.case("D56")
@pytest.mark.parametrize(("service", "gigabytes"), [("inference", 2), ("tokenizer", 1)])
def test_a_container_that_takes_what_it_can_get_goes_on_within_its_limits(
    stack: dict[str, str], service: str, gigabytes: int
) -> None:
    """It forks, fills /tmp and takes memory: each ends at the limit, and the service answers afterwards."""
    container = container_of(service)
    limits = json.loads(run("docker", "inspect", "-f", "{{json .HostConfig}}", container))
    assert (limits["Memory"], limits["MemorySwap"]) == (gigabytes << 30, gigabytes << 30)
    assert limits["LogConfig"]["Type"] == "local"

    def attempt(program: str) -> str:
        command = ["docker", "exec", container, "python", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return f"{done.returncode} {done.stdout}{done.stderr}"

    said = attempt(_FORK)
    assert "Resource temporarily unavailable" in said
    assert 500 < int(said.split()[1]) < 1024
    assert "No space left on device" in attempt("open('/tmp/full', 'wb').write(bytes(100 << 20))")
    assert "ok" in attempt("import os; os.remove('/tmp/full'); print('ok')")
    assert httpx.get(f"{stack[service]}/readyz", timeout=60).status_code == 200
    # The system ends the process that takes the most, which is this one.
    assert attempt(f"bytes = [b'x' * (1 << 26) for _ in range({gigabytes} * 16)]; print('all of it')").startswith("137")
    assert httpx.get(f"{stack[service]}/readyz", timeout=60).status_code == 200


def test_a_service_that_is_terminated_finishes_its_stream(stack: dict[str, str]) -> None:
    container = container_of("inference")
    body = {"prompt": "Once upon a time", "stream": True, "max_tokens": 200, "ignore_eos": True}
    with httpx.stream("POST", f"{stack['inference']}/generate", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        run("docker", "kill", "--signal", "TERM", container)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert run("docker", "wait", container, timeout=60).strip() == "0"


@pytest.mark.usefixtures("stack")
def test_a_service_that_is_terminated_while_it_starts_ends() -> None:
    """As process 1 of its container, Python has no handler yet, and would ignore the signal for good."""
    container = container_of("tokenizer")
    run("docker", "stop", container)
    run("docker", "start", container)
    run("docker", "kill", "--signal", "TERM", container)
    assert run("docker", "wait", container, timeout=60).strip() in {"143", "0"}


def test_replicas_come_with_one_option(stack: dict[str, str]) -> None:
    """`up --scale inference=3`; while one of them is killed, requests are answered."""
    command = [*compose(), "-p", "ownlm-test"]
    ports = {f"{name.upper()}_PORT": url.rpartition(":")[2] for name, url in stack.items()}
    run(*command, "up", "-d", "--no-build", "--scale", "inference=3", env=ports)
    wait_until_ready(stack["inference"])  # the first one may have been terminated by a test
    replicas = container_of("inference").split()
    assert len(replicas) == 3
    deadline = time.monotonic() + 120
    busy: set[str] = set()
    while time.monotonic() < deadline and len(busy) < 3:
        for number in range(30):
            body = {"prompt": f"{number} foxes", "max_tokens": 1}
            assert httpx.post(f"{stack['inference']}/generate", json=body, timeout=60).status_code == 200
        busy = {
            one for one in replicas if "route=/generate" in (log := run("docker", "logs", one)) or '"/generate"' in log
        }
    assert len(busy) == 3
    run("docker", "kill", replicas[0])
    for number in range(30):
        body = {"prompt": f"{number} foxes", "max_tokens": 1}
        assert httpx.post(f"{stack['inference']}/generate", json=body, timeout=60).status_code == 200
    run(*command, "up", "-d", "--no-build", "--scale", "inference=1", env=ports)
