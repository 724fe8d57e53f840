"""POST /generate: a language model over HTTP."""
