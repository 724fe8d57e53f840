"""One trainer in a process: prints its FLOPs a token, then wall and CPU seconds of a step for each line read."""

import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Prepare the trainer that the arguments name, and take steps."""
    name, folder, batch, compiled, dtype = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")  # what libraries print goes elsewhere
    os.dup2(2, 1)
    from benchmarks.training.contenders import CONTENDERS, Case, keeps_memory
    from shared.system.allocation import keep_freed_memory

    if keeps_memory(name):
        keep_freed_memory()
    contender = CONTENDERS[name](Path(folder), Case(int(batch), compiled == "True", dtype))
    print(contender.flops_per_token, file=answers, flush=True)
    for _ in sys.stdin:
        begin, begin_processor = time.perf_counter(), time.process_time()
        contender.step()
        print(time.perf_counter() - begin, time.process_time() - begin_processor, file=answers, flush=True)


if __name__ == "__main__":
    main()
