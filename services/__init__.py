"""The two HTTP services: tokenizer and inference. They share `shared.http` and do not know each other."""
