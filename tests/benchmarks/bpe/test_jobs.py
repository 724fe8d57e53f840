from pathlib import Path

from benchmarks.bpe.jobs import Job, run, summarize


def test_every_process_does_what_the_job_says(corpus: Path, capfd):
    arguments = {"corpus": str(corpus), "vocab_size": 300, "again": True}
    job = Job(
        "training", "training", ("ownlm", "tokenizers", "no-such-package"), arguments,
        threads=1, repeats=2, slow={"tokenizers": {"again": False}},
    )  # fmt: skip
    results = run(job)
    ours, theirs, missing = (results[name] for name in job.packages)
    assert [len(one.runs) for one in (ours, theirs, missing)] == [2, 1, 0]
    assert set(ours.seconds) == {"first", "again"}
    assert set(theirs.seconds) == {"first"}
    assert ours.num_bytes == corpus.stat().st_size
    assert ours.peak > 10**7
    assert ours.distinct_words > 50
    assert ours.common == 1.0
    assert 0.9 < theirs.common <= 1.0
    assert "KeyError: 'no-such-package'" in missing.failure
    assert "training: ownlm: first" in capfd.readouterr().err


def test_medians_are_taken_over_processes():
    outputs = [{"seconds": {"first": seconds}, "peak": peak} for seconds, peak in ((1.0, 5), (9.0, 7), (2.0, 6))]
    measurement = summarize(outputs, outputs)
    assert measurement.seconds == {"first": 2.0}
    assert measurement.peak == 6
    assert measurement.equal is None


def test_tokens_are_compared_where_they_come_from_the_same_text():
    ours = [{"seconds": {"first": 1.0}, "bytes": 9, "tokens": ["61", "62", "63", "64"]}]
    theirs = {"seconds": {"first": 1.0}, "tokens": ["61", "62", "63", "65"]}
    assert summarize([{**theirs, "bytes": 9}], ours).common == 0.75
    assert summarize([{**theirs, "bytes": 5}], ours).common is None
    assert summarize([{**theirs, "bytes": 9, "tokens": []}], ours).common is None


def test_ids_are_compared_on_the_text_that_both_had():
    ours = [{"seconds": {"first": 1.0}, "bytes": 9, "digests": {"all": "a", "5": "b"}}]

    def equal(num_bytes: int, **digests: str) -> bool | None:
        return summarize([{"seconds": {"first": 1.0}, "bytes": num_bytes, "digests": digests}], ours).equal

    assert equal(9, all="a") is True
    assert equal(9, all="c") is False
    assert equal(5, all="c", **{"5": "b"}) is True
    assert equal(5, all="c", **{"5": "d"}) is False
    assert equal(5, all="c") is None
