"""The page of the tokenizer service: text and its tokens, the vocabulary, and another tokenizer beside it."""
