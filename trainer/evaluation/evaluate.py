"""Evaluating a model folder on texts and token files."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from shared.bpe import Tokenizer
from shared.chat import TemplateFile
from shared.lm import ModelFolder, load_model_folder
from shared.system.cpu_count import available_processors
from trainer.compute.device import Device, choose_device
from trainer.compute.threads import prepare_threads
from trainer.console.progress import NewBar
from trainer.conversations.template import choose_template
from trainer.errors import TrainerError, UsageError
from trainer.evaluation.documents import DocumentReader, Part
from trainer.evaluation.scoring import Evaluation, default_batch_tokens, score
from trainer.evaluation.validation import token_byte_lengths
from trainer.evaluation.windows import Ids, Window, WindowCutter, batches
from trainer.settings.evaluation import EvaluateSettings, ReadingSettings, ScoringSettings
from trainer.text.memory import EncodingMemory


@dataclass
class SourceEvaluation:
    """The scores of one source.

    Attributes:
        evaluation: Sums over the scored tokens.
        documents: How many documents were read to their ends.
        answers_only: Whether they are conversations, of which only the assistant's answers are scored.
    """

    evaluation: Evaluation = field(default_factory=Evaluation)
    documents: int = 0
    answers_only: bool = False


@dataclass(frozen=True)
class EvaluationReport:
    """The result of an evaluation.

    Attributes:
        folder: The model.
        device: Where it ran.
        windows: How documents were split into windows.
        sources: By name, in the order in which they were read.
        seconds: Time for reading, encoding and scoring.
    """

    folder: ModelFolder
    device: Device
    windows: "WindowRules"
    sources: dict[str, SourceEvaluation]
    seconds: float

    @property
    def total(self) -> SourceEvaluation:
        """The sum of the sources."""
        parts = self.sources.values()
        evaluation = sum((part.evaluation for part in parts), Evaluation())
        answers_only = all(part.answers_only for part in parts)
        return SourceEvaluation(evaluation, sum(part.documents for part in parts), answers_only)


@dataclass(frozen=True)
class WindowRules:
    """How documents are split into windows.

    Attributes:
        documents: `apart`, or `packed` one after the other.
        length: Inputs of a window.
        stride: See `WindowCutter`.
        fill_last: See `WindowCutter`.
        begin_id: The id before the first token of a sequence, which lets it be scored; None if there is none.
        end_id: The id after each document of a packed sequence.
        document_mask: Whether a token of a packed sequence attends to its own document only.
        max_tokens: Of each source, the first ones; None for all.
    """

    documents: Literal["apart", "packed"]
    length: int
    stride: int
    fill_last: bool
    begin_id: int | None
    end_id: int | None
    document_mask: bool
    max_tokens: int | None

    def windows(self, parts: Iterator[Part], source_of: Callable[[str], SourceEvaluation]) -> Iterator[Window]:
        """The windows of a file.

        Args:
            parts: Its documents.
            source_of: Gives the source of a name, whose documents are counted.
        """
        left = self.max_tokens
        cutter: WindowCutter | None = None
        for part in parts:
            if cutter is None:
                cutter = self._cutter(part.source)
                if part.mask is None:
                    yield from cutter.feed(self._begin)
                elif self.documents == "packed":
                    raise UsageError("conversations are scored one by one: leave out --documents packed")
                else:
                    source_of(part.source).answers_only = True
            ids, mask = part.ids, part.mask
            if part.ends and self.documents == "packed":
                ids = np.append(ids, np.asarray([self.end_id], ids.dtype))
            is_cut = left is not None and left < len(ids)
            if left is not None:
                ids, mask = ids[:left], None if mask is None else mask[:left]
                left -= len(ids)
            if part.ends and not is_cut:
                source_of(part.source).documents += 1
            yield from cutter.feed(ids, mask)
            if part.ends and self.documents == "apart":
                yield from cutter.finish()
                cutter = None
            if left == 0:
                break
        if cutter is not None:
            yield from cutter.finish()

    @property
    def _begin(self) -> Ids:
        return np.array([] if self.begin_id is None else [self.begin_id], np.uint32)

    def _cutter(self, source: str) -> WindowCutter:
        return WindowCutter(self.length, self.stride, fill_last=self.fill_last, source=source)


def evaluate_inputs(
    model: Path,
    inputs: Sequence[Path],
    settings: EvaluateSettings,
    new_bar: NewBar,
) -> EvaluationReport:
    """Score texts and token files with a model.

    Args:
        model: A model folder.
        inputs: As in `DocumentReader.open`.
        settings: How.
        new_bar: Shows the progress.

    Raises:
        UsageError: If the settings do not fit the model or the inputs, or the device does not exist.
        ModelFolderError: If the model cannot be used.
        CorpusError: If a text cannot be read as UTF-8.
        TokenFileError: See `DocumentReader.open`.
        TrainerError: If there is no token to score, or the model gives no finite probabilities.
    """
    machine, reading = settings.machine, settings.reading
    prepare_threads(machine.threads)
    device = choose_device(machine.device, machine.dtype)
    folder = load_model_folder(model, device=device.torch_device, dtype=torch.float32, research=True)
    rules = _rules(settings.scoring, folder)
    folder.model.document_start = rules.end_id if rules.document_mask else None
    begin = time.monotonic()
    reader = DocumentReader(
        tokenizer=folder.tokenizer,
        separator=reading.document_separator,
        text_field=reading.text_field,
        errors=reading.errors,
        memory=EncodingMemory(reading.memory_bytes, available_processors()),
        by=reading.by,
        template=_template(reading, folder) if reading.chat else None,
    )
    opened = reader.open(inputs)
    sources: dict[str, SourceEvaluation] = {}
    if reading.by in {"input", "file"}:
        sources.update((file.source, SourceEvaluation()) for file in opened)

    def source_of(name: str) -> SourceEvaluation:
        return sources.setdefault(name, SourceEvaluation())

    windows = (window for file in opened for window in rules.windows(file.read(), source_of))
    sizes = [None if rules.max_tokens else file.size for file in opened]
    size = None if None in sizes else sum(filter(None, sizes))
    report_progress = new_bar("scoring", size)
    note, done = "", Evaluation()
    for parts in _scores(folder, windows, device, machine.batch_size):
        for name, part in parts.items():
            source_of(name).evaluation += part
            done += part
        note = f"loss {done.loss:.4f} {done.tokens / (time.monotonic() - begin):,.0f} tok/s"
        report_progress(done.bytes, note)
    report_progress(size or done.bytes, note)  # separators are not text, so that a part of the size is left
    report = EvaluationReport(folder, device, rules, sources, time.monotonic() - begin)
    _check(report)
    return report


def _template(reading: ReadingSettings, folder: ModelFolder) -> TemplateFile:
    return choose_template(reading.chat_template, folder.path, folder.tokenizer).file


def _scores(
    folder: ModelFolder, windows: Iterator[Window], device: Device, batch_size: int | None
) -> Iterator[dict[str, Evaluation]]:
    byte_lengths = token_byte_lengths(folder.tokenizer, folder.valid_tokens)
    for batch in batches(windows, batch_size=batch_size, batch_tokens=default_batch_tokens(device)):
        yield score(folder.model, batch, byte_lengths, device=device)


def _rules(settings: ScoringSettings, folder: ModelFolder) -> WindowRules:
    longest = folder.config.context_length
    length = settings.window or longest
    if length > longest:
        raise UsageError(f"--window must be at most {longest}, the context length of the model; got {length}")
    stride = settings.stride or length
    if stride > length:
        raise UsageError(f"--stride must be at most {length}, the window, so that no token is skipped; got {stride}")
    end_id = folder.tokenizer.end_of_text_id
    if settings.documents == "packed" and end_id is None:
        raise UsageError(
            "the tokenizer has no end-of-text token to put between packed documents; use --documents apart"
        )
    return WindowRules(
        documents=settings.documents,
        length=length,
        stride=stride,
        fill_last=settings.last_window == "full",
        begin_id=_begin_id(folder.tokenizer, settings.documents) if settings.begin else None,
        end_id=end_id,
        document_mask=settings.documents == "packed" and _is_masked(settings, folder),
        max_tokens=settings.max_tokens,
    )


def _is_masked(settings: ScoringSettings, folder: ModelFolder) -> bool:
    """The setting, else what `train` wrote into ownlm.json."""
    if settings.document_mask is not None:
        return settings.document_mask
    training = folder.provenance.get("training", {}).get("settings", {})
    return training.get("document_mask", False) is True


def _begin_id(tokenizer: Tokenizer, documents: str) -> int | None:
    """The id before a document: where documents are packed, that is the end of another one."""
    has_own = documents == "apart" and tokenizer.bos_id is not None
    return tokenizer.bos_id if has_own else tokenizer.end_of_text_id


def _check(report: EvaluationReport) -> None:
    total = report.total
    if not total.evaluation.tokens:
        why = "" if report.windows.begin_id is not None else "; without --begin, the first token of each is not scored"
        raise TrainerError(
            f"there is no token to score in {', '.join(report.sources) or 'the inputs'}: need more text (documents "
            f"found: {total.documents}{why})"
        )
    for name, source in report.sources.items():
        if source.evaluation.tokens and not math.isfinite(source.evaluation.nats):
            raise TrainerError(
                f"the loss on {name} is {source.evaluation.loss}: the probabilities of {report.folder.path} are NaN or "
                "infinite; its training has diverged, or its weights are damaged"
            )
