"""The pages of the inference service: the playground at /, and what is known of the model at /model."""
