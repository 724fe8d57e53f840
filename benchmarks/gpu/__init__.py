"""Everything that needs a GPU, in one command: `python -m benchmarks.gpu --minutes 8`."""
