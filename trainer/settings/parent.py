"""Settings of a run that starts from a model folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.fields import Settings


@Parameter(name="*", group=Group("Starting model: continue to train a model folder", sort_key=0.5))
@dataclass(frozen=True, kw_only=True)
class ParentSettings(Settings):
    """The model folder that a run starts from, and what is added to its tokenizer."""

    init: Path | None = None
    """Model folder to start from, ours or another Llama, Mistral, Qwen2 or Qwen3: its weights, architecture and
    tokenizer; --data must have been encoded with that (`encode --tokenizer FOLDER`). Options of the model that
    contradict it are refused; --context-length may be shorter, and longer with --extend-context. Optimizer and
    learning rate start over: a fifth of the rate that the model was trained with is a good start. The folder is only
    read, and no longer needed to --resume."""

    extend_tokens: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    """A special token that the run adds to the tokenizer of --init, as `encode --extend-tokens` did for --data; repeat
    it for more. Their rows of the embedding (and output projection) begin as the mean of the others; padding rows are
    used first."""

    extend_context: bool = False
    """Let --context-length be longer than the context of --init, which becomes the model's. Positions beyond the old
    one are new to it: it has to learn them from documents that are as long. The base and the scaling of RoPE stay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init is not None:
            return
        if self.extend_tokens:
            raise UsageError("--extend-tokens adds to the tokenizer of a model folder: give --init as well")
        if self.extend_context:
            raise UsageError("--extend-context is for the model of --init; a new one has --context-length: omit it")
