"""The folder of a run: its record, metrics and results."""
