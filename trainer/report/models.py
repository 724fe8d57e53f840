"""Samples from a run's checkpoints, and its loss by position. Imports torch."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from shared.lm import ModelFolder, load_model_folder
from shared.system.errors import describe
from trainer.checkpoints.folders import checkpoints_by_step
from trainer.compute.device import choose_device
from trainer.errors import TrainerError
from trainer.evaluation.positions import score_positions
from trainer.evaluation.sampling import encode_prompt, sample_text
from trainer.evaluation.windows import consecutive_windows, document_windows
from trainer.report.positions import PositionLoss, binned
from trainer.runs.folder import RunFolder
from trainer.runs.results import RunResults
from trainer.tokens.dataset import open_training_data

logger = logging.getLogger(__name__)

_MOST_CHECKPOINTS = 8
_SCORED_TOKENS = 50_000


@dataclass(frozen=True)
class ModelFindings:
    """Results from the models of one run.

    Attributes:
        samples: Step and text.
        positions: None where there is no model, or no validation text.
        notes: What is missing, and why.
    """

    samples: list[tuple[int, str]] = field(default_factory=list)
    positions: PositionLoss | None = None
    notes: list[str] = field(default_factory=list)


def examine(run: RunResults, *, prompt: str | None, device: str) -> ModelFindings:
    """Draw samples from the checkpoints there are, and score validation text with the newest model.

    Args:
        run: The run.
        prompt: The prompt of the samples. None uses the run's own, and skips steps whose samples the run kept.
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
                positions = position_loss(folder, Path(run.settings["data"]), device)
    return ModelFindings(samples, positions, notes)


@contextmanager
def _noting(notes: list[str], step: int) -> Iterator[None]:
    """Turn an error into a note, and continue."""
    try:
        yield
    except Exception as error:  # an error in one run must not hide the others
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
    pieces = sample_text(
        folder.model,
        folder.tokenizer,
        encode_prompt(folder.tokenizer, begin, folder.config.context_length),
        folder.generation.params(seed=settings.get("seed", 0)),
        max_tokens=settings.get("sample_tokens", 100),
        eos_token_ids=folder.generation.eos_token_ids,
        valid_tokens=folder.valid_tokens,
    )
    return begin + "".join(pieces)


def position_loss(folder: ModelFolder, data: Path, device: str = "cpu") -> PositionLoss | None:
    """Loss by position over the first 50,000 validation tokens; None where there are none.

    Raises:
        TrainerError: the run's data is gone, or another tokenizer's.
    """
    training_data = open_training_data(data, verify=False)  # only the tokens that are scored are read
    if training_data.tokenizer.fingerprint != folder.tokenizer.fingerprint:
        raise TrainerError(f"{data} contains tokens of another tokenizer now")
    if training_data.validation is None:
        return None
    length = folder.config.context_length
    tokens = training_data.validation.read(0, min(_SCORED_TOKENS + 1, len(training_data.validation)))
    end = training_data.validation.manifest.end_of_text_id
    score = partial(score_positions, folder.model, length=length, device=choose_device(device, "float32"))
    return PositionLoss(
        window=binned(*score(consecutive_windows([tokens], length))),
        document=binned(*score(document_windows(tokens, end, length))),
    )
