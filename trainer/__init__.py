"""From plain text to a model folder, offline: `python -m trainer`."""
