"""What varies, and what follows from it."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import UsageError
from trainer.recipes.options import parse_train_settings
from trainer.settings.file import read_settings_file
from trainer.settings.train import ModelSettings, OptimizationSettings, TrainSettings, WatchSettings, to_table
from trainer.sweep.axes import parse_axes
from trainer.sweep.plan import Design, combine, plan_runs
from trainer.sweep.studies import STUDIES, Study, StudyName

BASE = TrainSettings(
    data=Path("tokens"),
    output=Path("sweeps/s"),
    optimization=OptimizationSettings(batch_size=32, learning_rate=1e-3),
)


def planned(
    *grid: str, zipped: tuple[str, ...] = (), base: TrainSettings = BASE, name: StudyName | None = None, **design: Any
) -> Any:
    study = STUDIES[name] if name else Study()
    changes = combine(study, parse_axes(grid, option="--grid"), parse_axes(zipped, option="--zip"), base)
    return plan_runs(Design(base, study, **design), changes)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("learning_rate=1e-4,3e-4, 1_0.0", [1e-4, 3e-4, 10.0]),
        ("batch-size=4,8", [4, 8]),
        ("qk_norm=true,false", [True, False]),
        ("initialization=normal,mimetic", ["normal", "mimetic"]),
        ('sample_prompt=["a, b", "c"]', ["a, b", "c"]),
        ("betas=[[0.9, 0.95], [0.9, 0.99]]", [[0.9, 0.95], [0.9, 0.99]]),
        ("betas=[0.9, 0.95], [0.9, 0.99]", [[0.9, 0.95], [0.9, 0.99]]),
        ("device=cpu", ["cpu"]),
        (" norm = pre,  none , post", ["pre", "none", "post"]),
        ('sample_prompt=["", "a"]', ["", "a"]),
    ],
)
def test_values_are_toml_or_bare_words(text: str, values: list[Any]) -> None:
    ((_, parsed),) = parse_axes([text], option="--grid").items()
    assert parsed == values
    assert [type(value) for value in parsed] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (["learning_rate"], "NAME=VALUE,VALUE"),
        (["learning_rate="], "NAME=VALUE,VALUE"),
        (["=1,2"], "NAME=VALUE,VALUE"),
        (["seed=[]"], r"seed=\[\]: the list is empty"),
        (["norm=pre,,none"], "a value is missing before or after a comma"),
        (["norm=pre, none,"], "a value is missing before or after a comma"),
        (["learning_rate=1,1.0"], "has the value 1.0 twice"),
        (["seed=1", "seed=2"], "seed is given twice"),
        (["output=a,b"], "the sweep sets it for each run"),
        (["learning_rat=1,2"], r"unknown key 'learning_rat'\. Did you mean 'learning_rate'\?"),
        (["learning_rate=fast,slow"], "learning_rate=fast"),
        (["learning_rate=0.1,-1"], "--learning-rate must be a finite number of at least 0; got -1"),
        (["total_batch_size=33,64"], None),
        (["batch_size=4,5", "total_batch_size=8"], "must be a multiple of --batch-size"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_run(grid: list[str], message: str | None) -> None:
    if message is None:
        planned(*grid)
        return
    with pytest.raises(UsageError, match=message):
        planned(*grid)


def test_a_grid_is_every_combination() -> None:
    runs = planned("learning_rate=1e-3,0.5", "qk_norm=true,false")
    assert [run.name for run in runs] == [
        "learning_rate=0.001,qk_norm=True",
        "learning_rate=0.001,qk_norm=False",
        "learning_rate=0.5,qk_norm=True",
        "learning_rate=0.5,qk_norm=False",
    ]
    assert runs[2].settings.optimization.learning_rate == 0.5
    assert runs[2].settings.model.qk_norm
    assert runs[2].settings.output == Path("sweeps/s/learning_rate=0.5,qk_norm=True")


def test_zipped_axes_vary_together() -> None:
    runs = planned("seed=1,2", zipped=("d_model=128,256", "num_layers=2,4"))
    shapes = [
        (run.settings.optimization.seed, run.settings.model.d_model, run.settings.model.num_layers) for run in runs
    ]
    assert shapes == [(1, 128, 2), (1, 256, 4), (2, 128, 2), (2, 256, 4)]
    with pytest.raises(UsageError, match="d_model has 2, num_layers has 1"):
        planned(zipped=("d_model=128,256", "num_layers=2"))
    with pytest.raises(UsageError, match="in both --grid and --zip"):
        planned("seed=1", zipped=("seed=1",))


ABLATIONS = (
    "norm=pre,none,post,pre,pre",
    "position=rope,rope,rope,none,rope",
    "activation=swiglu,swiglu,swiglu,swiglu,silu",
)


@pytest.mark.extended
@pytest.mark.case("D53")
def test_zipped_axes_may_repeat_values_where_the_rows_differ() -> None:
    """The ablations of CS336's first assignment: one change to the base at a time."""
    runs = planned(zipped=ABLATIONS)
    shapes = [(m.norm, m.position, m.activation) for m in (run.settings.model for run in runs)]
    assert shapes == [
        ("pre", "rope", "swiglu"),
        ("none", "rope", "swiglu"),
        ("post", "rope", "swiglu"),
        ("pre", "none", "swiglu"),
        ("pre", "rope", "silu"),
    ]
    assert len({run.name for run in runs}) == 5
    assert len(planned("seed=1,2", zipped=ABLATIONS)) == 10


