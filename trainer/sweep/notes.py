"""What a sweep compares, in words: what is held and what that means, and the variants. For its output and report."""

from collections.abc import Mapping, Sequence

from shared.lm import ModelConfig
from trainer.settings.train import TrainSettings, to_table
from trainer.sweep.plan import Design, PlannedRun
from trainer.sweep.studies import VOCAB_SIZE, Changes

_SWITCHES: Mapping[tuple[str, object], str] = {
    ("norm", "pre"): "RMSNorm before each part of a block and at the end",
    ("norm", "post"): "RMSNorm after each residual sum, none at the end",
    ("norm", "none"): "no RMSNorm",
    ("position", "rope"): "rotary position embedding",
    ("position", "none"): "no position encoding",
    ("activation", "swiglu"): "SwiGLU",
    ("activation", "silu"): "SiLU without a gate",
}


def notes_on(design: Design, runs: Sequence[PlannedRun], configs: Mapping[str, ModelConfig]) -> list[str]:
    """Sentences on what the runs have in common and what their comparison shows.

    Args:
        design: What is held.
        runs: All runs.
        configs: The model of each, by the run's name.
    """
    notes = _held(design, runs) if len({run.settings.shapes for run in runs}) > 1 else []
    if any(VOCAB_SIZE in run.changes for run in runs):
        notes.append("The vocabularies differ: compare bits per byte, since losses of different tokens do not compare.")
    if design.study.switches:
        notes += _variants(design, runs, configs)
    return notes


def _held(design: Design, runs: Sequence[PlannedRun]) -> list[str]:
    """What equal steps or equal tokens show, and the learning rates."""
    steps = [run.settings.optimization.max_steps for run in runs]
    tokens = [run.settings.shapes.tokens(run.settings.optimization.max_steps) for run in runs]
    notes = []
    if design.hold == "tokens":
        notes.append(
            f"Tokens are held: every run trains on {_range(tokens)} tokens, so larger batches take fewer steps "
            f"({_range(steps)}). This compares batches at equal computation, where smaller ones usually gain: "
            "they make more updates. --hold steps compares them at equal updates, where larger ones gain."
        )
    elif len(set(steps)) == 1:
        notes.append(
            f"Steps are held: every run takes {_range(steps)} steps, so larger batches see more tokens "
            f"({_range(tokens)}). This compares batches at equal updates, where larger ones gain: they train on more "
            "text, and compute more in proportion. --hold tokens compares them at equal computation, where smaller "
            "ones usually gain."
        )
    rates = [run.settings.optimization.learning_rate for run in runs]
    rule = {"sqrt": "in proportion to the square root of the batch", "linear": "in proportion to the batch"}
    if design.rate_scaling in rule:
        notes.append(f"The learning rate grows {rule[design.rate_scaling]}: {_range(rates)}.")
    elif len(set(rates)) == 1:
        notes.append(f"The learning rate is {_range(rates)} in every run; --rate-scaling lets it follow the batch.")
    return notes


def _variants(design: Design, runs: Sequence[PlannedRun], configs: Mapping[str, ModelConfig]) -> list[str]:
    """The baseline, what every run has, and each variant's switch with the sizes that follow from it."""
    baseline = configs[next(run.name for run in runs if run.baseline)]
    notes = [_baseline(design.base, baseline, runs)]
    model = to_table(design.base.model)
    common = {name: model[name] for name in design.study.defaults if not any(name in run.changes for run in runs)}
    if common:
        source = "the defaults of this study" if common.items() <= design.study.defaults.items() else "as asked"
        notes.append(f"In every run: {', '.join(f'{name}={value}' for name, value in common.items())} ({source}).")
    seen: list[Changes] = []
    for run in runs:
        own = {name: value for name, value in run.changes.items() if name in design.study.switches}
        if own and own not in seen:
            seen.append(own)
            notes.append(_variant(own, configs[run.name], baseline))
    return notes


def _baseline(base: TrainSettings, config: ModelConfig, runs: Sequence[PlannedRun]) -> str:
    model = to_table(base.model)
    parts = ", ".join(_words(name, model[name]) for name in ("norm", "position", "activation"))
    rates = sorted({run.settings.optimization.learning_rate for run in runs})
    return (
        f"Baseline: {parts}; num_layers {config.num_layers}, d_model {config.d_model}, d_ff {config.d_ff}, "
        f"{config.num_parameters:,} parameters; {base.optimization.max_steps:,} steps of {base.tokens_per_step:,} "
        f"tokens, learning rate {', '.join(f'{rate:g}' for rate in rates)}. Each other run differs from it in one "
        "switch."
    )


def _variant(own: Changes, config: ModelConfig, baseline: ModelConfig) -> str:
    names = ",".join(f"{name}={value}" for name, value in own.items())
    width = "" if config.d_ff == baseline.d_ff else f"d_ff {config.d_ff} instead of {baseline.d_ff}, "
    more = config.num_parameters - baseline.num_parameters
    compared = "as the baseline" if more == 0 else f"{abs(more):,} {'more' if more > 0 else 'fewer'}"
    words = ", ".join(_words(name, value) for name, value in own.items())
    return f"{names}: {words}; {width}{config.num_parameters:,} parameters, {compared}."


def _words(name: str, value: object) -> str:
    return _SWITCHES.get((name, value), f"{name}={value}")


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
