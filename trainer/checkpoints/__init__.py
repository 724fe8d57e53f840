"""Checkpoints: what a run needs to resume, written so that a crash damages nothing."""
