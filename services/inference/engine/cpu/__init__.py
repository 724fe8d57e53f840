"""The model on CPU: packed weights and compiled steps."""
