from typing import Any

import pytest

from benchmarks.bpe.jobs import Measurement
from benchmarks.bpe.targets import judge
from benchmarks.report import Verdict


def measured(first: float, **others: Any) -> Measurement:
    return Measurement(seconds={"first": first}, num_bytes=10**6, **others)


def judged(job: str, packages: dict[str, Measurement], *, quick: bool = True) -> list[Verdict]:
    return judge({job: packages}, quick=quick)


@pytest.mark.parametrize(("peer", "met"), [(0.9, False), (1.0, True), (1.1, True)])
def test_ours_is_to_be_ahead(peer: float, met: bool):
    (verdict,) = judged(
        "training stories", {"ownlm": measured(1.0), "gigatoken": measured(peer), "tokenizers": measured(9.0)}
    )
    assert verdict.met is met
    assert verdict.measured == f"{peer:.2f} times gigatoken"


def test_a_full_run_asks_for_the_whole_factor():
    packages = {"ownlm": measured(1.0), "gigatoken": measured(1.1)}
    assert [v.met for v in judged("file 2", packages)] == [True]
    assert [v.met for v in judged("file 2", packages, quick=False)] == [False]


def test_rates_are_compared_where_a_peer_had_less_text():
    slice_of_it = Measurement(seconds={"first": 0.5}, num_bytes=2 * 10**5)
    (verdict,) = judged("training stories", {"ownlm": measured(1.0), "tokenizers": slice_of_it})
    assert verdict.met
    assert verdict.measured == "2.50 times tokenizers"


def test_peers_with_other_ids_do_not_count():
    packages = {"ownlm": measured(1.0), "tokie": measured(0.1, equal=False), "gigatoken": measured(2.0, equal=True)}
    (verdict,) = judged("training stories", packages)
    assert verdict.met


def test_peers_that_failed_do_not_count():
    assert judged("training stories", {"ownlm": measured(1.0), "gigatoken": Measurement(failure="no such call")}) == []


def test_one_call_of_a_peer_stands_for_the_second():
    ours = Measurement(seconds={"first": 1.0, "again": 0.5}, num_bytes=10**6)
    verdicts = judged("training 32000", {"ownlm": ours, "rustbpe": measured(3.0)}, quick=False)
    assert [(v.measured, v.met) for v in verdicts] == [("3.00 times rustbpe", True), ("6.00 times rustbpe", True)]


def test_some_peers_have_a_target_of_their_own():
    packages = {"ownlm": measured(1.0), "tiktoken": measured(9.0), "tokenizers": measured(5.0)}
    verdicts = judged("documents", packages, quick=False)
    assert [(v.target, v.met) for v in verdicts] == [
        ("documents, first: 1.1 times the fastest peer", True),
        ("documents, again: level with the fastest peer", True),
        ("documents, first: 10 times tiktoken", False),
    ]


def test_limits_are_of_seconds():
    ours = Measurement(seconds={"import": 0.2, "open": 10.0, "encode": 20.0, "learn": 9.0})
    assert judged("start", {"ownlm": ours})[0].met
    assert judged("start from nothing", {"ownlm": ours})[0].met
    ours.seconds["learn"] = 11.0
    assert not judged("start from nothing", {"ownlm": ours})[0].met


@pytest.mark.parametrize(("peak", "met"), [(49, True), (51, False)])
def test_memory_is_half_of_tokenizers(peak: int, met: bool):
    ours = Measurement(seconds={"first": 1.0, "again": 1.0}, num_bytes=10**6, peak=peak)
    verdicts = judged("training 32000", {"ownlm": ours, "tokenizers": measured(9.0, peak=100)})
    assert [v.met for v in verdicts if "memory" in v.target] == [met]


def test_memory_is_not_compared_on_different_texts():
    ours = Measurement(seconds={"first": 1.0, "again": 1.0}, num_bytes=10**7, peak=100)
    verdicts = judged("training 32000", {"ownlm": ours, "tokenizers": measured(9.0, peak=100)})
    assert [v for v in verdicts if "memory" in v.target] == []


@pytest.mark.parametrize(("seconds", "peak", "met"), [(1.2, 110, [True, True]), (1.3, 130, [False, False])])
def test_time_is_linear_and_memory_flat(seconds: float, peak: int, met: list[bool]):
    results = {
        f"scaling file {size}": {"ownlm": Measurement({"first": time}, num_bytes=size * 10**6, peak=memory)}
        for size, time, memory in ((10, 0.05, 50), (200, 1.0, 100), (2000, 10 * seconds, peak))
    }
    assert [verdict.met for verdict in judge(results, quick=False)] == met
