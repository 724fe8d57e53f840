"""A training run: the model, its loss, the optimizer and the loop."""
