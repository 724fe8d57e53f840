"""Settings for experiments on training: rates of their own for embedding and output, growing batches and contexts."""

from dataclasses import dataclass

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.fields import Settings, option, setting


@Parameter(name="*", group=Group("Experiments: separate learning rates, batch and context schedules", sort_key=3.5))
@dataclass(frozen=True, kw_only=True)
class ExperimentSettings(Settings):
    """Ideas from papers that are off by default; docs/lab/optimization-ideas.md has what each gained and lost."""

    embedding_learning_rate: float | None = setting(None, minimum=0)
    """Peak learning rate of the embedding, which rises and falls with --learning-rate; the best one depends less on the
    width of the model (Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, table 3). Of a tied embedding, it is
    that of the output projection too. Default: --learning-rate."""

    head_learning_rate: float | None = setting(None, minimum=0)
    """The same for the output projection (Yang et al. 2022); needs --no-tie-embeddings. Default: --learning-rate."""

    batch_schedule: str = ""
    """Windows of a step early in the run: WINDOWS:STEP,... until so many steps are done, then the full batch.
    2:500,4:1000 begins with 2, and has 4 from step 500 to 1000. FROM-TO:STEP grows in a straight line, as in GPT-3
    (Brown et al. 2020, arXiv 2005.14165, appendix B). Growing batches late in a run act like a falling learning rate
    (Smith et al. 2018, arXiv 1711.00489): use --schedule constant."""

    context_schedule: str = ""
    """Tokens of a window early in the run: TOKENS:STEP,... until so many steps are done, then --context-length. 64:500,
    or 32-256:1000, which grows in a straight line by multiples of 8 (Li et al. 2022, "The Stability-Efficiency
    Dilemma", arXiv 2108.06084). Steps with shorter windows have fewer tokens; validation always has the full
    context."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("embedding_learning_rate", "head_learning_rate"):
            if getattr(self, name) == 0:
                raise UsageError(f"{option(name)} must be above 0; got 0")
