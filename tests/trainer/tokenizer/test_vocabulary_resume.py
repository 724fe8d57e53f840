"""Learning that is interrupted goes on to the same vocabulary, or says that it cannot."""

import gzip
import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest

from shared.bpe import TokenizerError
from shared.bpe.training.corpus import TextFile
from shared.bpe.training.memory import MemoryBudget
from shared.system.state_folder import StateError, StateFolder
from trainer.errors import InterruptedRunError, TrainerError
from trainer.text import sources
from trainer.tokenizer.vocabulary import learn_vocabulary

STATE = "out/vocab-state"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "TextFile", lambda path: TextFile(path, 4000))


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    draw = random.Random(1)
    words = ["the", "cat", "sat", "naïve", "中文", "\r\n", ".<|endoftext|>", "12345", "don't"]
    paths = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt.gz")]
    for path in paths:
        text = " ".join("".join(draw.choices(words, k=draw.randrange(1, 4))) for _ in range(20_000)).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return paths


class Interrupting:
    """Sends a signal to this process at the call with that number, and lets it arrive.

    It is called by threads that count, and the main thread, which alone takes signals, may be slow to get its turn.
    """

    def __init__(self, after: int, number: int = signal.SIGINT):
        self.after, self.number = after, number

    def __call__(self, *_: int) -> None:
        self.after -= 1
        if self.after == 0:
            os.kill(os.getpid(), self.number)
            while signal.getsignal(self.number) is not signal.SIG_DFL:  # what `stop_on_signals` leaves behind
                time.sleep(0.001)


