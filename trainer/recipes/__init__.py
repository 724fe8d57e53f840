"""Settings derived from a depth or a published shape."""
