"""Finding the weight files of a model folder. No torch."""

from pathlib import Path

from shared.lm.errors import ModelFolderError
from shared.lm.json_file import read_json
from shared.system.errors import display_name, short_repr

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_LONGEST_NAME = 255  # of a file, in bytes, on all common file systems


def find_weight_files(folder: Path) -> tuple[dict[Path, set[str] | None], tuple[str, ...]]:
    """Return the weight files, each with the tensor names that the index lists for it, and notes on other files.

    The files themselves are not opened.

    Raises:
        ModelFolderError: There are no weights, they have another format, or the index is damaged.
    """
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.exists():
        files: dict[Path, set[str] | None] = {single: None}
    elif index.exists():
        files = {folder / name: names for name, names in _read_index(index).items()}
    else:
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        hint = (
            f"; {', '.join(pickled)} is not read, since it may hold code: convert it to safetensors" if pickled else ""
        )
        raise ModelFolderError(f"{folder}: has neither {SINGLE_FILE} nor {INDEX_FILE}{hint}")
    others = sorted(path.name for path in folder.glob("*.safetensors") if path not in files)
    return files, tuple(f"{name} is not among the model's weight files and was ignored" for name in others)


def _read_index(index: Path) -> dict[str, set[str]]:
    """Return the tensor names of each shard."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        got = short_repr(weight_map)
        raise ModelFolderError(f'{index}: "weight_map" must be an object of names and files, got {got}')
    shards: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not _is_file_name(file):
            raise ModelFolderError(
                f"{index}: {display_name(name)} must name a file in the same folder, got {short_repr(file)}"
            )
        shards.setdefault(file, set()).add(name)
    return shards


def _is_file_name(name: object) -> bool:
    return (
        isinstance(name, str)
        and name.isprintable()
        and Path(name).name == name
        and 0 < len(name.encode()) <= _LONGEST_NAME
    )
