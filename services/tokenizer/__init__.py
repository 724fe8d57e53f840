"""POST /encode and /decode: a tokenizer over HTTP, without torch."""
