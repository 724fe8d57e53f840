"""The model card: README.md of a finished model, as Hugging Face shows it."""
