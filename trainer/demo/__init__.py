"""The embedded demo: a corpus of short stories from a seeded grammar, and a model trained on it."""
