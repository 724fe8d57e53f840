"""Speed beside other processes that compute: `python -m benchmarks.busy`."""
