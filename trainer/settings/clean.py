"""The options of `clean`, with the advice that `--help` shows."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from trainer.errors import UsageError
from trainer.settings.fields import setting
from trainer.settings.text import DocumentSettings


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CleanSettings(DocumentSettings):
    """Which documents stay."""

    filter: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    """A function that decides which documents stay, as `module:function`; repeat it for more, applied in order. It
    takes the text and returns True where the document stays, and False, or a reason as a string, where it leaves."""

    near_duplicates: float = setting(0.8, minimum=0.1, maximum=1.0)
    """Also remove documents that are as similar as this to an earlier one: the estimated Jaccard similarity of their
    shingles. 0.8 is usual, 0.7 removes more; 1 removes equal documents only."""

    shingle: int = setting(5, minimum=1)
    """Words of a shingle. 5 is usual for prose; fewer find more that is alike in short texts."""

    workers: int | None = setting(None, minimum=1, affects="machine")
    """Processes that read. Default: one for each core."""

    ray: str | None = setting(None, affects="machine")
    """Read and write on all nodes of a Ray cluster, which find the files and the modules of filters under the same
    names: HOST:PORT, `auto` for the cluster that this machine belongs to, or `local`. The result is the same."""

    overwrite: Annotated[bool, Parameter(negative="")] = setting(False, affects="watching")
    """Replace cleaned text in the output directory, and what an interrupted run left there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ray is not None and self.workers is not None:
            raise UsageError(
                "--workers is for one machine; with --ray there is a task for each processor of the cluster"
            )
