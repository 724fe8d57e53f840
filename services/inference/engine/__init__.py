"""The engine: owns the model, runs many requests as rows of one batch."""
