"""Token files: written by `encode`, read by training."""
