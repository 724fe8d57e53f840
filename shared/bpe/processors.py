"""How many processors this process may use."""

import os


def available_processors() -> int:
    """Those that it is bound to, where the system tells; else all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
