"""`python -m trainer COMMAND`, or `ownlm COMMAND`."""

from trainer.cli import main

if __name__ == "__main__":
    main()
