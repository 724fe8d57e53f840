"""The options that all parts have."""

import argparse
from pathlib import Path


def part_parser(about: str | None) -> argparse.ArgumentParser:
    """A parser with them."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which it is ended")
    parser.add_argument("--quick", action="store_true")
    return parser
