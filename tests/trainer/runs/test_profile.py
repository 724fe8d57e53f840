"""Where time and memory went."""

import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shared.bpe import Tokenizer
from shared.system.stages import no_stage, staged
from trainer.commands.encode import encode
from trainer.commands.vocab import vocab
from trainer.errors import TrainerError
from trainer.runs import profile as module
from trainer.runs.profile import Profile
from trainer.runs.profile_text import profile_text
from trainer.settings.encode import EncodeSettings
from trainer.settings.vocab import VocabSettings


class Clock:
    """Both clocks of the profile, set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.wall = self.processor = 0.0
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.wall)
        for name in ("thread_time", "process_time"):
            monkeypatch.setattr(module.time, name, lambda: self.processor)

    def work(self, seconds: float) -> None:
        self.wall += seconds
        self.processor += seconds

    def wait(self, seconds: float) -> None:
        self.wall += seconds


def by_name(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {use["name"]: use for use in content["stages"]}


def test_time_goes_to_the_innermost_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    profile = Profile("vocab", "bytes")
    clock.work(1)
    for _ in range(2):
        with profile.stage("outer", 100):
            clock.work(2)
            with profile.stage("inner", 10):
                clock.work(3)
                clock.wait(1)
            clock.work(1)
    clock.work(2)
    content = profile.content(1000)
    stages = by_name(content)
    names = ("calls", "seconds", "processor_seconds", "amount", "share", "per_second")
    assert [stages["inner"][name] for name in names] == [2, 8, 6, 20, 8 / 17, 2.5]
    assert [stages["outer"][name] for name in names] == [2, 6, 6, 200, 6 / 17, 200 / 6]
    assert [stages["other"][name] for name in names] == [0, 3, 0, 0, 3 / 17, None]
    assert (content["seconds"], content["processor_seconds"], content["per_second"]) == (17, 15, 1000 / 17)
    assert [use["name"] for use in content["stages"]] == ["inner", "outer", "other"]


def test_a_stage_that_fails_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    profile = Profile("encode", "bytes")
    with suppress(ValueError), profile.stage("outer"), profile.stage("inner"):
        clock.work(1)
        raise ValueError("no")
    clock.work(2)
    stages = by_name(profile.content(1))
    assert (stages["inner"]["seconds"], stages["outer"]["seconds"], stages["other"]["seconds"]) == (1, 0, 2)


def test_threads_are_added_and_only_the_first_has_other_time() -> None:
    profile = Profile("encode", "bytes")

    def work() -> None:
        for _ in range(5):
            with profile.stage("sleep", 1):
                time.sleep(0.01)

    threads = [threading.Thread(target=work) for _ in range(4)]
    with profile.stage("wait for other threads"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    content = profile.content(20)
    stages = by_name(content)
    assert (content["threads"], stages["sleep"]["calls"], stages["sleep"]["amount"]) == (5, 20, 20)
    assert stages["sleep"]["seconds"] >= 20 * 0.01
    assert stages["sleep"]["processor_seconds"] < stages["sleep"]["seconds"] / 2
    assert stages["wait for other threads"]["seconds"] + stages["other"]["seconds"] == pytest.approx(content["seconds"])
    assert sum(use["share"] for use in content["stages"]) == pytest.approx(1)


def test_the_stage_that_raised_the_peak_has_it() -> None:
    program = """
import json, numpy as np
from trainer.runs.profile import Profile
profile = Profile("encode", "bytes")
with profile.stage("before"):
    pass
print(profile.content(1)["peak_memory"])
with profile.stage("large"):
    np.ones(8 << 20)
with profile.stage("after"):
    pass
