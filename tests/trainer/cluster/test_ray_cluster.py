"""Tasks on a Ray cluster: retries, errors, spilling and Ctrl-C."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.cluster import ray_cluster as module
from trainer.cluster.ray_cluster import ray_cluster
from trainer.console.signals import StopRequest
from trainer.errors import InterruptedRunError, TrainerError
from trainer.text.utf8 import CorpusError

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.timeout(300)]


def times(factor: int, item: int) -> int:
    return factor * item


def fail(_: None, item: int) -> int:
    raise CorpusError(f"item {item} is not UTF-8")


def die_once(folder: Path, item: int) -> int:
    if item == 3 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def die(_: None, item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def sleep(_: None, item: int) -> int:
    time.sleep(60)
    return item


def slowly(folder: Path, item: int) -> int:
    (folder / f"{item}-{time.monotonic_ns()}").touch()
    time.sleep(1)
    return item


def large(_: None, item: int) -> Any:
    return np.full(30 << 20, item, np.uint8)


def test_results_come_with_their_numbers(ray_nodes: Any) -> None:
    with ray_cluster(ray_nodes.address, StopRequest()) as connected:
        assert dict(connected.run(times, 3, range(20))) == {n: 3 * n for n in range(20)}


def test_an_error_of_a_task_is_the_error(ray_nodes: Any) -> None:
    with (
        ray_cluster(ray_nodes.address, StopRequest()) as connected,
        pytest.raises(CorpusError, match=r"^item 0 is not UTF-8$"),
    ):
        list(connected.run(fail, None, [0]))


def test_a_process_that_dies_costs_its_tasks_only(ray_nodes: Any, tmp_path: Path) -> None:
    with ray_cluster(ray_nodes.address, StopRequest()) as connected:
        assert dict(connected.run(die_once, tmp_path, range(6))) == {n: n for n in range(6)}
    assert (tmp_path / "died").exists()


def test_a_task_that_always_dies_ends_the_run(ray_nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRIES", 1)
    with ray_cluster(ray_nodes.address, StopRequest()) as connected, pytest.raises(TrainerError, match="lost 2 times"):
        list(connected.run(die, None, [0]))


def test_a_node_that_is_killed_costs_its_tasks_only(ray_nodes: Any, tmp_path: Path) -> None:
    node = ray_nodes.add_node(num_cpus=1, object_store_memory=100 << 20)
    with ray_cluster(ray_nodes.address, StopRequest()) as connected:
        results = {}
        for number, result in connected.run(slowly, tmp_path, range(9)):
            if not results:
                ray_nodes.remove_node(node, allow_graceful=False)
            results[number] = result
    assert results == {n: n for n in range(9)}
    assert 9 <= len(list(tmp_path.iterdir())) <= 12  # the tasks of a node begin again, no others


def test_results_that_do_not_fit_into_the_object_store_are_spilled(ray_nodes: Any) -> None:
    """240 MB of results that are all held, in stores of 100 MB."""
    with ray_cluster(ray_nodes.address, StopRequest()) as connected:
        found = dict(connected.run(large, None, range(8)))
    assert [(found[n][0], found[n][-1], len(found[n])) for n in range(8)] == [(n, n, 30 << 20) for n in range(8)]


def test_ctrl_c_cancels(ray_nodes: Any) -> None:
    stop = StopRequest()
    with ray_cluster(ray_nodes.address, stop) as connected:
        stop.signal_number = signal.SIGINT
        begin = time.monotonic()
        with pytest.raises(InterruptedRunError):
            list(connected.run(sleep, None, range(4)))
    with ray_cluster(ray_nodes.address, StopRequest()) as connected:
        assert dict(connected.run(times, 1, [5])) == {0: 5}
        assert time.monotonic() - begin < 30


def test_other_code_on_a_node_is_refused(ray_nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_code", lambda: "another")
    with (
        ray_cluster(ray_nodes.address, StopRequest()) as connected,
        pytest.raises(TrainerError, match="another version"),
    ):
        list(connected.run(times, 1, [0]))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "nowhere.invalid:6379"])
def test_nothing_answers(address: str) -> None:
    pytest.importorskip("ray")
    with (
        pytest.raises(TrainerError, match=f"no Ray cluster answers at '{address}'"),
        ray_cluster(address, StopRequest()),
    ):
        pass


def test_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nMore.")

    monkeypatch.setattr("ray.init", refuse)
    message = r"answers at 'auto' \(Could not find any running Ray instance\.\); start one with `ray start --head`"
    with pytest.raises(TrainerError, match=message), ray_cluster("auto", StopRequest()):
        pass
