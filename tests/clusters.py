"""An S3 server and a Ray cluster of two nodes, on this machine."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ports import free_port


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of a bucket on an S3 server of this machine; clients find it by the environment."""
    for module in ("s3fs", "moto", "flask"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: make ray")
    import fsspec

    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = dict(os.environ)
    address = f"http://127.0.0.1:{port}"
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": address}
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        fsspec.filesystem("s3").mkdir("bucket")
        yield "s3://bucket"
    finally:
        process.terminate()
        process.wait(10)
        os.environ.clear()
        os.environ.update(before)


RAY_NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


@pytest.fixture(scope="session")
def ray_nodes(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A Ray cluster of two nodes on this machine; its `address` is what --ray takes."""
    pytest.importorskip("ray", reason="needs ownlm[ray]: make ray")
    if importlib.util.find_spec("moto") is not None:
        request.getfixturevalue("s3")  # first: the nodes take the environment over
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    from ray.cluster_utils import Cluster

    config = {
        "local_fs_capacity_threshold": 0.99,  # results are spilled to disks that are almost full too
        "health_check_initial_delay_ms": 0,  # a node that a test kills is noticed after some 2 seconds instead of 20
        "health_check_period_ms": 500,
    }
    head = {**RAY_NODE, "include_dashboard": False, "_system_config": config}
    started = Cluster(initialize_head=True, head_node_args=head)
    started.add_node(**RAY_NODE)
    yield started
    started.shutdown()
