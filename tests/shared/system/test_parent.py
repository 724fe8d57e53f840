import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.services.conftest import wait_until

_PARENT = """
import multiprocessing, sys, time
from shared.system.parent import end_with_parent

def child():
    end_with_parent()
    time.sleep(600)

if __name__ == "__main__":
    end_with_parent()  # as vLLM does: it has no parent of multiprocessing's
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    print(process.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("engine", ["vllm", "ownlm"])
def test_a_child_ends_with_its_parent_where_it_is_the_services(engine: str) -> None:
    environment = os.environ | {"OWNLM_ENGINE": engine}
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        if engine == "vllm":
            wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, timeout=60)
        else:
            assert child.is_running()
            child.kill()
