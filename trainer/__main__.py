"""`python -m trainer COMMAND`, or `ownlm COMMAND`."""

import sys


def main() -> None:
    """Run the command line, if the packages that it needs are installed."""
    try:
        import cyclopts  # noqa: F401 - the first package of the extra that is missing without it
    except ModuleNotFoundError:
        sys.exit("the command line needs the packages of the extra `trainer`: pip install 'ownlm[trainer]'")
    from trainer.cli import main

    main()


if __name__ == "__main__":
    main()
