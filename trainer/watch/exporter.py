"""The figures of runs for Prometheus: what their folders say at each scrape, at work, killed or finished.

They are read from the folders, as the page is, and not sent by the run: a run that is killed cannot take them with it,
and one that trains does nothing for them.
"""

import asyncio
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import psutil

from shared.system.locks import locking_process
from trainer.report.selection import folders_of_runs, run_names
from trainer.runs.folder import RunFolder
from trainer.runs.record import End
from trainer.runs.results import RunReader, RunResults

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""https://prometheus.io/docs/instrumenting/exposition_formats/"""

_STATES = ("running", "killed", "unknown", *get_args(End))
_CURVES = {
    "tokens": "Tokens trained on",
    "seconds": "Wall-clock seconds of the run, evaluations included",
    "loss": "Training loss of the last logged step, in nats a token",
    "validation_loss": "Validation loss, in nats a token",
    "bits_per_byte": "Validation loss, in bits a byte",
    "learning_rate": "Learning rate",
    "grad_norm": "Norm of the gradient before clipping",
    "tokens_per_second": "Training speed since the step that was logged before",
}
_OTHERS = {
    "step": "The last step with a record",
    "planned_tokens": "Tokens that the whole run will have trained on",
    "starts": "How often the run was started or resumed",
    "updated_timestamp_seconds": "When it last logged a step, started or ended",
    "resident_memory_bytes": "Memory of the process that trains, where this machine has it",
}


class Exporter:
    """Reads the runs in some folders, which need not be there yet.

    Args:
        paths: Run folders, or folders of them.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._readers: dict[Path, RunReader] = {}
        self._turn = asyncio.Lock()

    async def text(self) -> bytes:
        """All figures in Prometheus' text format; of the metrics, only what is new is read."""
        async with self._turn:
            return await asyncio.to_thread(self._text)

    def _text(self) -> bytes:
        folders = {folder.resolve(): folder for path in self._paths for folder in folders_of_runs(path)}
        self._readers = {whole: self._readers.get(whole) or RunReader(folder) for whole, folder in folders.items()}
        names = run_names(list(folders.values()))
        runs = []
        for whole, reader in self._readers.items():
            reader.update()
            runs.append(reader.results(names[folders[whole]], latest=1))
        return "".join(_lines(runs)).encode()


def _lines(runs: Sequence[RunResults]) -> Iterator[str]:
    figures = {run.name: _figures(run) for run in runs}
    for name, meaning in (_CURVES | _OTHERS).items():
        yield f"# HELP ownlm_train_{name} {meaning}\n# TYPE ownlm_train_{name} gauge\n"
        for run, values in figures.items():
            if name in values:
                yield f'ownlm_train_{name}{{run="{_escaped(run)}"}} {_number(values[name])}\n'
    yield "# HELP ownlm_train_state 1 for the state that a run is in\n# TYPE ownlm_train_state gauge\n"
    for one in runs:
        for state in _STATES:
            yield f'ownlm_train_state{{run="{_escaped(one.name)}",state="{state}"}} {int(one.standing.kind == state)}\n'


def _figures(run: RunResults) -> dict[str, float]:
    """What is known of a run."""
    found = {name: float(curve.values[-1]) for name in _CURVES if len(curve := run.curve(name))}
    found["step"] = run.last_step
    found["starts"] = len(run.record.get("starts", []))
    if (planned := run.record.get("tokens")) is not None:
        found["planned_tokens"] = planned
    folder = RunFolder(run.folder)
    try:
        # run.json is written at the start and the end: a run may fail before its first step, or resume after days.
        written = [file.stat().st_mtime for file in (folder.metrics_file, folder.record_file) if file.exists()]
        if written:
            found["updated_timestamp_seconds"] = max(written)
        process = locking_process(folder.lock_file) or 0
        if process > 0:
            found["resident_memory_bytes"] = psutil.Process(process).memory_info().rss
    except (OSError, psutil.Error):  # it is not there yet, or has just ended
        pass
    return found


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(value)
