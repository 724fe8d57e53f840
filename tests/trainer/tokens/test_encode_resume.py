"""An interrupted run that is resumed writes the files, byte for byte, of one that was never interrupted."""

import gzip
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
from shared.system.state_folder import StateError
from trainer.conversations.template import choose_template
from trainer.errors import InterruptedRunError
from trainer.settings.encode import EncodeSettings
from trainer.text import sources
from trainer.tokens import encoding_pass, parallel_encoder
from trainer.tokens.encode import encode_files
from trainer.tokens.token_file import TokenFile, TokenFileError
from trainer.tokens.writer import TokenFileWriter, WriteError

END = "<|endoftext|>"
STATE = "out/encode-state-train"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe(["the cat sat on the mat, and the dog sat by the cat.\n" * 9], 300, special_tokens=[END]).tokenizer


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "TextFile", lambda path: TextFile(path, 2000))
    monkeypatch.setattr(parallel_encoder, "_RECORDS_BYTES", 2000)
    monkeypatch.setattr(encoding_pass, "_SAVE_SECONDS", 0.0)


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
    """Sends a signal to this process when so many parts have been read."""

    def __init__(self, after: int, number: int = signal.SIGINT):
        self.after, self.number = after, number

    def __call__(self, _: int) -> None:
        self.after -= 1
        if self.after == 0:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("val_fraction", [None, 0.2])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_again_and_again(
    tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path], val_fraction: float | None, threads: int, number: int
) -> None:
    settings = EncodeSettings(val_fraction=val_fraction, threads=threads)
    whole = encode_files(inputs, tokenizer, tmp_path / "whole", settings)
    kept: list[int] = []
    report = None
    while report is None:
        resumed = replace(settings, resume=bool(kept))
        try:
            report = encode_files(inputs, tokenizer, tmp_path / "out", resumed, progress=Interrupting(22, number))
        except InterruptedRunError as error:
            stopped = error
            state = json.loads((tmp_path / STATE / "state.json").read_text())
            kept.append(len(state["finished"]["sources"]))
            assert len(kept) < 10
    assert stopped.signal_number == number
    assert f"{kept[-1]} of 5 inputs are finished and kept in" in str(stopped)
    assert "continue with the same command and --resume" in str(stopped)
    assert kept == sorted(set(kept))  # each run finishes at least one more
    assert len(kept) > 2
    assert report == whole
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")
    assert not (tmp_path / STATE).exists()


class KilledError(BaseException):
    """Ends a run as SIGKILL does: nothing is saved and nothing is tidied."""


def kill_after(calls: int) -> Callable[[int], None]:
    def progress(_: int) -> None:
        nonlocal calls
        calls -= 1
        if calls == 0:
            raise KilledError

    return progress


@pytest.mark.parametrize("after", [20, 25, 50])
def test_a_run_that_is_killed(tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path], after: int) -> None:
    encode_files(inputs, tokenizer, tmp_path / "whole")
    with pytest.raises(KilledError):
        encode_files(inputs, tokenizer, tmp_path / "out", progress=kill_after(after))
    encode_files(inputs, tokenizer, tmp_path / "out", EncodeSettings(resume=True))
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")


def test_what_is_killed_or_stopped_in_the_first_input_is_no_hindrance(
    tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path]
) -> None:
    encode_files(inputs, tokenizer, tmp_path / "whole")
    with pytest.raises(KilledError):
        encode_files(inputs, tokenizer, tmp_path / "out", progress=kill_after(2))
    with pytest.raises(InterruptedRunError, match="no input was finished: run the same command again"):
        encode_files(inputs, tokenizer, tmp_path / "out", progress=Interrupting(2))
    assert files_in(tmp_path / "out") == {}
    encode_files(inputs, tokenizer, tmp_path / "out")
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")


@pytest.mark.parametrize("renamed", range(4))
def test_a_run_that_is_killed_while_it_gives_the_files_their_names(
    tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, renamed: int
) -> None:
    """Nothing that looks finished is there, and --overwrite begins again."""
    settings = EncodeSettings(val_fraction=0.2)
    encode_files(inputs, tokenizer, tmp_path / "whole", settings)
    done, rename = 0, Path.replace

    def killing(self: Path, target: Path) -> None:
        nonlocal done
        if target.parent == tmp_path / "out" and target.suffix in {".bin", ".json"} and "tok" not in target.name:
            done += 1
            if done > renamed:
                raise KilledError
        rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killing)
        with pytest.raises(KilledError):
            encode_files(inputs, tokenizer, tmp_path / "out", settings)
    assert not (tmp_path / "out/val.json").exists()
    with pytest.raises(TokenFileError, match="--overwrite"):
        encode_files(inputs, tokenizer, tmp_path / "out", settings)
    encode_files(inputs, tokenizer, tmp_path / "out", replace(settings, overwrite=True))
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")


