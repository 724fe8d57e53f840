"""The process that started this one."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """End this process, which multiprocessing has started, when the process that started it ends for any reason.

    vLLM calls this in each of its processes (pyproject.toml, `vllm.general_plugins`): after a SIGKILL of the service
    they would keep running, with the model in memory. Has no effect where vLLM runs without the service.
    """
    parent = multiprocessing.parent_process()
    if parent is None or os.environ.get("OWNLM_ENGINE") != "vllm":
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
