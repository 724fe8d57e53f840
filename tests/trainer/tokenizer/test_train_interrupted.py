"""Training that is interrupted leaves nothing in the way, and says so."""

import gzip
import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest

from shared.bpe import TokenizerError
from shared.bpe.training import TextFile
from shared.bpe.training.memory import MemoryBudget
from trainer.errors import InterruptedRunError, TrainerError
from trainer.settings.vocab import VocabSettings
from trainer.text import sources
from trainer.tokenizer.train import train_tokenizer

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

    It is called by threads that count, and the main thread, which alone takes signals, may be slow to get its turn. It
    waits no longer than a second: a signal that comes just before the main thread waits for the lock that the caller
    holds is handled after that.
    """

    def __init__(self, after: int, number: int = signal.SIGINT):
        self.after, self.number = after, number

    def __call__(self, *_: int) -> None:
        self.after -= 1
        if self.after == 0:
            os.kill(os.getpid(), self.number)
            end = time.monotonic() + 1
            while signal.getsignal(self.number) is not signal.SIG_DFL:  # what `stop_on_signals` leaves behind
                if time.monotonic() > end:
                    return
                time.sleep(0.001)


@pytest.mark.parametrize("pattern", ["gpt2", r"\w+|\W"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stage", [{"progress": 3}, {"progress": 10}, {"merge_progress": 1}, {"merge_progress": 2}])
def test_an_interrupted_training_leaves_nothing_in_the_way(
    tmp_path: Path, inputs: list[Path], pattern: str, number: int, stage: dict[str, int]
) -> None:
    settings = VocabSettings(vocab_size=900, pattern=pattern, threads=2)
    callbacks = {name: Interrupting(after, number) for name, after in stage.items()}
    with pytest.raises(InterruptedRunError, match="nothing was written: run the same command again") as stopped:
        train_tokenizer(inputs, tmp_path / "out", settings, **callbacks)  # type: ignore[arg-type]
    assert stopped.value.signal_number == number
    assert not (tmp_path / "out").exists()


def test_a_signal_at_the_very_end_changes_nothing(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_tokenizer(inputs, tmp_path / "whole", VocabSettings(vocab_size=300))
    monkeypatch.setattr("trainer.tokenizer.report._kind", lambda _: os.kill(os.getpid(), signal.SIGINT) or "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.console.signals.signal.SIG_DFL", signal.SIG_IGN)  # a second one would end this process
        report = train_tokenizer(inputs, tmp_path / "out", VocabSettings(vocab_size=300))
    assert report.tokenizer.fingerprint == whole.tokenizer.fingerprint
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (tmp_path / "whole/tokenizer.json").read_bytes()


def test_an_error_leaves_nothing(tmp_path: Path, inputs: list[Path]) -> None:
    (tmp_path / "z.txt").write_bytes(b"some text \xff")
    with pytest.raises(TrainerError, match=r"z\.txt is not UTF-8"):
        train_tokenizer([*inputs, tmp_path / "z.txt"], tmp_path / "out", VocabSettings(vocab_size=300))
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
            train_tokenizer(inputs, tmp_path / "out", VocabSettings(vocab_size=300))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "out").exists()


def test_a_file_that_shrinks_meanwhile_is_an_error_and_no_crash(tmp_path: Path, inputs: list[Path]) -> None:
    def shrink(_: int) -> None:
        os.truncate(inputs[1], 10_000)

    with pytest.raises(TrainerError, match=r"b\.txt was changed while it was read"):
        train_tokenizer(inputs, tmp_path / "out", VocabSettings(vocab_size=300, threads=1), progress=shrink)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_make_no_difference(tmp_path: Path, inputs: list[Path], threads: int) -> None:
    one = train_tokenizer(inputs, tmp_path / "one", VocabSettings(vocab_size=500, threads=1))
    many = train_tokenizer(inputs[::-1], tmp_path / "many", VocabSettings(vocab_size=500, threads=threads))
    assert many.tokenizer.fingerprint == one.tokenizer.fingerprint
    assert many.training.words == one.training.words
