"""Evaluating a model folder on files of questions."""

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch

from shared.lm import ModelFolder, load_model_folder
from shared.system.cpu_count import available_processors
from trainer.compute.device import Device, choose_device
from trainer.compute.threads import prepare_threads
from trainer.console.progress import NewBar, Report
from trainer.errors import TrainerError, UsageError
from trainer.evaluation.scoring import default_batch_tokens
from trainer.evaluation.tasks.chat import open_chat
from trainer.evaluation.tasks.formats import Format
from trainer.evaluation.tasks.generation import AnswerRules
from trainer.evaluation.tasks.items import Item
from trainer.evaluation.tasks.matching import Matching
from trainer.evaluation.tasks.metrics import Metric
from trainer.evaluation.tasks.prompting import Examples, Prompting
from trainer.evaluation.tasks.reading import TaskFile
from trainer.evaluation.tasks.runners import AnswerRunner, LikelihoodRunner, Runner, Work
from trainer.evaluation.tasks.tallies import AnswerTally, ChoiceTally, LastWordTally, Sample
from trainer.settings.evaluation import EvaluateSettings
from trainer.settings.tasks import TaskSettings
from trainer.text.memory import EncodingMemory
from trainer.text.sources import expand

logger = logging.getLogger(__name__)

# Questions that are put together, so that those of similar length share a batch: so many, or so many characters.
_GROUP_ITEMS, _GROUP_CHARACTERS = 1024, 1 << 22
_ANSWER_TOKENS = 256  # where none are given: as in lm-evaluation-harness
# Of answers, whose keys and values are kept.
_CACHE_TOKENS_ON_CPU = 8192
_CACHE_TOKENS_ELSEWHERE = 131072


@dataclass(frozen=True)
class TaskResult:
    """The result of a file.

    Attributes:
        path: The file.
        format: Its format.
        work: What its questions took.
        metrics: By name.
        seconds: Time for scoring or writing.
    """

    path: Path
    format: Format
    work: Work
    metrics: Mapping[str, Metric]
    seconds: float


@dataclass(frozen=True)
class TaskReport:
    """The results of an evaluation.

    Attributes:
        folder: The model.
        device: Where it ran.
        settings: How.
        results: In the order of the files.
    """

    folder: ModelFolder
    device: Device
    settings: TaskSettings
    results: Sequence[TaskResult]


def evaluate_tasks(model: Path, settings: EvaluateSettings, new_bar: NewBar) -> TaskReport:
    """Put the questions of files to a model. All of them are checked before the first one is put.

    Args:
        model: A model folder.
        settings: How.
        new_bar: Shows the progress.

    Raises:
        UsageError: If the settings do not fit the model or the files, or the device does not exist.
        ModelFolderError: If the model cannot be used.
        CorpusError: If a file is not one of questions; names the line or row.
        TrainerError: If a file is empty, or the model gives no finite probabilities.
    """
    machine, questions = settings.machine, settings.questions
    paths = [path for named in questions.tasks for path in expand(named)]
    if questions.samples is not None and questions.samples.resolve() in {path.resolve() for path in paths}:
        raise UsageError(f"{questions.samples} is a file of questions: --samples would overwrite it; name another file")
    memory = EncodingMemory(settings.reading.memory_bytes, available_processors()).record
    files = [TaskFile.open(path, memory=memory, limit=questions.limit, prompt=questions.prompt) for path in paths]
    examples = None
    if questions.shots_from is not None:
        file = TaskFile.open(questions.shots_from, memory=memory, limit=questions.shots, prompt=questions.prompt)
        examples = Examples.read(file, questions.shots)
    prepare_threads(machine.threads)
    device = choose_device(machine.device, machine.dtype)
    folder = load_model_folder(model, device=device.torch_device, dtype=torch.float32, research=True)
    with ExitStack() as stack:
        chat = stack.enter_context(open_chat(folder)) if questions.apply_chat_template else None
        prompting = Prompting(examples, chat)
        asking = [_Asking(file, prompting, folder, device, settings) for file in files]
        for each in asking:
            each.check()
        report_progress = new_bar("scoring", sum(each.work.tokens for each in asking))
        samples = None
        if questions.samples is not None:
            samples = stack.enter_context(questions.samples.open("w", encoding="utf-8"))
        done, results = 0, []
        for each in asking:
            results.append(each.put(done, report_progress, samples))
            done += each.work.tokens
    return TaskReport(folder, device, questions, results)


