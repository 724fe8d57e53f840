import pytest

from trainer.compute.device_clock import DeviceClock
from trainer.runs.profile import Profile, StageUse


class Queue:
    """A GPU: events get the time at which it reaches them, when it has done the work before."""

    def __init__(self) -> None:
        self.now = 0.0  # of the program, in ms
        self.free_at = 0.0  # when the GPU will have done all that was queued
        self.is_waiting = False

    def work(self, milliseconds: float) -> None:
        self.free_at = max(self.free_at, self.now) + milliseconds


class Event:
    def __init__(self, queue: Queue):
        self.queue = queue

    def record(self) -> None:
        self.time = max(self.queue.free_at, self.queue.now)

    def query(self) -> bool:
        return self.time <= self.queue.now

    def synchronize(self) -> None:
        self.queue.now = max(self.queue.now, self.time)

    def elapsed_time(self, end: "Event") -> float:
        return end.time - self.time


def test_stages_have_the_time_of_the_gpu_and_not_that_of_queueing() -> None:
    """Reading data costs nothing while the GPU computes, and all that the GPU waits for it otherwise."""
    queue = Queue()
    clock = DeviceClock(lambda: Event(queue))
    forward, backward, data, evaluation = (StageUse(name) for name in ("forward", "backward", "data", "evaluation"))
    clock.mark(None)
    queue.work(20)
    queue.now += 1  # queueing takes a millisecond
    clock.mark(forward)
    queue.work(40)
    queue.now += 1
    clock.mark(backward)
    queue.now += 5
    clock.mark(data)  # hidden
    assert forward.device_seconds == 0, "the GPU is not there yet"
    queue.now = 100  # 40 ms idle
    clock.mark(evaluation)
    clock.finish()
    found = [use.device_seconds for use in (forward, backward, data, evaluation)]
    assert found == [0.02, 0.04, 0, 0.04]


def test_shares_of_a_profile_are_those_of_the_gpu() -> None:
    queue = Queue()
    profile = Profile("train", "tokens", DeviceClock(lambda: Event(queue)))
    queue.now = 10
    with profile.stage("outer"):
        queue.work(30)
        with profile.stage("inner", 5):
            queue.work(50)
        queue.work(10)
    content = profile.content(5)
    stages = {use["name"]: use for use in content["stages"]}
    assert {name: use["device_seconds"] for name, use in stages.items()} == {
        "inner": 0.05,
        "outer": 0.04,
        "other": 0.01,
    }
    assert [use["name"] for use in content["stages"]] == ["inner", "outer", "other"]
    assert [use["share"] for use in content["stages"]] == pytest.approx([0.5, 0.4, 0.1])
