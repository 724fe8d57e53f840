"""The two HTTP services: tokenizer and inference. They share `shared.http` and are independent of each other."""