class _Asking:
    """Puts the questions of a file to a model.

    Attributes:
        work: What they take; known after `check`.
    """

    def __init__(
        self, file: TaskFile, prompting: Prompting, folder: ModelFolder, device: Device, settings: EvaluateSettings
    ) -> None:
        self._prompting = prompting
        self._file = file
        self._folder = folder
        self._device = device
        self._settings = settings
        self.work = Work()

    def check(self) -> None:
        """Read all questions once."""
        runner: Runner | None = None
        for file_format, items in self._groups():
            runner = runner or self._runner(file_format)
            self.work = Work(*map(sum, zip(self.work, runner.work(items), strict=True)))
        if runner is None:
            raise TrainerError(f"{self._file.path} has no questions; expected one on each line or row")
        if self.work.cut:
            logger.info(
                "%s: %s of %s questions do not fit into the model's context of %s tokens: their beginnings are cut",
                *(self._file.path, f"{self.work.cut:,}", f"{self.work.items:,}"),
                f"{self._folder.config.context_length:,}",
            )

    def put(self, before: int, report_progress: Report, samples: TextIO | None) -> TaskResult:
        """Put them.

        Args:
            before: The tokens that were done before.
            report_progress: Shows those done.
            samples: Takes what became of each question, a line of JSON each.
        """
        begin, done, runner = time.monotonic(), before, None
        for file_format, items in self._groups():
            runner = runner or self._runner(file_format)
            for tokens, described in runner.run(items):
                done += tokens
                speed = (done - before) / max(time.monotonic() - begin, 1e-9)
                report_progress(done, f"{self._file.path.name} {speed:,.0f} tok/s")
                if samples is not None:
                    samples.writelines(map(_line, items, described))
        assert runner is not None  # `check` found some
        report_progress(before + self.work.tokens, self._file.path.name)
        return TaskResult(self._file.path, file_format, self.work, runner.tally.metrics(), time.monotonic() - begin)

    def _groups(self) -> Iterator[tuple[Format, list[Item]]]:
        group: list[Item] = []
        size = 0
        for file_format, item in self._file.items():
            asked = self._prompting.ask(item, file_format)
            group.append(asked)
            size += len(asked.context) + sum(map(len, item.choices))
            if len(group) == _GROUP_ITEMS or size >= _GROUP_CHARACTERS:
                yield file_format, group
                group, size = [], 0
        if group:
            yield file_format, group

    def _runner(self, file_format: Format) -> Runner:
        questions, batch_size = self._settings.questions, self._settings.machine.batch_size
        if file_format.kind == "answer":
            tokens = _CACHE_TOKENS_ON_CPU if self._device.torch_device.type == "cpu" else _CACHE_TOKENS_ELSEWHERE
            longest = questions.max_answer_tokens or min(_ANSWER_TOKENS, self._folder.config.context_length // 2)
            ends = set(self._folder.generation.eos_token_ids)
            chat = self._prompting.chat
            if chat is not None and chat.end_of_turn is not None:
                ends.add(chat.end_of_turn)
            rules = AnswerRules(longest, questions.stop, ends, batch_size, tokens)
            return AnswerRunner(self._folder, rules, AnswerTally(_matching(questions)))
        tally = LastWordTally() if file_format.kind == "last word" else ChoiceTally()
        return LikelihoodRunner(self._folder, self._device, batch_size, default_batch_tokens(self._device), tally)


def _matching(questions: TaskSettings) -> Matching:
    return Matching(
        extract=None if questions.extract is None else re.compile(questions.extract),
        ignore=[re.compile(pattern) for pattern in questions.ignore],
        ignore_case=questions.ignore_case,
        ignore_punctuation=questions.ignore_punctuation,
    )


def _line(item: Item, sample: Sample) -> str:
    return json.dumps({"place": item.place, **sample}, ensure_ascii=False, allow_nan=False) + "\n"