@pytest.mark.case("D53")
@pytest.mark.parametrize(
    ("zipped", "message"),
    [
        (("norm=pre,none,pre", "position=rope,none,rope"), "values 1 and 3: norm=pre, position=rope"),
        (("learning_rate=1e-3,0.001",), "values 1 and 2: learning_rate=0.001"),
        (("betas=[[0.9, 0.95], [0.9, 0.99], [0.9, 0.99]]", "seed=1,2,2.0"), "values 2 and 3"),
    ],
)
def test_rows_that_are_the_same_are_refused(zipped: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        planned(zipped=zipped)


@pytest.mark.parametrize(
    ("grid", "zipped"),
    [
        (['learning_rate=1e-3,"0.001"'], ()),
        ([], ("learning_rate=1e-3,1e-3,1e-3", "norm=pre,none,post", "seed=1,2,3", "position=rope,none")),
        (["qk_norm=true,yes"], ()),
    ],
)
def test_runs_of_equal_settings_are_refused(grid: list[str], zipped: tuple[str, ...]) -> None:
    """However their values are written, since their results would be one; and rows of unequal length."""
    with pytest.raises(UsageError, match=r"are the same: all settings are equal|position has 2"):
        planned(*grid, zipped=zipped)


def test_ablations_differ_from_their_baseline_in_one_switch() -> None:
    runs = planned(name="ablations")
    tables = {run.name: to_table(run.settings) for run in runs}
    assert [run.name for run in runs if run.baseline] == ["baseline"]
    differing = {
        name: {key: value for key, value in table.items() if value != tables["baseline"][key] and key != "output"}
        for name, table in tables.items()
    }
    assert differing == {
        "baseline": {},
        "norm=post": {"norm": "post"},
        "norm=none": {"norm": "none"},
        "position=none": {"position": "none"},
        "activation=silu": {"activation": "silu"},
    }


@pytest.mark.extended
def test_ablations_are_made_for_every_combination_of_other_axes() -> None:
    runs = planned("seed=1,2", "learning_rate=1e-3", name="ablations")
    assert len(runs) == 10
    assert [run.name for run in runs if run.baseline] == [
        "baseline,seed=1,learning_rate=0.001",
        "baseline,seed=2,learning_rate=0.001",
    ]
    assert runs[2].settings.output == Path("sweeps/s/norm=post,seed=1,learning_rate=0.001")


def test_ablations_from_a_base_that_has_a_switch_already_are_refused() -> None:
    base = dataclasses.replace(BASE, model=ModelSettings(norm="post"))
    with pytest.raises(UsageError, match="runs baseline and norm=post are the same"):
        planned(name="ablations", base=base)
    with pytest.raises(UsageError, match="norm is varied by the study itself"):
        planned("norm=pre,post", name="ablations")


@pytest.mark.parametrize(
    ("scaling", "rates"), [("none", [1e-3] * 3), ("sqrt", [5e-4, 1e-3, 2e-3]), ("linear", [2.5e-4, 1e-3, 4e-3])]
)
@pytest.mark.parametrize("hold", ["steps", "tokens"])
def test_a_learning_rate_follows_the_batch_where_asked(scaling: str, rates: list[float], hold: str) -> None:
    runs = planned("total_batch_size=8,32,128", rate_scaling=scaling, hold=hold)
    assert [run.settings.optimization.learning_rate for run in runs] == rates
    steps = [run.settings.optimization.max_steps for run in runs]
    assert steps == ([2_500] * 3 if hold == "steps" else [10_000, 2_500, 625])


@pytest.mark.parametrize(
    ("grid", "design", "message"),
    [
        (["learning_rate=1,2", "total_batch_size=8,16"], {"rate_scaling": "sqrt"}, "--rate-scaling cannot set it"),
        (["seed=1,2"], {"rate_scaling": "linear"}, "total_batch_size does not vary"),
        (["seed=1,2"], {"refinements": 3}, "--refine narrows"),
        (["max_steps=1,2"], {"hold": "tokens"}, "tokens cannot be held"),
        (["total_batch_size=32,80032"], {"hold": "tokens"}, "one step has 20,488,192 tokens, more than the 20,480,000"),
    ],
)
def test_options_that_contradict_what_varies_are_refused(grid: list[str], design: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(*grid, **design)


@pytest.mark.case("D53")
def test_a_settings_file_may_repeat_them_too(tmp_path: Path) -> None:
    """As the command line reads it."""
    file = tmp_path / "sweep.toml"
    file.write_text('[zip]\nnorm = ["pre", "none", "pre"]\nposition = ["rope", "rope", "none"]\n')
    zipped = tuple(read_settings_file(file).config["zip"])
    assert [(run.settings.model.norm, run.settings.model.position) for run in planned(zipped=zipped)] == [
        ("pre", "rope"),
        ("none", "rope"),
        ("pre", "none"),
    ]


@pytest.mark.parametrize(
    ("study", "name", "values"),
    [
        ("learning-rate", "learning_rate", [1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.1, 10.0]),
        ("batch-size", "total_batch_size", [8, 16, 32, 64, 128]),
        ("vocab-size", "vocab_size", [1024, 2048, 4096, 8192, 16384]),
    ],
)
def test_classic_experiments_bring_their_values(study: StudyName, name: str, values: list[float]) -> None:
    assert [changes[name] for changes in combine(STUDIES[study], {}, {}, BASE)] == values
    assert combine(STUDIES[study], {name: [7]}, {}, BASE) == [{name: 7}]


def test_nothing_that_varies_is_no_sweep() -> None:
    with pytest.raises(UsageError, match="nothing varies"):
        planned()


@pytest.mark.case("D51")
@pytest.mark.parametrize("axis", ["max_steps=2.9,3", "keep=1,2.7", "total_batch_size=4.5"])
def test_a_value_is_not_rounded(axis: str) -> None:
    with pytest.raises(UsageError, match=r"must be a whole number; got \d\.\d"):
        planned(axis)


@pytest.mark.case("D46")
def test_a_warm_up_that_is_left_open_is_each_runs_own() -> None:
    base = dataclasses.replace(BASE, optimization=OptimizationSettings(max_steps=1_000))
    assert [run.settings.optimization.warmup_steps for run in planned("max_steps=10,300,5000", base=base)] == [
        2,
        60,
        100,
    ]
    fixed = dataclasses.replace(BASE, optimization=OptimizationSettings(max_steps=1_000, warmup_steps=50))
    with pytest.raises(UsageError, match=r"--warmup-steps \(50\) must be below --max-steps \(10\)"):
        planned("max_steps=10", base=fixed)


@pytest.mark.case("D46")
def test_held_tokens_in_few_steps_leave_room_for_the_peak() -> None:
    base = dataclasses.replace(BASE, optimization=OptimizationSettings(max_steps=10, batch_size=2, warmup_steps=9))
    steps = [
        (run.settings.optimization.max_steps, run.settings.optimization.warmup_steps)
        for run in planned("total_batch_size=2,4,20", hold="tokens", base=base)
    ]
    assert steps == [(10, 9), (5, 4), (1, 0)]


def test_held_tokens_are_the_same_in_every_run() -> None:
    """And what is counted in steps keeps its share: the curves have equally many points."""
    base = dataclasses.replace(
        BASE,
        optimization=OptimizationSettings(max_steps=1_000, batch_size=32, warmup_steps=50),
        watch=WatchSettings(eval_interval=100, sample_interval=0),
    )
    for run in planned("total_batch_size=8,32,128", hold="tokens", base=base):
        o, watch = run.settings.optimization, run.settings.watch
        assert o.max_steps * run.settings.tokens_per_step == 1_000 * base.tokens_per_step
        assert o.max_steps / o.warmup_steps == pytest.approx(20, rel=0.05)
        assert (o.max_steps // watch.eval_interval, watch.sample_interval) == (10, 0)
        assert o.batch_size <= 32
    with pytest.raises(UsageError, match="max_steps varies, so the number of tokens cannot be held"):
        planned("max_steps=7", "batch_size=4", hold="tokens", base=base)


def test_held_tokens_follow_the_schedule_of_each_run() -> None:
    """As many tokens in more steps, with warm-up in proportion."""
    optimization = OptimizationSettings(max_steps=100, batch_size=16, warmup_steps=20)
    model = dataclasses.replace(BASE.model, context_length=256)
    base = dataclasses.replace(BASE, optimization=optimization, model=model)
    plain, staged = planned('batch_schedule=["", "4:30"]', "context_schedule=64:20", hold="tokens", base=base)
    tokens = 100 * 16 * 256
    for run in (plain, staged):
        o = run.settings.optimization
        assert run.settings.shapes.tokens(o.max_steps) == pytest.approx(tokens, abs=16 * 256 / 2)
        assert o.warmup_steps == round(20 * o.max_steps / 100)
    assert staged.settings.optimization.max_steps > plain.settings.optimization.max_steps > 100


def test_schedules_of_several_stages_are_values_in_quotes() -> None:
    axes = parse_axes(['batch_schedule=["", "2:5,4:8"]'], option="--grid")
    assert axes == {"batch_schedule": ["", "2:5,4:8"]}
    with pytest.raises(UsageError, match="ends at step 500"):
        planned(
            "batch_schedule=2:500", base=dataclasses.replace(BASE, optimization=OptimizationSettings(max_steps=400))
        )


def test_a_total_batch_is_made_of_the_most_windows_that_fit() -> None:
    sizes = [run.settings.optimization.batch_size for run in planned("total_batch_size=8,33,34,64")]
    assert sizes == [8, 11, 17, 32]


def test_names_are_safe_for_folders_and_differ() -> None:
    runs = planned('sample_prompt=["../a", "..\\u002fb", "' + "x" * 300 + '"]', "seed=1")
    names = [run.name for run in runs]
    assert len(set(names)) == 3
    assert all("/" not in name and len(name) < 120 for name in names)


def test_a_preset_as_published_beside_our_recipe_on_its_shape() -> None:
    table = {"output": "s", "data": "tokens", "preset": "stories15m", "max_steps": 100}
    base = parse_train_settings(table, source="test")
    published, ours = (run.settings for run in planned("improved=false,true", base=base))
    assert dataclasses.replace(published, output=base.output) == base
    assert (published.model.rope_theta, ours.model.rope_theta) == (10_000, 100_000)
    assert (published.model.d_model, ours.model.d_model) == (288, 288)
    assert (published.optimization.max_steps, ours.optimization.max_steps) == (100, 100)
    assert (published.optimization.betas, ours.optimization.betas) == ((0.9, 0.95), OptimizationSettings().betas)


def test_presets_may_vary() -> None:
    table = {"output": "s", "data": "tokens", "preset": "stories15m", "max_steps": 100, "learning_rate": 0.5}
    runs = planned("preset=stories15m,cs336", base=parse_train_settings(table, source="test"))
    assert [run.settings.model.d_model for run in runs] == [288, 512]
    assert [run.settings.optimization.data_order for run in runs] == [None, "uniform"]
    assert [run.settings.optimization.learning_rate for run in runs] == [0.5, 0.5]
