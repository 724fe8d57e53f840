"""What both sides of the model folder agree on: the tokenizer, the model, the HTTP layer."""
