"""`make up`: the demo model (trained once), then both services under one supervisor, until Ctrl-C or SIGTERM."""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import honcho.manager
import httpx
from honcho.manager import Manager
from pydantic import TypeAdapter

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "models" / "demo"
HOST = "127.0.0.1"
STOPPED_BY_SIGNAL = (130, 143)  # honcho's codes for SIGINT and SIGTERM: the normal way to end `make up`

READY = """
Both services are ready. Ask them:

  curl -N http://{host}:{inference}/generate -H 'Content-Type: application/json' \\
       -d '{{"prompt": "Once upon a time", "stream": true}}'
  curl http://{host}:{tokenizer}/encode -H 'Content-Type: application/json' -d '{{"text": "Once upon a time"}}'
  curl http://{host}:{inference}/info
{pages}
Stop with Ctrl-C.
"""
PAGES = """
or open them:

  http://{host}:{inference}/  a playground: what the model writes, and what else it considered
  http://{host}:{tokenizer}/  the tokenizer: text in, tokens out
"""


def main() -> int:
    """Return the exit code: 0 after a clean stop, 1 with one sentence where something is in the way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, help="model folder to serve (default: the demo model, trained when absent)"
    )
    parser.add_argument("--inference-port", type=int, default=8000)
    parser.add_argument("--tokenizer-port", type=int, default=8001)
    args = parser.parse_args()
    ports = {"inference": args.inference_port, "tokenizer": args.tokenizer_port}

    for name, port in ports.items():
        if is_busy(port):
            return refuse(
                f"port {port} of {HOST} is taken by another program: stop it, or choose another port: "
                f".venv/bin/python scripts/up.py --{name}-port N"
            )
    if args.model is None:
        output = DEMO.relative_to(ROOT)  # short in what is printed
        returncode = run_until_it_ends([sys.executable, "-m", "trainer", "demo", "--output", str(output)])
        if returncode != 0:
            return returncode
    fault = fault_of(args.model or DEMO)
    if fault:
        return refuse(fault)
    return serve(args.model or DEMO, ports)


def run_until_it_ends(command: list[str]) -> int:
    """Run a program, which gets the terminal's Ctrl-C too; `subprocess.run` would kill it while it saves its work."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with subprocess.Popen(command, cwd=ROOT) as process:
            return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def refuse(reason: str) -> int:
    """Say what is in the way."""
    print(f"make up: {reason}", file=sys.stderr)
    return 1


def is_busy(port: int) -> bool:
    """Whether another program listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def fault_of(model: Path) -> str:
    """Why the folder cannot be served, in a sentence; empty where it can. Read here so nothing starts in vain.

    Without torch, whose 200 MB would stay with this process for as long as the services run.
    """
    from shared.lm import ModelFolderError, read_description
    from shared.lm.stored_weights import StoredWeights

    try:
        with StoredWeights(model, read_description(model).config) as weights:
            for _ in weights.values():  # each is read and looked at
                pass
    except ModelFolderError as error:
        return str(error)
    return ""


def serve(model: Path, ports: dict[str, int]) -> int:
    """Run both services until one ends or a signal comes; their lines appear under their names."""
    # A draining service may take its own time limit to end its streams; honcho's five seconds would cut it short.
    honcho.manager.KILL_WAIT = 15
    manager = Manager()
    for name, port in ports.items():
        env = os.environ | {"OWNLM_MODEL_DIR": str(model.resolve()), "OWNLM_HOST": HOST, "OWNLM_PORT": str(port)}
        command = f"exec {shlex.join([sys.executable, '-m', f'services.{name}'])}"
        manager.add_process(name, command, env=env, cwd=str(ROOT))
    threading.Thread(target=announce, args=(ports,), daemon=True).start()
    manager.loop()
    return 0 if manager.returncode in STOPPED_BY_SIGNAL else int(manager.returncode or 0)


def announce(ports: dict[str, int]) -> None:
    """Print what to do once both are ready, however long a first start compiles. One that fails ends both."""
    waiting = set(ports.values())
    while waiting:
        time.sleep(0.2)
        waiting = {port for port in waiting if not is_ready(port)}
    has_pages = TypeAdapter(bool).validate_python(os.environ.get("OWNLM_PAGES", "true"))  # as the services read it
    pages = PAGES.format(host=HOST, **ports) if has_pages else ""
    print(READY.format(host=HOST, pages=pages, **ports), flush=True)


def is_ready(port: int) -> bool:
    """Whether the service behind the port answers that it can serve."""
    try:
        return httpx.get(f"http://{HOST}:{port}/readyz", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    sys.exit(main())
