"""A run that was interrupted and started again writes the files, byte for byte, of one that never was."""

import gzip
import itertools
import json
import os
import random
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shared.bpe import Tokenizer, train_bpe
from shared.bpe.training import TextFile
from shared.chat import DEFAULT_SPECIAL_TOKENS
from trainer.conversations.template import choose_template
from trainer.errors import InterruptedRunError
from trainer.settings.encode import EncodeSettings
from trainer.storage.folder import LocalFolder, StorageError
from trainer.text import sources
from trainer.text.utf8 import CorpusError
from trainer.tokens import parallel_encoder
from trainer.tokens.encode import encode_files
from trainer.tokens.job import EncodingJob
from trainer.tokens.token_file import TokenFile, TokenFileError

END = "<|endoftext|>"
STATE = "out/encode-state-train"
SMALL = EncodeSettings(shard_tokens=3000)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(sources, "TextFile", lambda path: TextFile(path, 2000))
    monkeypatch.setattr(parallel_encoder, "_RECORDS_BYTES", 2000)


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Text with and without a separator at its end, an empty file, and records."""
    draw = random.Random(1)
    words = ["the", "cat", "sat", "naïve", "中文", "\r\n", f".{END}", f"!{END}{END}"]
    paths = [tmp_path / name for name in ("a.txt", "b.txt", "empty.txt", "c.jsonl", "d.txt.gz")]
    for path in paths[:2]:
        path.write_bytes(" ".join(draw.choices(words, k=4000)).encode() + END.encode() * (path.name == "a.txt"))
    paths[2].touch()
    paths[3].write_text("".join(json.dumps({"text": " ".join(draw.choices(words, k=9))}) + "\n" for _ in range(300)))
    paths[4].write_bytes(gzip.compress(paths[0].read_bytes()))
    return paths


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class Interrupting:
    """Sends a signal to this process when so many chunks have been read."""

    def __init__(self, after: int, number: int = signal.SIGINT):
        self.after, self.number = after, number

    def __call__(self, _: int) -> None:
        self.after -= 1
        if self.after == 0:
            os.kill(os.getpid(), self.number)


def run_until_done(
    *arguments: object, after: int, number: int = signal.SIGINT, **options: object
) -> tuple[list, object]:
    """Interrupt again and again; returns the messages and the report."""
    messages: list[str] = []
    while len(messages) < 30:
        try:
            return messages, encode_files(*arguments, progress=Interrupting(after, number), **options)  # type: ignore[arg-type]
        except InterruptedRunError as error:
            messages.append(f"{error.signal_number}: {error}")
    raise AssertionError(messages)


@pytest.mark.parametrize("val_fraction", [None, 0.2])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_again_and_again(
    tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path], val_fraction: float | None, threads: int, number: int
) -> None:
    settings = replace(SMALL, val_fraction=val_fraction, threads=threads)
    whole = encode_files(inputs, tokenizer, tmp_path / "whole", settings)
    messages, report = run_until_done(inputs, tokenizer, tmp_path / "out", settings, after=26, number=number)
    parts = len(whole.manifests["train"].parts)
    kept = [int(message.split("text; ")[1].split(" of ")[0]) for message in messages]
    assert all(message.startswith(f"{int(number)}: ") for message in messages)
    assert kept == sorted(set(kept))  # each run finishes at least one more
    assert len(kept) > 1
    assert messages[-1].endswith(
        f"{kept[-1]} of {parts} parts of the text are finished and kept in {tmp_path / 'out'}: run the same command "
        "again to continue"
    )
    assert report == replace(whole, parts_kept=kept[-1])
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")
    assert not (tmp_path / STATE).exists()


class KilledError(BaseException):
    """Ends a run as SIGKILL does: nothing is saved."""


def kill_after(calls: int) -> Callable[[int], None]:
    def progress(_: int) -> None:
        nonlocal calls
        calls -= 1
        if calls == 0:
            raise KilledError

    return progress


@pytest.mark.parametrize("after", [2, 20, 25, 50])
def test_a_run_that_is_killed(tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path], after: int) -> None:
    encode_files(inputs, tokenizer, tmp_path / "whole", SMALL)
    with pytest.raises(KilledError):
        encode_files(inputs, tokenizer, tmp_path / "out", SMALL, progress=kill_after(after))
    report = encode_files(inputs, tokenizer, tmp_path / "out", SMALL)
    assert (report.parts_kept > 0) == (after > 2)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")


@pytest.mark.extended
@pytest.mark.parametrize("val_fraction", [0.2, 0.00001])
def test_a_run_that_is_killed_anywhere(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, val_fraction: float
) -> None:
    """Before and after each step that changes the folder, those that hold out the end of the text included."""
    text = f"the cat {END}\n" * 60 if val_fraction == 0.2 else "the cat sat on the mat.\n" * 40 + f"{END}\n"
    (tmp_path / "a.txt").write_text(text)
    settings = EncodeSettings(shard_tokens=150, val_fraction=val_fraction)
    arguments = [tmp_path / "a.txt"], tokenizer
    encode_files(*arguments, tmp_path / "whole", settings)
    limit, steps = 0, itertools.count(1)

    def killing(step: Callable[..., None], *, before: bool) -> Callable[..., None]:
        def run(self: LocalFolder, *args: object) -> None:
            number = next(steps)  # two threads count
            if number == limit and before:
                raise KilledError
            step(self, *args)
            if number == limit:
                raise KilledError

        return run

    for before in (False, True):
        while True:
            limit += 1
            steps = itertools.count(1)
            out = tmp_path / f"{limit}{before}" / "out"
            with monkeypatch.context() as patch:
                for name in ("put", "write", "remove"):
                    patch.setattr(LocalFolder, name, killing(getattr(LocalFolder, name), before=before))
                try:
                    encode_files(*arguments, out, settings)
                    break
                except KilledError:
                    pass
            encode_files(*arguments, out, settings)
            assert files_in(out) == files_in(tmp_path / "whole")
            assert not (out / "encode-state-train").exists()
        assert limit > 9
        limit = 0


def test_the_same_command_checks_what_is_finished_and_repairs_it(
    tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path]
) -> None:
    settings = replace(SMALL, val_fraction=0.2)
    first = encode_files(inputs, tokenizer, tmp_path / "out", settings)
    before = files_in(tmp_path / "out")
    read: list[int] = []
    again = encode_files(inputs, tokenizer, tmp_path / "out", settings, progress=read.append)
    assert again == replace(first, parts_kept=len(first.manifests["train"].parts))
    assert not read
    for damage in (lambda path: path.write_bytes(b"x" * path.stat().st_size), lambda path: path.unlink()):
        for name in ("train-00001.bin", "val-00002.bin"):
            damage(tmp_path / "out" / name)
        mended = encode_files(inputs, tokenizer, tmp_path / "out", settings)
        assert mended == replace(first, parts_kept=again.parts_kept - 2)
        assert files_in(tmp_path / "out") == before


@pytest.mark.parametrize("part", [{}, {"sections": 5}, {"sections": ["0 1"]}, {"findings": []}])
def test_a_part_that_is_damaged_in_the_manifest_is_encoded_again(
    tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path], part: dict[str, object]
) -> None:
    encode_files(inputs, tokenizer, tmp_path / "out", SMALL)
    before = files_in(tmp_path / "out")
    manifest = json.loads(before["train.json"])
    manifest["parts"][1] = {"key": manifest["parts"][1]["key"]} | part
    (tmp_path / "out/train.json").write_text(json.dumps(manifest))
    assert encode_files(inputs, tokenizer, tmp_path / "out", SMALL).parts_kept == len(manifest["parts"]) - 1
    assert files_in(tmp_path / "out") == before


def test_the_held_out_end_is_checked_too(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat.\n" * 500)
    settings = EncodeSettings(val_fraction=0.1, shard_tokens=300)
    first = encode_files([tmp_path / "a.txt"], tokenizer, tmp_path / "out", settings)
    before = files_in(tmp_path / "out")
    assert encode_files([tmp_path / "a.txt"], tokenizer, tmp_path / "out", settings).parts_kept > 1
    (tmp_path / "out/val-00000.bin").write_bytes(b"x")
    assert encode_files([tmp_path / "a.txt"], tokenizer, tmp_path / "out", settings) == first
    assert files_in(tmp_path / "out") == before


def test_an_input_that_changed_costs_its_parts_alone(tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path]) -> None:
    """One that is not UTF-8, say, is corrected while the others are finished."""
    encode_files(inputs, tokenizer, tmp_path / "whole", SMALL)
    good = inputs[3].read_text()
    inputs[3].write_text("{}\n")
    with pytest.raises(CorpusError, match=r"c\.jsonl"):
        encode_files(inputs, tokenizer, tmp_path / "out", SMALL)
    inputs[3].write_text(good)
    assert encode_files(inputs, tokenizer, tmp_path / "out", SMALL).parts_kept > 2
    assert {name: data for name, data in files_in(tmp_path / "out").items() if name != "train.json"} == {
        name: data for name, data in files_in(tmp_path / "whole").items() if name != "train.json"
    }


def test_shards_of_inputs_that_are_gone_are_removed(tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path]) -> None:
    interrupt(tmp_path, tokenizer, inputs)
    encode_files(inputs[2:3] + inputs[3:4], tokenizer, tmp_path / "out", SMALL)
    encode_files(inputs[2:3] + inputs[3:4], tokenizer, tmp_path / "whole", SMALL)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")


def interrupt(folder: Path, tokenizer: Tokenizer, inputs: list[Path]) -> None:
    """In the second input."""
    after = inputs[0].stat().st_size // 2000 + 5
    with pytest.raises(InterruptedRunError):
        encode_files(inputs, tokenizer, folder / "out", SMALL, progress=Interrupting(after))


def test_work_of_other_settings_is_not_dropped_by_mistake(
    tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path]
) -> None:
    interrupt(tmp_path, tokenizer, inputs)
    left = files_in(tmp_path / "out")
    other = train_bpe(["other other"], 270, special_tokens=[END]).tokenizer
    for with_tokenizer, options, message in [
        (other, {}, f"tokenizer: {tokenizer.fingerprint} then, {other.fingerprint} now"),
        (tokenizer, {"no_separator": True}, "no_separator: False then, True now"),
        (tokenizer, {"val_fraction": 0.1}, "val_fraction: None then, 0.1 now"),
        (tokenizer, {"errors": "replace"}, "errors: strict then, replace now"),
        (tokenizer, {"seed": 1}, "seed: 0 then, 1 now"),
        (tokenizer, {"shard_tokens": 5}, "shard_tokens: 3000 then, 5 now"),
    ]:
        with pytest.raises(TokenFileError, match=rf"{message}.*--overwrite"):
            encode_files(inputs, with_tokenizer, tmp_path / "out", replace(SMALL, **options))  # type: ignore[arg-type]
    assert files_in(tmp_path / "out") == left
    encode_files(inputs, tokenizer, tmp_path / "out", replace(SMALL, overwrite=True, seed=1))
    encode_files(inputs, tokenizer, tmp_path / "whole", replace(SMALL, seed=1))
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")
    assert not (tmp_path / STATE).exists()


@pytest.mark.parametrize("name", ["train-00000.bin", "encode-state-train/part-00000.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"key": 1}', b"{}"])
def test_what_was_left_and_damaged_is_encoded_again(
    tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path], name: str, content: bytes
) -> None:
    encode_files(inputs, tokenizer, tmp_path / "whole", SMALL)
    interrupt(tmp_path, tokenizer, inputs)
    (tmp_path / "out" / name).write_bytes(content)
    encode_files(inputs, tokenizer, tmp_path / "out", SMALL)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")


def test_two_runs_do_not_share_a_folder(tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path]) -> None:
    tried = []

    def encode_again(_: int) -> None:
        if not tried:
            tried.append(1)
            with pytest.raises(StorageError, match="another process is using"):
                encode_files(inputs, tokenizer, tmp_path / "out", EncodeSettings(overwrite=True))

    encode_files(inputs, tokenizer, tmp_path / "out", progress=encode_again)
    assert tried


def test_standard_input_leaves_nothing_and_says_so(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "blocks", lambda _: iter([b"some words and more\n" * 100_000] * 9))
    with pytest.raises(InterruptedRunError, match="standard input and pipes can be read only once"):
        encode_files([Path("-")], tokenizer, tmp_path / "out", progress=Interrupting(2))
    assert not (tmp_path / "out").exists()
    encode_files([Path("-")], tokenizer, tmp_path / "out", EncodeSettings(shard_tokens=300_000))
    assert len(TokenFile.open(tmp_path / "out", "train").manifest.shards) > 3
    with pytest.raises(TokenFileError, match="exists"):
        encode_files([Path("-")], tokenizer, tmp_path / "out", EncodeSettings(shard_tokens=300_000))


def test_a_full_disk_is_not_a_loss(tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path]) -> None:
    encode_files(inputs, tokenizer, tmp_path / "whole", SMALL)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    chunks = itertools.count(1)

    def fill_up(_: int) -> None:
        if next(chunks) == 12:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))

    try:
        with pytest.raises(
            StorageError,
            match=r"train-\d+\.bin cannot be written: File too large; \d of \d+ parts .* run the same command again",
        ):
            encode_files(inputs, tokenizer, tmp_path / "out", SMALL, progress=fill_up)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert encode_files(inputs, tokenizer, tmp_path / "out", SMALL).parts_kept
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")


def test_conversations_that_are_interrupted(tmp_path: Path) -> None:
    """Ids, masks, templates, manifests and what is reported are those of a run that was never interrupted."""
    words = ["the cat", "sat on", "the mat"]
    draw = random.Random(2)
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for path in paths:
        pairs = [(draw.choice([*words, ""]), draw.choice(words)) for _ in range(60)]
        path.write_text("".join(json.dumps({"prompt": one, "response": two}) + "\n" for one, two in pairs))
    specials = [END, *DEFAULT_SPECIAL_TOKENS]
    tokenizer = train_bpe(["the cat sat on the mat.\n" * 9], 270, special_tokens=specials).tokenizer
    template = choose_template(None, tmp_path, tokenizer)
    settings = EncodeSettings(chat=True, val_fraction=0.3, threads=2, shard_tokens=900)
    whole = encode_files(paths, tokenizer, tmp_path / "whole", settings, template=template)
    assert whole.findings["an empty message"][0] > 20
    messages, report = run_until_done(paths, tokenizer, tmp_path / "out", settings, after=7, template=template)
    assert all("of 3 parts of the text are finished" in message for message in messages)
    assert len(messages) == 2
    assert report == replace(whole, parts_kept=2)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")
    assert {"train-00000.mask", "val-00000.mask", "chat_template.jinja"} < {*files_in(tmp_path / "out")}
    assert not (tmp_path / STATE).exists()
    other = tmp_path / "other.jinja"
    other.write_text("{{ messages }}")
    job = EncodingJob.open(paths, tokenizer, settings, choose_template(other, tmp_path, tokenizer))
    assert job.key(0) != whole.manifests["train"].parts[0]["key"]


def test_text_replaces_conversations_whole(tmp_path: Path) -> None:
    specials = [END, *DEFAULT_SPECIAL_TOKENS]
    tokenizer = train_bpe(["the cat sat on the mat.\n" * 9], 270, special_tokens=specials).tokenizer
    (tmp_path / "a.jsonl").write_text('{"prompt": "the cat", "response": "sat"}')
    (tmp_path / "a.txt").write_text("the cat")
    template = choose_template(None, tmp_path, tokenizer)
    encode_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", EncodeSettings(chat=True), template=template)
    assert TokenFile.open(tmp_path / "out", "train").manifest.version == 4
    with pytest.raises(TokenFileError, match="exists"):
        encode_files([tmp_path / "a.txt"], tokenizer, tmp_path / "out")
    encode_files([tmp_path / "a.txt"], tokenizer, tmp_path / "out", EncodeSettings(overwrite=True))
    assert TokenFile.open(tmp_path / "out", "train").manifest.version == 3
    assert not (tmp_path / "out/train-00000.mask").exists()
