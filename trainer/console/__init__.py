"""What a person sees of a command: progress, tables, and what Ctrl-C does."""
