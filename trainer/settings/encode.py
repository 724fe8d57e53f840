"""The options of `encode`, with the advice that `--help` shows."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.fields import names_affecting, setting
from trainer.settings.text import DocumentSettings, refuse_threads

TRAIN, VALIDATION = "train", "val"

_TAKEN = frozenset({"tokenizer", "tokenizer_config", "checksums", "profile"})
"""Names of other files of a token folder, without .json."""

CHAT = Group("Conversations", sort_key=3)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EncodeSettings(DocumentSettings):
    """How text becomes token files."""

    split: str = TRAIN
    """What the text is for: `train`, or `val` for a validation file of its own."""

    val_fraction: float | None = None
    """Instead of a split: send this fraction of the documents to `val` and the rest to `train`. 0.01 to 0.1; a hundred
    documents are enough. Where `val` would get none, since there are few documents, it gets this fraction of the text
    from its end."""

    seed: int = setting(0, minimum=0)
    """Decides which documents go to `val`. The first one always goes to `train`."""

    shard_tokens: int = setting(100_000_000, minimum=1)
    """The most tokens of a file. The text is encoded in parts of three bytes for each, which are kept after Ctrl-C, a
    full disk or a crash: the same command continues."""

    threads: int | None = setting(None, minimum=1, affects="machine")
    """Threads that encode. Default: one for each core."""

    ray: str | None = setting(None, affects="machine")
    """Encode on all nodes of a Ray cluster, which read and write the files under the same names: HOST:PORT, `auto` for
    the cluster that this machine belongs to, or `local`. The result is the same."""

    overwrite: Annotated[bool, Parameter(negative="")] = setting(False, affects="watching")
    """Replace the token files of the split, and what an interrupted run left there. A `val` that was held out of
    `train` goes with it."""

    chat: Annotated[bool, Parameter(negative="", group=CHAT)] = False
    """The files are conversations: records with `messages` or `conversations`, or with `prompt` and `response`. Each is
    rendered by a chat template, and training counts the loss of the assistant's answers only."""

    chat_template: Annotated[Path | None, Parameter(group=CHAT)] = field(default=None, metadata={"affects": "watching"})
    """A file with a chat template, or a model folder that has one. Default: that of the tokenizer's folder, else ours,
    for which the tokenizer needs the special tokens `<|im_start|>` and `<|im_end|>`. It is saved beside the token
    files, and goes with them into the model's folder."""

    context_length: Annotated[int | None, Parameter(group=CHAT)] = setting(None, minimum=1)
    """The context length of the model, which a conversation must fit into: it may have one token more, since the last
    one is only predicted. Default: no limit; `train` refuses conversations that do not fit."""

    too_long: Annotated[Literal["leave-out", "cut"], Parameter(group=CHAT)] = "leave-out"
    """What becomes of those that do not fit: `cut` keeps the messages up to the last answer that ends in time; where
    not even the first does, the conversation is left out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_threads(self.ray, self.threads)
        of_chat = (self.chat_template is not None, self.context_length is not None, self.too_long == "cut")
        if any(of_chat) and not self.chat:
            raise UsageError("--chat-template, --context-length and --too-long are for conversations: add --chat")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.split):
            raise UsageError(f"--split must be letters, digits, - and _, such as {TRAIN!r}; got {self.split!r}")
        if self.split in _TAKEN:
            raise UsageError(f"--split {self.split}: {self.split}.json is another file of the folder: choose another")
        if self.val_fraction is None:
            return
        if not 0.0 < self.val_fraction < 1.0:
            raise UsageError(f"--val-fraction must be between 0 and 1; got {self.val_fraction}")
        if self.split != TRAIN:
            raise UsageError(
                f"--val-fraction writes {TRAIN!r} and {VALIDATION!r}; it cannot be combined with --split {self.split!r}"
            )

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the token files that are written."""
        return (self.split,) if self.val_fraction is None else (TRAIN, VALIDATION)

    def identity(self) -> dict[str, Any]:
        """The settings that the result depends on, which a resumed run must share."""
        return {name: getattr(self, name) for name in sorted(names_affecting(type(self), "result"))}
