"""What a benchmark is given to read; where it is not there, one sentence says so."""

import argparse
import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def reference_data() -> Path:
    """The folder of reference data, which may be missing: `OWNLM_DATA`, else `shared/data` beside the checkout."""
    return Path(os.environ.get("OWNLM_DATA", _ROOT.parent / "shared" / "data"))


def reference_texts(*names: str, otherwise: str = "") -> list[Path]:
    """Files of the reference data.

    Args:
        names: Of the files.
        otherwise: What else can be done, where there is something.

    Raises:
        SystemExit: one of them is missing.
    """
    folder = reference_data()
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise SystemExit(f"no {' and no '.join(missing)} in {folder}: set OWNLM_DATA to the folder of it{otherwise}")
    return [folder / name for name in names]


def existing_file(text: str) -> Path:
    """The file that an option names, for argparse to refuse where there is none."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return Path(text)


def existing_folder(text: str) -> Path:
    """The folder that an option names, for argparse to refuse where there is none."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return Path(text)