@pytest.mark.case("D59")
@pytest.mark.parametrize("after", range(11))
def test_a_run_that_is_killed_while_it_holds_out_the_end(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Before and after each of the steps that bring something to the disk."""
    (tmp_path / "a.txt").write_text("the cat sat on the mat.\n" * 900 + f"{END}\n")
    encode_files([tmp_path / "a.txt"], tokenizer, tmp_path / "whole", EncodeSettings(val_fraction=0.01))
    steps = 0

    def killing(step):  # type: ignore[no-untyped-def]
        def run(self, *args, **options):  # type: ignore[no-untyped-def]
            nonlocal steps
            steps += at_the_end
            if steps == after + 1:
                raise KilledError
            return step(self, *args, **options)

        return run

    at_the_end = 0

    def read(done: int) -> None:
        nonlocal at_the_end
        at_the_end = int(done == (tmp_path / "a.txt").stat().st_size)

    with monkeypatch.context() as patch:
        for name in ("write", "go_back", "sync"):
            patch.setattr(TokenFileWriter, name, killing(getattr(TokenFileWriter, name)))
        with pytest.raises(KilledError):
            encode_files(
                [tmp_path / "a.txt"], tokenizer, tmp_path / "out", EncodeSettings(val_fraction=0.01), progress=read
            )
    saved = (tmp_path / STATE / "state.json").exists()
    assert saved == (after > 1)  # before that, the only input was not finished
    settings = EncodeSettings(val_fraction=0.01, resume=saved)
    report = encode_files([tmp_path / "a.txt"], tokenizer, tmp_path / "out", settings)
    assert report.end_is_held_out
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")


def interrupt(folder: Path, tokenizer: Tokenizer, inputs: list[Path]) -> None:
    """In the second input."""
    with pytest.raises(InterruptedRunError):
        encode_files(inputs, tokenizer, folder / "out", progress=Interrupting(inputs[0].stat().st_size // 2000 + 5))


def test_only_the_same_run_is_resumed(tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path]) -> None:
    resume = EncodeSettings(resume=True)
    with pytest.raises(StateError, match="nothing to resume"):
        encode_files(inputs, tokenizer, tmp_path / "out", resume)
    assert not (tmp_path / "out").exists()
    interrupt(tmp_path, tokenizer, inputs)
    other = train_bpe(["other other"], 270, special_tokens=[END]).tokenizer
    for arguments, options, message in [
        ((inputs, other), {}, f"tokenizer: {tokenizer.fingerprint} then, {other.fingerprint} now"),
        ((inputs[:2], tokenizer), {}, "inputs: 5 then, 2 now"),
        (([inputs[1], inputs[0], *inputs[2:]], tokenizer), {}, "inputs: .*a.txt.* then, .*b.txt"),
        ((inputs, tokenizer), {"no_separator": True}, "no_separator: False then, True now"),
        ((inputs, tokenizer), {"val_fraction": 0.1}, "val_fraction: None then, 0.1 now"),
        ((inputs, tokenizer), {"errors": "replace"}, "errors: strict then, replace now"),
        ((inputs, tokenizer), {"seed": 1}, "seed: 0 then, 1 now"),
    ]:
        with pytest.raises(StateError, match=message):
            encode_files(*arguments, tmp_path / "out", replace(resume, **options))  # type: ignore[arg-type]
    os.utime(inputs[0], ns=(1, 1))
    with pytest.raises(StateError, match=r"a\.txt.* last written .* then, .* last written 1.* now"):
        encode_files(inputs, tokenizer, tmp_path / "out", resume)


def test_what_is_left_is_reported_and_deleted_only_if_allowed(
    tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path]
) -> None:
    encode_files(inputs, tokenizer, tmp_path / "whole")
    interrupt(tmp_path, tokenizer, inputs)
    with pytest.raises(
        TokenFileError, match=r"encode-state-train contains the work of an interrupted run.*--resume.*--overwrite"
    ):
        encode_files(inputs, tokenizer, tmp_path / "out")
    encode_files(inputs, tokenizer, tmp_path / "out", EncodeSettings(overwrite=True))
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")
    assert not (tmp_path / STATE).exists()


def test_ids_that_were_damaged_are_found(tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path]) -> None:
    interrupt(tmp_path, tokenizer, inputs)
    (tmp_path / STATE / "train.bin").write_bytes(b"x")
    with pytest.raises(TokenFileError, match="without --resume"):
        encode_files(inputs, tokenizer, tmp_path / "out", EncodeSettings(resume=True))


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 1, "identity": {}}', b'{"version": 2, "identity": {}}'])
def test_a_state_that_is_damaged_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path], content: bytes
) -> None:
    interrupt(tmp_path, tokenizer, inputs)
    (tmp_path / STATE / "state.json").write_bytes(content)
    with pytest.raises(StateError, match=r"state\.json"):
        encode_files(inputs, tokenizer, tmp_path / "out", EncodeSettings(resume=True))


def test_two_runs_do_not_share_a_folder(tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path]) -> None:
    tried = []

    def encode_again(_: int) -> None:
        if not tried:
            tried.append(1)
            with pytest.raises(StateError, match="another process is using"):
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


def test_a_full_disk_is_not_a_loss(
    tmp_path: Path, tokenizer: Tokenizer, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_files(inputs, tokenizer, tmp_path / "whole")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "whole/train.bin").stat().st_size // 2, hard))
    try:
        with pytest.raises(
            WriteError,
            match=r"train\.bin cannot be written: File too large; \d of 5 inputs are finished .*--resume",
        ):
            encode_files(inputs, tokenizer, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    encode_files(inputs, tokenizer, tmp_path / "out", EncodeSettings(resume=True))
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
    settings = EncodeSettings(chat=True, val_fraction=0.3, threads=2)
    whole = encode_files(paths, tokenizer, tmp_path / "whole", settings, template=template)
    assert whole.findings["an empty message"][0] > 20
    kept: list[str] = []
    report = None
    while report is None:
        resumed = replace(settings, resume=bool(kept))
        try:
            report = encode_files(
                paths, tokenizer, tmp_path / "out", resumed, template=template, progress=Interrupting(6)
            )
        except InterruptedRunError as error:
            kept.append(str(error))
    assert len(kept) == 2
    assert all("of 3 inputs are finished" in message for message in kept)
    assert report == replace(whole, manifests=report.manifests)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")
    assert {"train.mask", "val.mask", "chat_template.jinja"} < {*files_in(tmp_path / "out")}
    assert not (tmp_path / STATE).exists()
    other = choose_template(_written(tmp_path / "other.jinja", "{{ messages }}"), tmp_path, tokenizer)
    again = replace(settings, overwrite=True)
    with pytest.raises(InterruptedRunError):
        encode_files(paths, tokenizer, tmp_path / "out", again, template=template, progress=Interrupting(6))
    with pytest.raises(StateError, match="chat_template"):
        encode_files(paths, tokenizer, tmp_path / "out", replace(settings, resume=True), template=other)


def test_text_replaces_conversations_whole(tmp_path: Path) -> None:
    specials = [END, *DEFAULT_SPECIAL_TOKENS]
    tokenizer = train_bpe(["the cat sat on the mat.\n" * 9], 270, special_tokens=specials).tokenizer
    chat = _written(tmp_path / "a.jsonl", '{"prompt": "the cat", "response": "sat"}')
    template = choose_template(None, tmp_path, tokenizer)
    encode_files([chat], tokenizer, tmp_path / "out", EncodeSettings(chat=True), template=template)
    assert TokenFile.open(tmp_path / "out", "train").manifest.version == 2
    with pytest.raises(TokenFileError, match="exists"):
        encode_files([_written(tmp_path / "a.txt", "the cat")], tokenizer, tmp_path / "out")
    encode_files([tmp_path / "a.txt"], tokenizer, tmp_path / "out", EncodeSettings(overwrite=True))
    assert TokenFile.open(tmp_path / "out", "train").manifest.version == 1
    assert not (tmp_path / "out/train.mask").exists()


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
