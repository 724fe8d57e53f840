"""The embedded demo: a corpus of short stories told by a grammar, and the model that learns from it."""
