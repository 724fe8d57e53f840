"""A finished model in the formats of other programs."""
