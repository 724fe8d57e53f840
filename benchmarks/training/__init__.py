"""Training steps on a CPU beside those of other trainers, as shares of what the machine's matrix products allow.

`python -m benchmarks.training --help` says how to run it.
"""
