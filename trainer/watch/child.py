"""The page about runs in a process of its own, which ends with the one that started it."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.compute.launch import rank_and_count
from trainer.console.program import PROGRAM

logger = logging.getLogger(__name__)

_END_SECONDS = 10.0


@contextmanager
def page_about(folder: Path) -> Iterator[None]:
    """Serve the page about the runs in a folder while the context lasts; of several processes the first one does.

    Where it cannot be served that is a warning, and the work goes ahead.
    """
    if rank_and_count()[0] > 0:
        yield
        return
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "trainer.watch.child", str(folder)],
        stdin=subprocess.PIPE,  # closed by the system when we end, however that is
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().decode().strip()
        if address:
            logger.info("watch it at %s", address)
        else:
            logger.warning("the page about the run cannot be served; `%s watch %s` tries again", PROGRAM, folder)
        yield
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """Serve the page about the folder until standard input ends; write the address to standard output."""
    from trainer.errors import TrainerError
    from trainer.watch.runs import WatchedRuns
    from trainer.watch.server import LOCAL, PORT, WatchServer, address_of, bind

    try:
        listener = bind(LOCAL, PORT)
    except TrainerError:  # another run's page is there
        listener = bind(LOCAL, 0)
    server = WatchServer(WatchedRuns([Path(sys.argv[1])]))
    os.nice(19)  # training goes first
    sys.stdout.write(address_of(listener) + "\n")
    sys.stdout.flush()

    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        server.stop()

    threading.Thread(target=end_with_parent, daemon=True).start()
    asyncio.run(server.serve([listener]))


if __name__ == "__main__":
    main()
