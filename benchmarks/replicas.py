"""Three replicas behind the proxy, by consistent hashing and in turn: `python -m benchmarks.replicas`.

Conversations as token ids: each turn repeats all earlier ones and adds to them. In a round the first turns of all
conversations are sent, then in another order the second ones, and so on, each to the replica that the proxy chooses.
The cache of a replica has room for somewhat more than a third of them.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.host import describe_machine
from benchmarks.inputs import existing_folder
from benchmarks.report import table
from benchmarks.serving.load import measure
from benchmarks.serving.servers import Contestant, Server, free_port, ours
from shared.lm.description import read_config

NUM_REPLICAS = 3
CONVERSATIONS, TURNS = 48, 5
FIRST_TOKENS, ADDED_TOKENS, NEW_TOKENS = 64, 40, 8
CLIENTS = 8
CACHED_CONVERSATIONS = 20  # in each replica: a third of all, and those that run

_PROXY = Path(__file__).parents[1] / "deploy" / "proxy"
_POLICIES = {
    "consistent hashing": "",
    "round robin": "balance roundrobin",
}


def main() -> None:
    """Measure all policies in turn, and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas", description="Replicas behind the proxy")
    parser.add_argument(
        "--model", type=existing_folder, required=True, help="a model folder with a context of 304 tokens"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in _POLICIES}
    random, vocab_size = np.random.default_rng(0), read_config(options.model).vocab_size
    with ExitStack() as stack:
        replica = _replica(options.model)
        replicas = [stack.enter_context(closing(Server(replica))) for _ in range(NUM_REPLICAS)]
        ports = [server.port for server in replicas]
        proxies = {name: stack.enter_context(_proxy(ports, balance)) for name, balance in _POLICIES.items()}
        for round_ in range(options.rounds + 1):
            for name, port in proxies.items():
                seen = _round(replica, port, ports, _conversations(random, vocab_size))
                if round_:  # the first one warms up
                    rows[name].append(seen)
    header = ("policy", "prefix hit rate", "requests/s", "first token, ms", "processor ms a request")
    body = [
        (
            name,
            *(
                f"{statistics.median(column):{form}}"
                for column, form in zip(zip(*seen, strict=True), _FORMS, strict=True)
            ),
        )
        for name, seen in rows.items()
    ]
    machine = ", ".join(str(value) for value in describe_machine().values())
    print(f"{CONVERSATIONS} conversations of {TURNS} turns, {CLIENTS} clients, {NUM_REPLICAS} replicas; {machine}")
    print(table(header, body))
    print(json.dumps(rows))


_FORMS = (".3f", ".1f", ".0f", ".1f")


def _replica(folder: Path) -> Contestant:
    """A replica on one core whose cache has room for `CACHED_CONVERSATIONS`."""
    config = read_config(folder)
    longest = FIRST_TOKENS + TURNS * (ADDED_TOKENS + NEW_TOKENS)
    cache = CACHED_CONVERSATIONS * longest * 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
    contestant = ours(folder, "float32")
    settings = {"OWNLM_THREADS": "1", "OWNLM_KV_CACHE_BYTES": str(cache), "OWNLM_MAX_BATCH": str(CLIENTS)}
    return replace(
        contestant,
        name="replica",
        sampling={"max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True},
        environment=tuple((dict(contestant.environment) | settings).items()),
    )


@contextmanager
def _proxy(replica_ports: Sequence[int], balance: str) -> Iterator[int]:
    """HAProxy with the shipped configuration; `balance` replaces its policy. Gives the port."""
    config = (_PROXY / "haproxy.cfg").read_text()
    servers = "\n".join(f"    server r{port} 127.0.0.1:{port}" for port in replica_ports)
    config = re.sub(r"    server-template .*", servers, config)
    if balance:
        config = re.sub(r"    balance .*\n    hash-type .*\n    hash-balance-factor .*", f"    {balance}", config)
    port, admin_port = free_port(), free_port()
    environment = os.environ | {
        "PORT": str(port),
        "BIND": "127.0.0.1",
        "ADMIN_PORT": str(admin_port),
        "RESOLVER": "127.0.0.1:53",  # not used: the replicas are named by their addresses
        "PROMPT_START": str(_PROXY / "prompt_start.lua"),
    }
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
        file.write(config)
        file.flush()
        process = subprocess.Popen(
            ["haproxy", "-db", "-f", file.name], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while _num_up(admin_port) < len(replica_ports):
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()
            process.wait()


def _num_up(admin_port: int) -> int:
    """Replicas that the proxy's checks have found."""
    try:
        with socket.create_connection(("127.0.0.1", admin_port)) as connection:
            connection.sendall(b"show servers state replicas\n")
            states = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError:
        return 0
    return [line.split()[5] for line in states.splitlines()[2:] if line].count("2")  # SRV_ST_RUNNING


def _conversations(random: np.random.Generator, vocab_size: int) -> list[list[int]]:
    """Prompts in the order in which they are sent: the first turn of all conversations, then the second one.

    In one order, round robin would bring each to the same replica each time: three divides the number of conversations.
    """
    longest = FIRST_TOKENS + (TURNS - 1) * ADDED_TOKENS
    ids = random.integers(0, vocab_size - 1, (CONVERSATIONS, longest)).tolist()
    orders = [random.permutation(CONVERSATIONS).tolist() for _ in range(TURNS)]
    return [ids[index][: FIRST_TOKENS + turn * ADDED_TOKENS] for turn, order in enumerate(orders) for index in order]


def _round(replica: Contestant, port: int, ports: Sequence[int], prompts: list[list[int]]) -> tuple[float, ...]:
    """The hit rate, requests a second, milliseconds to the first token (median) and of processors for each request."""
    before = _counters(ports)
    bodies: list[dict[str, Any]] = [replica.body(prompt, seed=1) for prompt in prompts]
    seen = measure(port, replica.path, bodies[::-1], clients=CLIENTS, count_tokens=replica.count_tokens)
    looked_up, hit, *processor = (now - then for now, then in zip(_counters(ports), before, strict=True))
    return (
        hit / looked_up,
        seen.tokens_per_second / NEW_TOKENS,
        seen.first_token_ms,
        1000 * sum(processor) / len(prompts),
    )


_COUNTERS = (
    "ownlm_prefix_tokens_looked_up_total",
    "ownlm_prefix_tokens_hit_total",
    "process_cpu_seconds_total",
    "ownlm_model_process_cpu_seconds_total",
)


def _counters(ports: Sequence[int]) -> list[float]:
    """The sums of `_COUNTERS` over the replicas."""
    sums = dict.fromkeys(_COUNTERS, 0.0)
    for port in ports:
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        for sample in (sample for family in text_string_to_metric_families(page) for sample in family.samples):
            if sample.name in sums:
                sums[sample.name] += sample.value
    return [*sums.values()]


if __name__ == "__main__":
    main()
