"""`python -m services.tokenizer` serves until SIGTERM or Ctrl-C."""

from services.tokenizer.app import create_app
from services.tokenizer.settings import TokenizerSettings
from shared.http import run

if __name__ == "__main__":
    run(create_app, TokenizerSettings, "ownlm-tokenizer")
