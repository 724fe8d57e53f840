"""A page about runs: curves, comparison, samples, where in a text the loss falls."""
