"""`python -m services.inference` serves until SIGTERM or Ctrl-C."""

from services.inference.app import create_app
from services.inference.settings import InferenceSettings
from shared.http import run

if __name__ == "__main__":
    run(create_app, InferenceSettings, "ownlm-inference")
