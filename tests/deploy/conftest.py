"""HAProxy as the compose file runs it, before replicas of a test."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.deploy.names import NameServer
from tests.ports import free_port
from tests.services.conftest import model_dir, process, slow, tokenizer, wait_until

__all__ = ["model_dir", "process", "slow", "tokenizer"]

PROXY = Path(__file__).parents[2] / "deploy" / "proxy"


class Proxy:
    """A running HAProxy; clients call `url`."""

    def __init__(self, replicas_port: int, names: NameServer, config: Path = PROXY / "haproxy.cfg") -> None:
        port, self._admin_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        environment = {
            "PORT": str(port),
            "BIND": "127.0.0.1",
            "REPLICAS": f"inference:{replicas_port}",
            "RESOLVER": names.address,
            "ADMIN_PORT": str(self._admin_port),
            "PROMPT_START": str(PROXY / "prompt_start.lua"),
        }
        self.popen = subprocess.Popen(
            ["haproxy", "-db", "-f", str(config)], env=os.environ | environment, stdout=subprocess.DEVNULL
        )

    def ask(self, command: str) -> str:
        """The answer to a command on HAProxy's stats socket."""
        with socket.create_connection(("127.0.0.1", self._admin_port)) as connection:
            connection.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def num_up(self) -> int:
        """Replicas that it routes to."""
        try:
            states = [line.split()[5] for line in self.ask("show servers state replicas").splitlines()[2:] if line]
        except OSError:
            return -1
        return states.count("2")  # SRV_ST_RUNNING

    def wait_up(self, count: int) -> None:
        wait_until(lambda: self.num_up() == count, timeout=60)

    def close(self) -> None:
        self.popen.terminate()
        self.popen.wait(20)


@pytest.fixture(scope="session")
def haproxy() -> None:
    """Skips where it is not installed, but fails in CI."""
    if shutil.which("haproxy") is None:
        reason = "the tests of the proxy need HAProxy (on Debian and Ubuntu: apt-get install haproxy)"
        if "CI" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
