"""The page of the tokenizer service: text and its tokens, the vocabulary, and a comparison with another tokenizer."""
