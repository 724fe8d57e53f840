"""The pages of the inference service: the playground at /, conversations at /chat, and the model at /model."""
