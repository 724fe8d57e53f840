"""Learning a tokenizer from text, and comparing tokenizers."""
