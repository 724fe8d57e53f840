"""The edge of stability, against rates whose stability is known."""

import re
from typing import Any

import pytest

from trainer.sweep.edge import Edge, find_edges, refine

Run = tuple[dict[str, Any], str]


def run(rate: float, status: str = "finished", **others: Any) -> Run:
    return {"learning_rate": rate, **others}, status


def only(*runs: Run) -> Edge:
    (edge,) = find_edges(runs).values()
    return edge


def test_it_lies_between_the_largest_stable_and_the_smallest_diverging_rate() -> None:
    edge = only(run(0.1, "diverged"), run(1e-3), run(3e-3), run(10, "diverged"))
    assert (edge.stable, edge.diverged) == (3e-3, 0.1)
    assert [edge.mark(rate) for rate in (1e-3, 3e-3, 0.1, 10)] == [
        "",
        "largest stable rate",
        "smallest diverging rate",
        "",
    ]
    assert str(edge) == "Edge of stability: between 0.003, the largest stable rate, and 0.1, which diverged."


def test_a_stable_rate_above_one_that_diverged_is_beyond_the_edge() -> None:
    edge = only(run(1e-3), run(0.01, "diverged"), run(0.1))
    assert (edge.stable, edge.diverged) == (1e-3, 0.01)


def test_one_seed_that_diverges_makes_a_rate_diverge() -> None:
    edge = only(run(1e-3, seed=1), run(0.01, seed=1), run(0.01, "diverged", seed=2), run(1e-3, seed=2))
    assert (edge.stable, edge.diverged) == (1e-3, 0.01)


def test_where_all_are_on_one_side_it_says_so_and_marks_no_stable_rate() -> None:
    stable, diverged = only(run(1e-3), run(0.1)), only(run(1, "diverged"), run(10, "diverged"))
    assert "above 0.1, the largest rate tried; none diverged" in str(stable)
    assert stable.mark(0.1) == ""
    assert "below 1, the smallest rate tried; it diverged" in str(diverged)


def test_each_group_has_its_own() -> None:
    limits = {True: 1, False: 0.1}
    runs = [
        run(rate, "diverged" if rate >= limits[on] else "finished", qk_norm=on)
        for on in limits
        for rate in (0.01, 0.1, 1)
    ]
    edges = list(find_edges(runs).values())
    assert [(edge.group, edge.stable, edge.diverged) for edge in edges] == [
        ({"qk_norm": True}, 0.1, 1),
        ({"qk_norm": False}, 0.01, 0.1),
    ]
    assert "with qk_norm=False: between" in str(edges[1])


def test_what_neither_finished_nor_diverged_does_not_count() -> None:
    assert find_edges([run(1e-3), run(0.1, "failed"), ({"seed": 1}, "finished")]) == {}


@pytest.mark.parametrize("true_edge", [2e-5, 0.005, 0.0777, 3.0, 4_000.0])
def test_refining_finds_it_from_any_side(true_edge: float) -> None:
    """To within a tenth, after at most twelve runs; each new rate is one that was not tried."""
    runs = [run(rate, "diverged" if rate >= true_edge else "finished") for rate in (1e-3, 0.01)]
    for _ in range(12):
        for changes in refine(runs):
            assert changes not in [own for own, _ in runs]
            runs.append(
                run(changes["learning_rate"], "diverged" if changes["learning_rate"] >= true_edge else "finished")
            )
    edge = only(*runs)
    assert edge.stable is not None
    assert edge.diverged is not None
    assert edge.stable < true_edge <= edge.diverged < 1.1 * edge.stable


def test_refining_halves_by_ratio_with_every_seed_of_every_group() -> None:
    runs = [
        run(rate, "diverged" if rate == 1 else "finished", seed=seed, d_model=width)
        for width in (32, 64)
        for seed in (1, 2)
        for rate in (0.01, 1)
    ]
    assert refine(runs) == [
        {"learning_rate": 0.1, "seed": seed, "d_model": width} for width in (32, 64) for seed in (1, 2)
    ]


def test_refining_ends_where_no_rate_of_three_digits_lies_in_between() -> None:
    assert refine([run(0.1), run(0.101, "diverged")]) == []
    assert refine([run(1e-8, "diverged")]) == []
    assert refine([run(1e8)]) == []
    assert refine([run(1, "failed")]) == []


def test_groups_of_lists_are_named() -> None:
    edges = find_edges([run(rate, betas=[0.9, beta]) for beta in (0.95, 0.99) for rate in (1e-3, 1e-2)])
    assert [re.findall(r"with (.*):", str(edge)) for edge in edges.values()] == [
        ["betas=[0.9, 0.95]"],
        ["betas=[0.9, 0.99]"],
    ]
