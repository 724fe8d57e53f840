"""The process that started this one."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Let a process that multiprocessing has started end when the one that started it has, however that came.

    vLLM calls this in each of its processes (pyproject.toml, `vllm.general_plugins`): after a SIGKILL of the service
    they would stay for ever, with the model in memory. A vLLM that someone else runs is left as it is.
    """
    parent = multiprocessing.parent_process()
    if parent is None or os.environ.get("OWNLM_ENGINE") != "vllm":
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
