"""The settings of every command, with the advice that `--help` shows."""
