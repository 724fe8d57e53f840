"""Where a model comes from: the parts of its card about its parent, its data, its settings and its losses."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from trainer.card.curves import points
from trainer.card.markdown import block, code, table

_ROWS = 10  # of the table of losses
_SOURCES = 10
_SETTINGS = {
    "batch_size": "windows of a step",
    "context_length": "tokens of a window",
    "learning_rate": "highest learning rate",
    "schedule": "schedule",
    "warmup_steps": "warm-up steps",
    "optimizer": "optimizer",
    "betas": "betas",
    "weight_decay": "weight decay",
    "clip_grad_norm": "gradients clipped to",
    "dropout": "dropout",
    "dtype": "precision",
    "seed": "seed",
}


def origin_lines(provenance: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[str]:
    """One paragraph: trained from what, or imported from what."""
    imported, parent = provenance.get("imported"), provenance.get("parent")
    if isinstance(imported, Mapping):
        yield f"Imported by ownlm from {code(str(imported.get('file')))} ({imported.get('format')})."
        if isinstance(imported.get("check"), str):
            yield f"{imported['check']}."
    elif isinstance(parent, Mapping):
        yield f"Trained by ownlm, going on from {code(str(parent.get('name')))}."
        sums = parent.get("weights_sha256")
        if isinstance(sums, Mapping) and sums:
            first, *others = sums
            more = f" ({len(others)} more files are listed in `ownlm.json`)" if others else ""
            yield f"The SHA-256 of its {code(first)} is {code(str(sums[first]))}{more}."
    elif record:
        yield "Trained from scratch by ownlm, on the text below."
    else:
        yield "Written by ownlm."
    yield ""


def results(record: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Figures on held-out text: their type and name for Hugging Face, and the value."""
    if record.get("data", {}).get("validation") is None:
        return
    for kind, name in (("loss", "validation loss, nats per token"), ("bits_per_byte", "bits per byte")):
        value = record.get("validation_loss" if kind == "loss" else kind)
        if value is not None:
            yield kind, name, value


def training_lines(record: Mapping[str, Any], picture: str | None) -> Iterator[str]:
    """The sections on data, settings and results; nothing for a model that was not trained here.

    Args:
        record: Its `training.json`.
        picture: The file of its loss curves, if there is one.
    """
    if not record:
        return
    yield from ("## Data", "", *_data_lines(record["data"]), "")
    yield from ("## Training", "", *_settings_lines(record), "")
    yield from ("## Results", "", *_result_lines(record, picture))


def _data_lines(data: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (name, f"{part['tokens']:,}", f"{part['documents']:,}", f"{part['bytes']:,}")
        for name, part in data.items()
        if part is not None
    ]
    yield from table(("", "tokens", "documents", "bytes"), rows)
    sources = data["training"]["sources"]
    named = ", ".join(f"{code(source['name'])} ({source['bytes']:,} bytes)" for source in sources[:_SOURCES])
    more = data["training"]["num_sources"] - len(sources[:_SOURCES])
    yield from ("", f"From {named}{f' and {more:,} more' if more else ''}.")


def _settings_lines(record: Mapping[str, Any]) -> Iterator[str]:
    machine, hours = record["machine"] or {}, record["seconds"] / 3600
    where = f" on {machine['processes']} × {machine['device']}" if machine else ""
    spent = f"{record['seconds']:,.0f} seconds" if hours < 1 else f"{hours:,.1f} hours"
    yield f"{record['steps']:,} steps, {record['tokens']:,} tokens, {spent}{where}."
    settings = record["settings"]
    rows = [
        (label, code(_plain(settings[name]))) for name, label in _SETTINGS.items() if settings.get(name) is not None
    ]
    yield from ("", *table(("setting", "value"), rows), "", "All settings and the curves are in `training.json`.")


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _result_lines(record: Mapping[str, Any], picture: str | None) -> Iterator[str]:
    figures = [*results(record), ("", "training loss, mean of the last tenth", record["loss"])]
    yield from table(("", ""), [(name, f"{value:g}") for _, name, value in figures if value is not None])
    yield ""
    if picture is not None:
        yield from (f"![Training and validation loss by step]({picture})", "")
    yield from _loss_table(record["curves"])
    if record["samples"]:
        newest = record["samples"][-1]
        yield from (f"A sample of step {newest['step']:,}:", "", *block("text", newest["text"]))


def _loss_table(curves: Mapping[str, Any]) -> Iterator[str]:
    """Losses at up to ten steps: those of validation, or else of the log."""
    of_training, of_validation = points(curves, "loss"), points(curves, "validation_loss")
    steps = _spread(sorted(of_validation or of_training))
    if not steps:
        return
    bits = points(curves, "bits_per_byte")
    rows = []
    for before, step in pairwise([0, *steps]):
        since = [value for at, value in of_training.items() if before < at <= step]
        mean = f"{sum(since) / len(since):.4f}" if since else ""
        rows.append((f"{step:,}", mean, *(_figure(curve.get(step)) for curve in (of_validation, bits))))
    yield from table(("step", "training loss, mean since the row before", "validation loss", "bits per byte"), rows)
    yield ""


def _spread(steps: Sequence[int]) -> list[int]:
    """At most ten, the last included, at about equal distances."""
    if len(steps) <= _ROWS:
        return list(steps)
    return [steps[-1 - round(i * (len(steps) - 1) / (_ROWS - 1))] for i in range(_ROWS)][::-1]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
