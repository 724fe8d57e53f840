"""`training.json`, beside the weights: how a model was trained, for who has its folder but not that of the run."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePosixPath
from typing import Any, TypeVar

import numpy as np

from shared.lm.training_file import LARGEST_TRAINING_FILE, TRAINING_FILE_VERSION
from trainer.checkpoints.resume import result_settings
from trainer.checkpoints.run_state import RunState
from trainer.runs.results import Curve, RunResults
from trainer.settings.train import TrainSettings
from trainer.tokens.dataset import TrainingData
from trainer.tokens.token_file import TokenFile

_CURVES = ("loss", "validation_loss", "bits_per_byte", "learning_rate", "grad_norm", "tokens_per_second")

# The most that is kept of a run; halved until the file is small enough.
_POINTS = 400  # of each curve
_TEXTS = 16  # samples, and events
_SOURCES = 24
_CHARACTERS = 600  # of a text

_T = TypeVar("_T")


def training_file(run: RunResults, settings: TrainSettings, data: TrainingData, state: RunState) -> bytes:
    """The content of `training.json`: at most `LARGEST_TRAINING_FILE` bytes, without paths and names of this machine.

    Args:
        run: The run's folder as it is now.
        settings: Its settings.
        data: What was trained on.
        state: How far the run has come.
    """
    halvings = 0
    while len(content := _to_lines(_summary(run, settings, data, state, halvings))) > LARGEST_TRAINING_FILE:
        halvings += 1
    return content


def _to_lines(content: Mapping[str, Any]) -> bytes:
    """JSON with a line for each key at the top; "?" for half a surrogate pair, as in file names that are not UTF-8."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items())
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode(errors="replace")


def _summary(
    run: RunResults, settings: TrainSettings, data: TrainingData, state: RunState, halvings: int
) -> dict[str, Any]:
    most, characters = max(1, _TEXTS >> halvings), max(8, _CHARACTERS >> halvings)
    starts = run.record.get("starts", [])
    best = run.best("validation_loss")
    return {
        "format_version": TRAINING_FILE_VERSION,
        "ownlm_version": _version("ownlm"),
        "torch_version": _version("torch"),
        "started": starts[0]["time"] if starts else None,
        "saved": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(state.seconds, 1),
        "starts": len(starts),
        "machine": _machine(starts[-1]) if starts else None,
        "tokenizer_fingerprint": data.tokenizer.fingerprint,
        "steps": state.step,
        "tokens": state.tokens,
        "loss": _rounded(run.final_loss),
        "validation_loss": _rounded(state.validation_loss),
        "bits_per_byte": _rounded(state.bits_per_byte),
        "best_validation_loss": None if best is None else {"step": best[1], "value": _rounded(best[0])},
        "data": {
            "training": _described(data.train, _SOURCES >> halvings),
            "validation": None if data.validation is None else _described(data.validation, _SOURCES >> halvings),
        },
        "settings": {name: _shortened(value, characters) for name, value in result_settings(settings).items()},
        "sample_prompt": _shortened(settings.watch.sample_prompt, characters),
        "samples": _texts(run.samples, most, characters),
        "events": _texts(run.events, most, characters),
        "num_events": len(run.events),
        "curves": {name: _points(run.curve(name), _POINTS >> halvings) for name in _CURVES if len(run.curve(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _machine(start: Mapping[str, Any]) -> dict[str, Any]:
    """The hardware and code of the newest start, without the host name: the file may be published."""
    revision = start["git"] and {name: start["git"][name] for name in ("revision", "dirty")}
    return {
        "device": start["device"],
        "cpu": start["machine"]["cpu"],
        "cpus": start["machine"]["cpus"],
        "processes": start["processes"],
        "git": revision,
    }


def _described(file: TokenFile, most: int) -> dict[str, Any]:
    """A token file: sizes, and the names of the largest texts in it."""
    manifest = file.manifest
    sources = sorted(manifest.sources, key=lambda source: -source.bytes)
    named = [
        {"name": _shortened(PurePosixPath(source.path).name, 200), "bytes": source.bytes, "documents": source.documents}
        for source in sources[:most]
    ]
    return {
        "tokens": manifest.count,
        "documents": manifest.documents,
        "bytes": manifest.bytes,
        "sources": named,
        "num_sources": len(sources),
    }


def _shortened(value: Any, characters: int) -> Any:
    return value[:characters] + "…" if isinstance(value, str) and len(value) > characters else value


def _texts(texts: Sequence[tuple[int, str]], most: int, characters: int) -> list[dict[str, Any]]:
    """Of many, some at equal distances; the newest one always."""
    return [{"step": step, "text": _shortened(text, characters)} for step, text in _spread(texts, most)]


def _spread(items: Sequence[_T], most: int) -> list[_T]:
    if len(items) <= most:
        return list(items)
    return [items[len(items) - 1 - round(i * (len(items) - 1) / max(1, most - 1))] for i in range(most)][::-1]


def _points(curve: Curve, most: int) -> dict[str, list[Any]]:
    kept = thinned(curve, max(2, most))
    return {"steps": [int(step) for step in kept.steps], "values": [_rounded(value) for value in kept.values.tolist()]}


def _rounded(value: float | None) -> float | None:
    """To five significant digits; None for what JSON has no number for."""
    return float(f"{value:.5g}") if value is not None and np.isfinite(value) else None


def thinned(curve: Curve, most: int) -> Curve:
    """At most `most` points (at least 2) that draw as all of them do, on as many pixels as half of them.

    The steps are divided into equal parts, and the lowest and the highest value of each part stay, with the first and
    the last point of all. Of values that are not finite, the first of each part stays.
    """
    if len(curve) <= most:
        return curve
    of_a_part = 2 if np.isfinite(curve.values).all() else 3
    kept = {0, len(curve) - 1}
    for part in np.array_split(np.arange(len(curve)), (most - 2) // of_a_part) if most >= 2 + of_a_part else ():
        finite = np.isfinite(curve.values[part])
        if finite.any():
            values = np.where(finite, curve.values[part], np.nan)
            kept |= {int(part[np.nanargmin(values)]), int(part[np.nanargmax(values)])}
        if not finite.all():
            kept.add(int(part[np.argmin(finite)]))
    indices = sorted(kept)
    return Curve(curve.steps[indices], curve.values[indices])
