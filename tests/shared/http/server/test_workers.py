"""The supervisor of several worker processes, where the system has no room for one."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from shared.http.server import workers


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The errors that the next attempts to start a process end with; then workers start that end at once."""
    errors: list[Exception] = [OSError(24, "Too many open files")]

    async def start(*command: str, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return await create("/bin/sh", "-c", "exit 3", pass_fds=options["pass_fds"])

    create = asyncio.create_subprocess_exec
    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(workers, "_RETRY_SECONDS", 0.001)
    return errors


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Callable[[], Any]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield lambda: workers._Supervisor(listener, 2, 1.0, str(tmp_path))


@pytest.mark.case("D18")
def test_another_is_tried_until_there_is_room(no_room: list[Exception], supervisor: Callable[[], Any]) -> None:
    no_room += [OSError(11, "Resource temporarily unavailable"), RuntimeError("can't start new thread")] * 2

    async def keep() -> None:
        with pytest.raises(workers.WorkersFailedError, match=r"3 workers died .*exit_code 3"):
            await supervisor()._keep()

    with capture_logs() as logs:
        asyncio.run(keep())
    tries = [line for line in logs if line["event"] == "a worker cannot be started"]
    assert [line["retry_seconds"] for line in tries] == [0.001, 0.002, 0.004, 0.008, 0.016]
    assert tries[-1]["reason"] == "[Errno 24] Too many open files"


@pytest.mark.case("D18")
def test_the_end_does_not_wait_for_room(
    no_room: list[Exception], supervisor: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_RETRY_SECONDS", 1000.0)

    async def stop() -> None:
        supervised = supervisor()
        keeping = asyncio.create_task(supervised._keep())
        await asyncio.sleep(0.05)
        supervised._stop()
        await asyncio.wait_for(keeping, 60)

    asyncio.run(stop())


@pytest.mark.case("D18")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(24, "Too many open files"), "Too many open files"),
        (RuntimeError("can't start new thread"), "no thread can be started: the memory, or "),  # Python 3.11 needs one
    ],
)
def test_where_not_even_the_first_can_be_started_one_sentence_says_so(
    no_room: list[Exception], supervisor: Callable[[], Any], error: Exception, reason: str
) -> None:
    no_room[:] = [error]
    with pytest.raises(workers.WorkersFailedError, match=f"no worker can be started: {reason}"):
        asyncio.run(supervisor().run())