print(json.dumps(profile.content(1)))
"""
    # A process of its own: the peak of this one is that of other tests, and it may keep what they freed.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, content = map(json.loads, done.stdout.splitlines())
    stages = by_name(content)
    assert stages["large"]["peak_memory"] >= before + (60 << 20)
    assert stages["large"]["peak_memory"] == content["peak_memory"]
    assert stages["before"]["peak_memory"] < stages["large"]["peak_memory"]
    assert stages["after"]["peak_memory"] < stages["large"]["peak_memory"]


def test_what_a_generator_takes_is_in_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    profile = Profile("encode", "bytes")

    def items() -> Any:
        for number in range(3):
            clock.work(2)
            yield number
        clock.work(1)

    for _ in staged(items(), profile.stage, "read"):
        clock.work(10)
    stages = by_name(profile.content(1))
    assert (stages["read"]["seconds"], stages["read"]["calls"], stages["other"]["seconds"]) == (7, 4, 30)
    assert [*staged(iter("abc"), no_stage, "read")] == [*"abc"]


def test_as_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(module, "peak_memory", lambda: 7_000_000)
    monkeypatch.setattr(module, "resident_memory", lambda: 5_000_000)
    profile = Profile("train", "tokens")
    with profile.stage("forward", 3_000_000):
        clock.work(2)
        clock.wait(1)
    clock.wait(1)
    text = profile.write(tmp_path, 4_000_000)
    lines = text.splitlines()
    assert lines[0] == (
        "train: 4,000,000 tokens in 4.00 s, 1,000.0 thousand a second; 2.00 s of CPU time; peak memory 7 MB"
    )
    assert "thousand   thousand" in text
    rows = [line.split() for line in lines]
    assert ["forward", "75.0%", "3.000", "2.000", "1", "3,000.0", "1,000.0", "5"] in rows
    assert ["other", "25.0%", "1.000", "–", "–", "–", "–", "–"] in rows
    assert (tmp_path / "profile.txt").read_text() == text
    assert profile_text(json.loads((tmp_path / "profile.json").read_text())) == text


def test_vocab_and_encode_write_their_profile(text_file: Path, tmp_path: Path) -> None:
    """Every byte is in each stage that sees all of them, and the results are those without a profile."""
    size = text_file.stat().st_size
    settings = VocabSettings(vocab_size=290)
    for folder, wanted in ((tmp_path / "plain", False), (tmp_path / "out", True)):
        vocab([text_file], output=folder, settings=settings, profile=wanted)
        assert (folder / "profile.json").exists() is wanted
    assert (tmp_path / "plain/tokenizer.json").read_bytes() == (tmp_path / "out/tokenizer.json").read_bytes()
    content = json.loads((tmp_path / "out/profile.json").read_text())
    stages = by_name(content)
    assert (content["job"], content["amount"], content["unit"]) == ("vocab", size, "bytes")
    for name in ("read", "check UTF-8", "split and count pretokens"):
        assert stages[name]["amount"] == size
    assert {"join counts", "lay out pretokens", "train merges", "make tokenizer", "save"} <= set(stages)
    assert all(use["peak_memory"] <= content["peak_memory"] for use in content["stages"])
    for threads in (1, 3):
        encoded = tmp_path / f"tokens{threads}"
        settings_ = EncodeSettings(threads=threads, val_fraction=0.1)
        encode([text_file], tokenizer=tmp_path / "out", output=encoded, settings=settings_, profile=True)
        content = json.loads((encoded / "profile.json").read_text())
        stages = by_name(content)
        for name in ("check UTF-8", "encode", "write token files", "hash text"):
            assert stages[name]["amount"] == size, name
        assert content["job"] == "encode"
        assert 0 < sum(use["seconds"] for use in content["stages"]) <= threads * content["seconds"] * 1.01
        first = tmp_path / "tokens1" / "train-00000.bin"
        assert (encoded / "train-00000.bin").read_bytes() == first.read_bytes()
    (encoded / "val-00000.bin").rename(encoded / "val.bin")
    encode(
        tokenizer=tmp_path / "out",
        manifest_for=encoded / "val.bin",
        dtype="uint16",
        profile=True,
        settings=EncodeSettings(split="val", overwrite=True),
    )
    content = json.loads((encoded / "profile.json").read_text())
    assert by_name(content)["check ids"]["amount"] == content["amount"] == (encoded / "val.bin").stat().st_size
    assert Tokenizer.from_files(encoded)


def test_a_job_that_fails_writes_none(text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text(" \n")
    with pytest.raises(TrainerError, match="only white space"):
        vocab([tmp_path / "blank.txt"], output=tmp_path / "out", settings=VocabSettings(vocab_size=290), profile=True)
    assert not (tmp_path / "out").exists()