@pytest.mark.parametrize("pattern", ["gpt2", "o200k", r"\w+|\W"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_counting_and_merging_are_interrupted_and_gone_on_with(
    tmp_path: Path, inputs: list[Path], pattern: str, number: int
) -> None:
    whole = learn_vocabulary(inputs, tmp_path / "whole", vocab_size=900, pattern=pattern)
    stages = [
        {"progress": Interrupting(3, number)},
        {"progress": Interrupting(10, number)},
        {"merge_progress": Interrupting(1, number)},
        {"merge_progress": Interrupting(2, number)},
    ]
    for stage, options in enumerate(stages):
        with pytest.raises(InterruptedRunError, match="go on with the same command and --resume") as stopped:
            learn_vocabulary(
                inputs, tmp_path / "out", vocab_size=900, pattern=pattern, resume=stage > 0, threads=2, **options
            )  # type: ignore[arg-type]
        assert stopped.value.signal_number == number
        assert (tmp_path / STATE / "state.json").exists()
    report = learn_vocabulary(inputs, tmp_path / "out", vocab_size=900, pattern=pattern, resume=True)
    assert report.tokenizer.fingerprint == whole.tokenizer.fingerprint
    assert report.bytes_read == whole.bytes_read
    assert report.training.distinct_words == whole.training.distinct_words
    assert not (tmp_path / STATE).exists()


def test_a_signal_at_the_very_end_changes_nothing(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learn_vocabulary(inputs, tmp_path / "whole", vocab_size=300)
    monkeypatch.setattr("trainer.tokenizer.vocabulary._kind", lambda _: os.kill(os.getpid(), signal.SIGINT) or "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.console.signals.signal.SIG_DFL", signal.SIG_IGN)  # a second one would end this process
        report = learn_vocabulary(inputs, tmp_path / "out", vocab_size=300)
    assert report.tokenizer.fingerprint == whole.tokenizer.fingerprint
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (tmp_path / "whole/tokenizer.json").read_bytes()


def test_standard_input_leaves_nothing_and_says_so(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "blocks", lambda _: iter([b"some words and more\n" * 100_000] * 9))
    with pytest.raises(InterruptedRunError, match="standard input and pipes can be read only once"):
        learn_vocabulary([*inputs, Path("-")], tmp_path / "out", vocab_size=300, progress=Interrupting(2))
    assert not (tmp_path / "out").exists()


def test_what_is_left_is_reported_and_deleted_only_if_allowed(tmp_path: Path, inputs: list[Path]) -> None:
    with pytest.raises(InterruptedRunError):
        learn_vocabulary(inputs, tmp_path / "out", vocab_size=300, progress=Interrupting(3))
    with pytest.raises(TrainerError, match=r"vocab-state holds what an interrupted run left.*--resume.*--overwrite"):
        learn_vocabulary(inputs, tmp_path / "out", vocab_size=300)
    os.utime(inputs[1], ns=(1, 1))
    with pytest.raises(StateError, match=r"sources: .*b\.txt.* then, .*b\.txt.* last written 1.* now"):
        learn_vocabulary(inputs, tmp_path / "out", vocab_size=300, resume=True)
    assert (tmp_path / STATE / "state.json").exists()
    learn_vocabulary(inputs, tmp_path / "out", vocab_size=300, overwrite=True)
    assert not (tmp_path / STATE).exists()


def test_what_a_killed_run_has_spilled_is_never_counted(tmp_path: Path, inputs: list[Path]) -> None:
    whole = learn_vocabulary(inputs, tmp_path / "whole", vocab_size=300)
    with pytest.raises(InterruptedRunError):
        learn_vocabulary(inputs, tmp_path / "out", vocab_size=300, progress=Interrupting(3))
    runs = sorted((tmp_path / STATE).glob("run-*.words"))
    # What a run that went on and was then killed would have written.
    (tmp_path / STATE / "run-00077.words").write_bytes(runs[0].read_bytes())
    (tmp_path / STATE / "run-00078.partial").write_bytes(b"x")
    report = learn_vocabulary(inputs, tmp_path / "out", vocab_size=300, resume=True)
    assert report.training.words == whole.training.words
    assert not (tmp_path / STATE).exists()
    # And one that was killed before anything was saved.
    (tmp_path / STATE).mkdir()
    (tmp_path / STATE / "run-00000.words").write_bytes(b"x")
    report = learn_vocabulary(inputs, tmp_path / "out", vocab_size=300, overwrite=True)
    assert report.training.words == whole.training.words
    assert not (tmp_path / STATE).exists()


def test_two_runs_do_not_share_a_folder(tmp_path: Path, inputs: list[Path]) -> None:
    with StateFolder(tmp_path / STATE, {}).locked(), pytest.raises(StateError, match="another process works in"):
        learn_vocabulary(inputs, tmp_path / "out", vocab_size=300)


def test_an_error_leaves_nothing(tmp_path: Path, inputs: list[Path]) -> None:
    (tmp_path / "z.txt").write_bytes(b"some text \xff")
    with pytest.raises(TrainerError, match=r"z\.txt is not UTF-8"):
        learn_vocabulary([*inputs, tmp_path / "z.txt"], tmp_path / "out", vocab_size=300)
    assert not (tmp_path / "out").exists()


def test_a_full_disk_while_counts_are_spilled_leaves_nothing(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class SmallBudget(MemoryBudget):
        def __init__(self, limit: int | None):
            super().__init__(limit)
            self.tables = 6 << 20

    monkeypatch.setattr("shared.bpe.training.train.MemoryBudget", SmallBudget)
    inputs[0].write_text(" ".join(str(random.Random(n).getrandbits(64)) for n in range(200_000)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(TokenizerError, match=r"run-0000\d\.words: File too large.*free some space"):
            learn_vocabulary(inputs, tmp_path / "out", vocab_size=300)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "out").exists()


def test_a_file_that_shrinks_meanwhile_is_an_error_and_no_crash(tmp_path: Path, inputs: list[Path]) -> None:
    def shrink(_: int) -> None:
        os.truncate(inputs[1], 10_000)

    with pytest.raises(TrainerError, match=r"b\.txt was changed while it was read"):
        learn_vocabulary(inputs, tmp_path / "out", vocab_size=300, threads=1, progress=shrink)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_make_no_difference(tmp_path: Path, inputs: list[Path], threads: int) -> None:
    one = learn_vocabulary(inputs, tmp_path / "one", vocab_size=500, threads=1)
    many = learn_vocabulary(inputs[::-1], tmp_path / "many", vocab_size=500, threads=threads)
    assert many.tokenizer.fingerprint == one.tokenizer.fingerprint
    assert many.training.words == one.training.words
