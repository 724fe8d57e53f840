"""Checkpoints: what a run needs to resume, written so that a crash loses nothing."""
