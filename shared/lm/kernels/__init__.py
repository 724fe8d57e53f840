"""The compiled parts of a training step on a CPU: Python compiled by Numba, over plain arrays. No torch.

Each kernel is called by all threads at once, with the same arguments; they take blocks of rows from a counter, which
is 0 at first. No result depends on which thread takes which block.
"""

TITLE = "training"
