"""The options of an evaluation, with the advice that `--help` shows."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.fields import Settings, changed_names, option, setting
from trainer.settings.tasks import TaskSettings
from trainer.settings.text import READING, DocumentSettings


@Parameter(name="*", group=Group("What is scored", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class ScoringSettings(Settings):
    """Which tokens are scored, given which."""

    documents: Literal["apart", "packed"] = "apart"
    """`apart`: every document by itself; its tokens are scored, its end is not. Use it to compare models. `packed`: the
    documents of a file one after another with an end-of-text id after each, which is scored too, cut into windows
    regardless of where they end: how `train` reads its data, and the number that it reports."""

    document_mask: bool | None = None
    """For packed documents: let a token attend to its own document only. Default: as the model was trained."""

    window: int | None = setting(None, minimum=1)
    """The most tokens that a token is predicted from. Default: the model's context length."""

    stride: int | None = setting(None, minimum=1)
    """Tokens by which the window moves in longer documents, and which are scored; those before them in the window are
    context. Half a window takes twice the time and gives a more accurate, lower loss. Default: window, so that windows
    do not overlap."""

    last_window: Literal["short", "full"] = "short"
    """Where the last window of a longer document begins: `short`: one stride after the previous one, as in the loop of
    transformers; `full`: early enough to be full, as in lm-evaluation-harness."""

    begin: bool = True
    """Put the tokenizer's begin-of-text id (else its end-of-text id) before the first token, so that it is scored too;
    without it, scoring starts at the second token."""

    max_tokens: int | None = setting(None, minimum=1)
    """Score the first tokens of each file only, this many. Default: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.document_mask and self.documents == "apart":
            raise UsageError("--document-mask is for --documents packed: documents apart are masked anyway")


@Parameter(name="*", group=READING)
@dataclass(frozen=True, kw_only=True)
class ReadingSettings(DocumentSettings):
    """How inputs become documents."""

    by: str = "input"
    """The rows of the table: `input`, as named; `file`, each file of a directory; or the name of a field of JSON lines
    and parquet files, such as `source`, for a row for each of its values."""

    chat: Annotated[bool, Parameter(negative="")] = False
    """The files are conversations, as for `encode --chat`: each is rendered by the model's chat template and scored by
    itself, as it is served, and only the assistant's answers count. So are token files of conversations, without this
    option."""

    chat_template: Path | None = None
    """A file with another chat template, or a folder that has one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chat_template is not None and not self.chat:
            raise UsageError("--chat-template is for conversations: add --chat")


@Parameter(name="*", group=Group("Machine", sort_key=3))
@dataclass(frozen=True, kw_only=True)
class ScoringMachineSettings(Settings):
    """Where it runs."""

    batch_size: int | None = setting(None, minimum=1)
    """Windows at once; the result does not depend on it. Default: as many as have 1,024 tokens; on a GPU, 32,768."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`: the first GPU that works, else the CPU."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the matrix products. `auto` is bfloat16 on GPUs that have it, else float32; name float32 for figures
    that are to agree to more than two decimals with those of another machine."""

    threads: int | None = setting(None, minimum=1)
    """CPU threads. Default: one for each core, or as many as a container may use."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """All settings of an evaluation."""

    scoring: ScoringSettings = field(default_factory=ScoringSettings)
    reading: ReadingSettings = field(default_factory=ReadingSettings)
    machine: ScoringMachineSettings = field(default_factory=ScoringMachineSettings)
    questions: TaskSettings = field(default_factory=TaskSettings)

    def __post_init__(self) -> None:
        groups: tuple[Settings, ...] = (self.scoring, self.reading) if self.questions.tasks else (self.questions,)
        unused = [name for group in groups for name in changed_names(group) if name != "memory_limit"]
        if unused and self.questions.tasks:
            raise UsageError(f"{option(unused[0])} is for texts and has no effect with --tasks: omit it")
        if unused:
            raise UsageError(f"{option(unused[0])} is for questions, whose files are named with --tasks")
        if self.scoring.documents == "packed" and self.reading.by not in {"input", "file"}:
            raise UsageError(
                f"a row for each {self.reading.by!r} needs --documents apart: packed documents share their windows"
            )
        if self.scoring.documents == "packed" and self.reading.chat:
            raise UsageError("conversations are scored one by one: leave out --documents packed")
