"""How vLLM is started, without vLLM."""

import threading

import pytest

from services.inference.engine.errors import LoadTimeoutError
from services.inference.engine.vllm import process as module


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

    with pytest.raises(LoadTimeoutError, match=r"not loaded within 0\.01 seconds, the limit \(OWNLM_LOAD_TIMEOUT\)"):
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
