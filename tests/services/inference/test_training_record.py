"""`training.json` of a folder that may hold anything."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.inference.training_record import read_training_file
from shared.lm.training_file import LARGEST_TRAINING_FILE, TRAINING_FILE
from shared.system.checksums import write_checksums

FINGERPRINT = "f" * 64
RECORD: dict[str, Any] = {
    "format_version": 1,
    "saved": "2026-01-02T03:04:05+00:00",
    "seconds": 12.5,
    "starts": 1,
    "tokenizer_fingerprint": FINGERPRINT,
    "steps": 10,
    "tokens": 100,
    "data": {
        "training": {
            "tokens": 9,
            "documents": 1,
            "bytes": 20,
            "sources": [{"name": "a.txt", "bytes": 20, "documents": 1}],
            "num_sources": 1,
        }
    },
    "settings": {"learning_rate": 1e-3, "betas": [0.9, 0.99], "seed": 0, "compile": False, "optimizer": "adamw"},
    "samples": [{"step": 5, "text": "\x00\u202e<img onerror=alert(1)>"}],
    "curves": {"loss": {"steps": [1, 2], "values": [3.5, None]}},
}


def changed(path: str, value: object) -> dict[str, Any]:
    """RECORD with a value at `path`, whose parts are separated by blanks."""
    record = json.loads(json.dumps(RECORD))
    *parents, last = path.split()
    part = record
    for name in parents:
        part = part[name]
    part[last] = value
    return record


def fault(folder: Path, content: object) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / TRAINING_FILE).write_bytes(data)
    file = read_training_file(folder, FINGERPRINT)
    assert bool(file.json) != bool(file.fault)
    return file.fault


def test_a_record_is_served_as_it_is(tmp_path: Path) -> None:
    assert not fault(tmp_path, RECORD)
    served = json.loads(read_training_file(tmp_path, FINGERPRINT).json)
    assert served["curves"]["loss"] == RECORD["curves"]["loss"]
    assert served["samples"] == RECORD["samples"]
    assert served["settings"] == RECORD["settings"]
    assert served["events"] == []
    assert served["curves"]["grad_norm"] is None


def test_what_a_later_version_adds_is_ignored(tmp_path: Path) -> None:
    assert not fault(tmp_path, {**RECORD, "color": {"a": [1]}})
    assert "color" not in json.loads(read_training_file(tmp_path, FINGERPRINT).json)


def test_no_file(tmp_path: Path) -> None:
    assert read_training_file(tmp_path, FINGERPRINT).fault == (
        "the model folder has no training.json: ownlm writes one when it trains a model"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Invalid JSON: EOF"),
        (b"[]", "Input should be an object"),
        (b"null", "Input should be an object"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"[" * 50_000, "Invalid JSON: recursion limit exceeded"),
        (b" " * (LARGEST_TRAINING_FILE + 1), "larger than the limit of 65,536 bytes"),
        (json.dumps(RECORD).replace("12.5", "NaN").encode(), "seconds: Input should be a finite number"),
        (json.dumps(RECORD).replace("12.5", "1e999").encode(), "seconds: Input should be a finite number"),
        (json.dumps(RECORD).replace("12.5", "-Infinity").encode(), "seconds: Input should be a finite number"),
        (json.dumps(RECORD).replace("a.txt", r"\ud800").encode(), "Invalid JSON"),
        (changed("seconds", -1), "seconds: Input should be greater than or equal to 0"),
        (changed("format_version", 2), "format_version: Input should be 1"),
        (changed("steps", "10"), "steps: Input should be a valid integer"),
        (changed("steps", True), "steps: Input should be a valid integer"),
        (changed("steps", -1), "steps: Input should be greater than or equal to 0"),
        (changed("steps", 1 << 60), "steps: Input should be less than or equal to"),
        (changed("saved", "yesterday"), "saved: "),
        (changed("settings", [1]), "settings: Input should be an object"),
        (changed("settings betas", {"a": 1}), "settings.betas"),
        (changed("samples", {"step": 1, "text": "a"}), "samples: Input should be a valid array"),
        (changed("samples", [{"step": 1, "text": None}]), "samples.0.text: Input should be a valid string"),
        (changed("curves loss steps", [2, 1]), "curves.loss: Value error, the steps must increase"),
        (changed("curves loss steps", [1]), "curves.loss: Value error, 1 steps for 2 values"),
        (changed("curves loss values", [1, "2"]), "curves.loss.values.1: Input should be a valid number"),
        (changed("tokenizer_fingerprint", "\x1b[2Jother"), r"it was written for the tokenizer '\x1b[2Jother'"),
        (changed("settings a\u202eb", {}), "settings.'a\\u202eb'"),
    ],
)
def test_anything_else_is_refused_with_the_reason(tmp_path: Path, content: object, reason: str) -> None:
    assert fault(tmp_path, content).startswith(f"the model folder's training.json cannot be used: {reason}")


def test_a_folder_or_a_fifo_of_this_name(tmp_path: Path) -> None:
    import os

    (tmp_path / TRAINING_FILE).mkdir()
    assert "expected a regular file, found a directory" in read_training_file(tmp_path, FINGERPRINT).fault
    (tmp_path / TRAINING_FILE).rmdir()
    os.mkfifo(tmp_path / TRAINING_FILE)
    assert "expected a regular file, found a FIFO" in read_training_file(tmp_path, FINGERPRINT).fault


def test_it_must_match_the_checksums_of_the_folder(tmp_path: Path) -> None:
    assert not fault(tmp_path, RECORD)
    write_checksums(tmp_path)
    assert read_training_file(tmp_path, FINGERPRINT).json
    assert "is not what was written" in fault(tmp_path, changed("steps", 11))
