"""The HTTP process' side of the engine: sequences go to the worker process, events come back."""
