"""The files that tokenizers are published in."""
