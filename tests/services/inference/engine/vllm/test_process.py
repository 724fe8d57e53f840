"""How vLLM is started and ended, without vLLM."""

import errno
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from services.inference.engine import EngineConfig, Ready, model_identity
from services.inference.engine.errors import LoadError, LoadTimeoutError
from services.inference.engine.vllm import process as module
from services.inference.engine.vllm.process import VllmProcess
from services.inference.engine.vllm.stats import VllmStats
from shared.lm import read_description


class Child:
    """A process that ends when it is killed."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def kill(self) -> None:
        self.ended.set()


def test_processes_that_do_not_load_in_time_are_killed_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, core = Child(), Child()
    monkeypatch.setattr(module.multiprocessing, "active_children", lambda: [ours, core])

    def load() -> None:
        with module._killed_after(0.01, {ours}):  # type: ignore[arg-type]
            assert core.ended.wait(20)
            raise RuntimeError("Engine core initialization failed")

    with pytest.raises(LoadTimeoutError, match=r"not loaded within 0\.01 seconds \(OWNLM_LOAD_TIMEOUT\)"):
        load()
    assert not ours.ended.is_set()


@pytest.mark.parametrize("seconds", [None, 20])
def test_an_error_within_the_limit_stays_what_it_is(seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    core = Child()
    monkeypatch.setattr(module.multiprocessing, "active_children", lambda: [core])
    with pytest.raises(RuntimeError, match="bad model"), module._killed_after(seconds, set()):
        raise RuntimeError("bad model")
    with module._killed_after(seconds, set()):
        pass
    assert not core.ended.wait(0.01)


@dataclass(init=False)
class Arguments:
    """`vllm.AsyncEngineArgs`."""

    def __init__(self, **values: Any) -> None:
        self.values = values


class Llm:
    """An AsyncLLM: starts a process that does nothing."""

    errored = False

    def __init__(self, arguments: Arguments) -> None:
        self.core = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
        self.core.start()
        self.model_config = SimpleNamespace(max_model_len=arguments.values["max_model_len"])

    @classmethod
    def from_engine_args(cls, arguments: Arguments, stat_loggers: list[VllmStats]) -> "Llm":
        for stats in stat_loggers:
            stats(SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=12)))
        return cls(arguments)

    def shutdown(self, timeout: float) -> None:
        self.core.terminate()
        self.core.join(20 * timeout)


@pytest.fixture
def launch(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., VllmProcess]]:
    """Launch a `VllmProcess` whose AsyncLLM is of this class; nothing that it starts is left."""
    platform = SimpleNamespace(device_type="cpu")
    modules: dict[str, dict[str, Any]] = {
        "vllm": {"AsyncEngineArgs": Arguments},
        "vllm.platforms": {"current_platform": platform},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.async_llm": {},
    }
    for name, values in modules.items():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(values)
    monkeypatch.setattr(module, "set_environment", lambda _config: None)  # it would stay in the tests' own
    folder = read_description(model_dir)
    identity = model_identity(folder.tokenizer.fingerprint, folder.config)
    launched = []

    def launch(llm: type[Llm] = Llm, identity: str = identity) -> VllmProcess:
        sys.modules["vllm.v1.engine.async_llm"].AsyncLLM = llm  # type: ignore[attr-defined]
        config = EngineConfig(model_dir, max_batch=3)
        launched.append(VllmProcess(config, identity, "tiny", {}, VllmStats(), load_timeout=60))
        return launched[-1]

    before = multiprocessing.active_children()
    yield launch
    for process in launched:
        process.close()
    assert multiprocessing.active_children() == before


def test_one_that_is_ready_describes_its_model_and_is_ended(launch: Callable[..., VllmProcess]) -> None:
    process = launch()
    assert process.pid is None
    ready = process.wait_ready()
    assert ready == Ready(process._identity, "cpu", "float32", 128, num_blocks=12, num_slots=3, num_allocated_blocks=12)
    (core,) = multiprocessing.active_children()
    assert process.pid == core.pid
    assert not process.is_dead
    assert process.end() == "without an exit code of its own"
    assert not core.is_alive()


def test_one_that_dies_is_said_how(launch: Callable[..., VllmProcess]) -> None:
    process = launch()
    process.wait_ready()
    (core,) = multiprocessing.active_children()
    assert core.pid is not None
    os.kill(core.pid, signal.SIGKILL)
    core.join()
    assert process.end() == "by signal SIGKILL, possibly because the system ran out of memory"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EMFILE, "Too many open files"), OSError),
        (RuntimeError("can't start new thread"), OSError),
        (OSError("config.json cannot be loaded"), LoadError),
        (RuntimeError("Engine core initialization failed"), LoadError),
    ],
)
def test_what_the_system_has_no_room_for_is_no_fault_of_the_model(
    error: Exception, expected: type[Exception], launch: Callable[..., VllmProcess]
) -> None:
    class Failing(Llm):
        def __init__(self, arguments: Arguments) -> None:
            super().__init__(arguments)
            raise error

    process = launch(Failing)
    with pytest.raises(expected, match="vLLM cannot load the model: ") as failure:
        process.wait_ready()
    assert isinstance(failure.value, OSError) or failure.value.transient  # type: ignore[attr-defined]
    (core,) = multiprocessing.active_children()
    process.end()
    core.join()
    assert core.exitcode == -signal.SIGKILL, "a load that failed leaves nothing behind"


@pytest.mark.parametrize("when", ["before it starts a process", "after it"])
def test_one_that_is_closed_while_it_loads_leaves_no_process_and_no_thread(
    when: str, launch: Callable[..., VllmProcess]
) -> None:
    begun, may_start = threading.Event(), threading.Event()

    class Slow(Llm):
        def __init__(self, arguments: Arguments) -> None:
            if when == "before it starts a process":
                begun.set()
                assert may_start.wait(20)
                super().__init__(arguments)
            else:
                super().__init__(arguments)
                begun.set()
                self.core.join()
                raise RuntimeError("Engine core initialization failed")

    process = launch(Slow)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(process.wait_ready)
        assert begun.wait(20)
        process.close()
        may_start.set()
        if when == "after it":
            with pytest.raises(LoadError, match="initialization failed"):
                loading.result(20)
    assert not multiprocessing.active_children()


def test_one_that_does_not_shut_down_is_killed(launch: Callable[..., VllmProcess]) -> None:
    class Stubborn(Llm):
        def shutdown(self, timeout: float) -> None:
            raise RuntimeError("a socket is closed")

    process = launch(Stubborn)
    process.wait_ready()
    (core,) = multiprocessing.active_children()
    process.end()
    assert core.exitcode == -signal.SIGKILL


def test_one_that_nothing_ends_is_not_waited_for(
    launch: Callable[..., VllmProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = launch()
    process.wait_ready()
    with monkeypatch.context() as stuck:
        stuck.setattr(module, "_KILLED_SECONDS", 0.01)
        stuck.setattr(module, "_kill_children_besides", lambda _known: None)
        stuck.setattr(Llm, "shutdown", lambda _self, timeout: None)
        with pytest.raises(RuntimeError, match=f"process {process.pid} did not end after SIGKILL"):
            process.end()
        process.close()


def test_a_folder_that_holds_another_model_is_not_loaded(launch: Callable[..., VllmProcess]) -> None:
    with pytest.raises(LoadError, match="now holds another model") as failure:
        launch(identity="another").wait_ready()
    assert not failure.value.transient
    assert not multiprocessing.active_children()
