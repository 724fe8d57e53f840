"""The HTTP process' side of the engine: sequences go to the engine process, events come back."""
