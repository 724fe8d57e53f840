"""`python -m trainer COMMAND`."""

from trainer.cli import main

if __name__ == "__main__":
    main()
