"""Conversations as training data: reading their records, and the chat template that goes with token files."""
