"""`watch`: the page about runs, while they train."""

import logging
from pathlib import Path

logger = logging.getLogger(__name__)


def watch(runs: list[Path], *, host: str = "127.0.0.1", port: int = 8002) -> None:
    """Watch runs in a browser: curves, samples, divergence events, and the time left.

    It only reads the runs' files. New points appear within two seconds, also after a run was killed and resumed, or
    returned to a checkpoint. `report` writes the same page to a file. Ctrl-C ends it.

    Args:
        runs: Run folders, or folders of runs such as a sweep's; those that are not there yet appear when they are.
        host: What to listen on. With 0.0.0.0 everyone who reaches this machine sees the runs; from elsewhere
            `ssh -L 8002:127.0.0.1:8002 MACHINE` needs no change here.
        port: The port; 0 is any that is free.
    """
    import signal

    from trainer.errors import InterruptedRunError, UsageError
    from trainer.watch.runs import WatchedRuns
    from trainer.watch.server import WatchServer, address_of, bind

    if not 0 <= port < 1 << 16:
        raise UsageError(f"--port must be from 0 to 65535; got {port}")
    for path in runs:
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is not a folder")
    listener = bind(host, port)
    logger.info("watch %s at %s; Ctrl-C ends it", ", ".join(map(str, runs)), address_of(listener))
    for path in runs:
        if not path.exists():
            logger.info("%s is not there yet; its runs appear when they are", path)
    try:
        WatchServer(WatchedRuns(runs), host).run([listener])
    except KeyboardInterrupt:
        raise InterruptedRunError("stopped watching", signal.SIGINT) from None
