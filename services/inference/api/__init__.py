"""The routes of the inference service: what they read, what they write, and how answers are streamed."""
