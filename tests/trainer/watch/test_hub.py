"""The hub: one reader for all pages, none where no page is open, and no page that holds up another."""

import asyncio
from typing import Any

import pytest

from trainer.watch import hub as hub_module
from trainer.watch.hub import Hub


class Runs:
    """Counts how often it is looked at; each time something is new."""

    def __init__(self) -> None:
        self.looks = 0
        self.fault: Exception | None = None

    def whole(self) -> bytes:
        return b'"whole"'

    def update(self) -> bytes | None:
        self.looks += 1
        if self.fault is not None:
            raise self.fault
        return b"%d" % self.looks


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "INTERVAL", 0.001)


def new_hub() -> tuple[Hub, Any]:
    runs = Runs()
    return Hub(runs), runs  # type: ignore[arg-type]


def test_runs_are_read_while_a_page_is_open() -> None:
    async def main() -> None:
        hub, runs = new_hub()
        await asyncio.sleep(0.05)
        assert runs.looks == 0
        page = hub.frames()
        assert await anext(page) == b'retry: 1000\ndata: "whole"\n\n'
        assert await anext(page) == b"data: 2\n\n"
        await page.aclose()
        while hub._task is not None:
            await asyncio.sleep(0.01)
        looks = runs.looks
        await asyncio.sleep(0.05)
        assert runs.looks == looks
        page = hub.frames()
        assert b"whole" in await anext(page)
        assert await anext(page) == b"data: %d\n\n" % (looks + 2)
        await hub.close(is_over=False)

    asyncio.run(main())


def test_a_page_that_takes_nothing_is_dropped_and_the_others_get_all() -> None:
    async def main() -> None:
        hub, _ = new_hub()
        slow, quick = hub.frames(), hub.frames()
        await anext(slow)
        await anext(quick)
        numbers = [int((await anext(quick))[6:]) for _ in range(3 * hub_module._MOST_BEHIND)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert 0 < len([frame async for frame in slow]) < hub_module._MOST_BEHIND
        await hub.close(is_over=False)

    asyncio.run(main())


@pytest.mark.parametrize("is_over", [True, False])
def test_the_end_comes_after_the_last_news(is_over: bool) -> None:
    async def main() -> None:
        hub, runs = new_hub()
        page = hub.frames()
        await anext(page)
        await hub.close(is_over=is_over)
        frames = [frame async for frame in page]
        assert (frames[-1] == b"event: end\ndata: {}\n\n") is is_over
        assert frames[-1 - is_over] == b"data: %d\n\n" % runs.looks
        late = [frame async for frame in hub.frames()]
        assert len(late) == 1

    asyncio.run(main())


def test_a_failing_disk_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        hub, runs = new_hub()
        page = hub.frames()
        await anext(page)
        runs.fault = OSError("the disk is gone")
        while not caplog.records:
            await asyncio.sleep(0.01)
        runs.fault = None
        looks = runs.looks
        while int((await anext(page))[6:]) <= looks:
            pass
        await hub.close(is_over=False)

    asyncio.run(main())
    assert "the runs cannot be read: the disk is gone" in caplog.text


def test_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a connection that is gone is noticed."""
    monkeypatch.setattr(hub_module, "_STILL_HERE", 0.01)
    monkeypatch.setattr(Runs, "update", lambda self: None)

    async def main() -> None:
        hub, _ = new_hub()
        page = hub.frames()
        await anext(page)
        assert await anext(page) == b":\n\n"
        await hub.close(is_over=False)

    asyncio.run(main())
