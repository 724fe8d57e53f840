"""The options of `vocab`, with the advice that `--help` shows."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from trainer.settings.fields import setting
from trainer.settings.text import TextSettings, refuse_threads


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class VocabSettings(TextSettings):
    """How a tokenizer is trained."""

    vocab_size: int
    """Tokens wanted, the 256 bytes and the special tokens included. 1,024 suits a toy language, 4,096 to 8,192 a model
    of some million parameters on simple text, 32,768 one of 100 million on everything. More means fewer tokens per
    text, and a larger embedding."""

    special_token: Annotated[tuple[str, ...], Parameter(negative="--no-special-token")] = ("<|endoftext|>",)
    """A token with a meaning of its own, never part of a text; give the option once for each. Keep `<|endoftext|>`,
    which ends documents."""

    pattern: str = "gpt2"
    """How text is split into pretokens before pairs are counted: `gpt2`, `cl100k`, `o200k`, `llama3`, `qwen`, or a
    regular expression, read as Hugging Face's tokenizers reads it. `gpt2` is right for English; `o200k` keeps more
    languages and long numbers in good shape."""

    min_count: int = setting(1, minimum=1)
    """Leave out pretokens that occur less often: rare ones take most of the memory and contribute little."""

    held_out: str | None = None
    """Text that is kept out of the training, to measure how well text of its kind is compressed: a file, or a size,
    such as 1M, taken from the beginnings of the files in the order of their names. Default: 1M where there are 32M of
    files or more, else nothing. 0 trains on everything."""

    threads: int | None = setting(None, minimum=1, affects="machine")
    """Threads that count. Default: one for each core."""

    ray: str | None = setting(None, affects="machine")
    """Count on all nodes of a Ray cluster, which read the files under the same names: HOST:PORT, `auto` for the cluster
    that this machine belongs to, or `local`. The result is the same."""

    overwrite: Annotated[bool, Parameter(negative="")] = setting(False, affects="watching")
    """Replace a tokenizer that is in the output directory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_threads(self.ray, self.threads)
