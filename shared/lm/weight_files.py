"""Which files of a folder hold a model's weights. No torch."""

from pathlib import Path

from shared.lm.errors import ModelFolderError
from shared.lm.json_file import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def find_weight_files(folder: Path) -> tuple[dict[Path, set[str] | None], tuple[str, ...]]:
    """Return the files that hold the weights, each with the names that the index gives it, and notes on the others.

    Raises:
        ModelFolderError: No weights, weights in another format, or an index that is damaged or names absent files.
    """
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.is_file():
        files: dict[Path, set[str] | None] = {single: None}
    elif index.is_file():
        files = {folder / name: names for name, names in _read_index(index).items()}
        for file in files:
            if not file.is_file():
                raise ModelFolderError(f"{file}: this shard is missing, though {INDEX_FILE} lists it")
    else:
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        hint = (
            f"; {', '.join(pickled)} is not read, since it may hold code: convert it to safetensors" if pickled else ""
        )
        raise ModelFolderError(f"{folder}: there is no {SINGLE_FILE} and no {INDEX_FILE}{hint}")
    others = sorted(path.name for path in folder.glob("*.safetensors") if path not in files)
    return files, tuple(f"{name} is not among the model's weight files and was ignored" for name in others)


def _read_index(index: Path) -> dict[str, set[str]]:
    """Return the tensor names of each shard."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelFolderError(f'{index}: "weight_map" must be an object of names and files, got {weight_map!r}')
    shards: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelFolderError(f"{index}: {name} must be in a file of the same folder, got {file!r}")
        shards.setdefault(file, set()).add(name)
    return shards
