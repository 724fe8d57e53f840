"""Training a tokenizer on text, and comparing tokenizers."""
