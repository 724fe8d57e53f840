"""One trainer in a process: prints its FLOPs a token, then the seconds of a step for each line that it reads."""

import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Prepare the trainer that the arguments name, and take steps."""
    name, folder, batch, compiled = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")  # what libraries print goes elsewhere
    os.dup2(2, 1)
    from benchmarks.training.contenders import CONTENDERS, keeps_memory
    from trainer.allocation import keep_freed_memory

    if keeps_memory(name):
        keep_freed_memory()
    contender = CONTENDERS[name](Path(folder), int(batch), compiled == "True")
    print(contender.flops_per_token, file=answers, flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        contender.step()
        print(time.perf_counter() - begin, file=answers, flush=True)


if __name__ == "__main__":
    main()
