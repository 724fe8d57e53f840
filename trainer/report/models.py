"""What a run's models say: samples from each checkpoint, and the loss by position. Needs torch."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses

from shared.lm import ModelFolder, Transformer, generate, load_model_folder
from shared.system.errors import describe
from trainer.checkpoints.folders import checkpoints_by_step
from trainer.components.loss import IGNORED
from trainer.compute.device import choose_device
from trainer.errors import TrainerError
from trainer.evaluation.sampling import encode_prompt
from trainer.report.positions import PositionLoss, binned
from trainer.runs.folder import RunFolder
from trainer.runs.results import RunResults
from trainer.tokens.dataset import open_training_data
from trainer.tokens.windows import consecutive_windows

logger = logging.getLogger(__name__)

_WINDOWS_AT_ONCE = 16
_MOST_CHECKPOINTS = 8
_SCORED_TOKENS = 50_000


@dataclass(frozen=True)
class ModelFindings:
    """What the models of one run said.

    Attributes:
        samples: Step and text.
        positions: None where there is no model, or no validation text.
        notes: What could not be done, and why.
    """

    samples: list[tuple[int, str]] = field(default_factory=list)
    positions: PositionLoss | None = None
    notes: list[str] = field(default_factory=list)


def examine(run: RunResults, *, prompt: str | None, device: str) -> ModelFindings:
    """Draw samples from the checkpoints there are, and score validation text with the newest model.

    Args:
        run: The run.
        prompt: What samples begin with. None takes the run's own, and leaves out steps of which the run kept one.
        device: A device's name, or `auto`.
    """
    folders = _model_folders(run)
    if not folders:
        return ModelFindings(notes=["no checkpoint or model to draw samples from"])
    known = {step for step, _ in run.samples} if prompt is None else set()
    wanted = _evenly([step for step in sorted(folders) if step not in known])
    samples: list[tuple[int, str]] = []
    positions: PositionLoss | None = None
    notes: list[str] = []
    place = choose_device(device).torch_device
    for step in sorted({*wanted, max(folders)}):
        with _noting(notes, step):
            folder = load_model_folder(folders[step], device=place, research=True)
            if run.settings.get("document_mask"):
                folder.model.document_start = folder.tokenizer.end_of_text_id
            if step in wanted:
                with _noting(notes, step):  # as of a prompt that does not fit, which the loss by position needs not
                    samples.append((step, sample(run, folder, prompt)))
            if step == max(folders):
                positions = position_loss(folder, Path(run.settings["data"]))
    return ModelFindings(samples, positions, notes)


@contextmanager
def _noting(notes: list[str], step: int) -> Iterator[None]:
    """Go on after what cannot be done, with a note of why."""
    try:
        yield
    except Exception as error:  # whatever is odd about this run or its folders, the others are shown
        notes.append(f"step {step}: {describe(error)}")


def _evenly(steps: list[int]) -> list[int]:
    """At most eight of them, with the first and the last."""
    last = len(steps) - 1
    if last < _MOST_CHECKPOINTS:
        return steps
    return [steps[round(place * last / (_MOST_CHECKPOINTS - 1))] for place in range(_MOST_CHECKPOINTS)]


def _model_folders(run: RunResults) -> dict[int, Path]:
    """The model folder of each step that is still there."""
    place = RunFolder(run.folder)
    folders = checkpoints_by_step(place.checkpoints)
    if run.has_model:
        folders.setdefault(max(run.last_step, *folders) if folders else run.last_step, place.model)
    return folders


def sample(run: RunResults, folder: ModelFolder, prompt: str | None) -> str:
    """What the model writes with the run's own seed, prompt and sampling parameters, as the trainer draws samples."""
    settings = run.settings
    begin = settings.get("sample_prompt", "") if prompt is None else prompt
    ids = generate(
        folder.model,
        encode_prompt(folder.tokenizer, begin, folder.config.context_length),
        folder.generation.params(seed=settings.get("seed", 0)),
        max_tokens=settings.get("sample_tokens", 100),
        eos_token_ids=folder.generation.eos_token_ids,
        valid_tokens=folder.valid_tokens,
    )
    return begin + folder.tokenizer.decode(list(ids), skip_special_tokens=True)


def position_loss(folder: ModelFolder, data: Path) -> PositionLoss | None:
    """Loss by position over the first 50,000 validation tokens; None where there are none.

    Raises:
        TrainerError: the run's data is gone, or another tokenizer's.
    """
    training_data = open_training_data(data)
    if training_data.tokenizer.fingerprint != folder.tokenizer.fingerprint:
        raise TrainerError(f"{data} holds tokens of another tokenizer now")
    if training_data.validation is None:
        return None
    length = folder.config.context_length
    count = min(_SCORED_TOKENS + 1, len(training_data.validation))
    tokens = training_data.validation.read(0, count).astype(np.int64)
    end = training_data.validation.manifest.end_of_text_id
    return PositionLoss(
        window=binned(*_sums(folder.model, consecutive_windows(tokens, length, _WINDOWS_AT_ONCE), length)),
        document=binned(*_sums(folder.model, _documents(tokens, end, length), length)),
    )


def _documents(tokens: npt.NDArray[np.int64], end: int, length: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of documents, each after the end-of-text id that precedes it, and cut to the context.

    The last one, which may be cut short, is left out unless it is the only one.
    """
    ends = np.flatnonzero(tokens == end)
    pieces = np.split(tokens, ends + 1)
    documents = [np.concatenate([[end], piece])[: length + 1] for piece in pieces[:-1] or pieces if len(piece)]
    documents.sort(key=len)
    for first in range(0, len(documents), _WINDOWS_AT_ONCE):
        rows = documents[first : first + _WINDOWS_AT_ONCE]
        longest = max(map(len, rows)) - 1
        inputs, targets = (np.full((len(rows), longest), fill, dtype=np.int64) for fill in (end, IGNORED))
        for place, row in enumerate(rows):
            inputs[place, : len(row) - 1], targets[place, : len(row) - 1] = row[:-1], row[1:]
        yield torch.from_numpy(inputs), torch.from_numpy(targets)


@torch.no_grad()
def _sums(
    model: Transformer, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], length: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Nats and tokens at each position of rows of up to `length` targets."""
    sums, counts = np.zeros(length), np.zeros(length)
    device = next(model.parameters()).device
    model.eval()
    for inputs, targets in batches:
        logits = model(inputs.to(device)).float()
        nats = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten().to(device), ignore_index=IGNORED, reduction="none"
        )
        sums[: targets.shape[1]] += nats.view(targets.shape).double().sum(0).cpu().numpy()
        counts[: targets.shape[1]] += (targets != IGNORED).sum(0).numpy()
    return sums, counts
