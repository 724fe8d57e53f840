import json
from pathlib import Path

import pytest

from shared.bpe import Tokenizer, TokenizerError, train_bpe
from shared.bpe.training import TextFile
from trainer.errors import TrainerError, UsageError
from trainer.settings.vocab import VocabSettings
from trainer.text import sources as corpus
from trainer.text.utf8 import CorpusError
from trainer.tokenizer.report import TokenizerReport
from trainer.tokenizer.train import train_tokenizer

END = "<|endoftext|>"


def learn(folder: Path, *texts: str | bytes, vocab_size: int = 300, **options: object) -> TokenizerReport:
    paths = []
    for number, text in enumerate(texts):
        paths.append(folder / f"{number}.txt")
        paths[-1].write_bytes(text.encode() if isinstance(text, str) else text)
    callbacks = {name: options.pop(name) for name in ("progress", "merge_progress") if name in options}
    return train_tokenizer(paths, folder / "out", VocabSettings(vocab_size=vocab_size, **options), **callbacks)  # type: ignore[arg-type]


def test_the_saved_tokenizer_is_that_of_the_texts(tmp_path: Path) -> None:
    texts = [f"the cat sat{END}on the mat", "the dog"]
    report = learn(tmp_path, *texts, vocab_size=270)
    saved = Tokenizer.from_files(tmp_path / "out")
    assert (
        saved.fingerprint
        == report.tokenizer.fingerprint
        == train_bpe(texts, 270, special_tokens=[END]).tokenizer.fingerprint
    )
    assert report.bytes_read == sum(map(len, texts))
    ids = [id_ for text in texts for part in text.split(END) for id_ in saved.encode(part)]
    assert report.bytes_per_token == pytest.approx((report.bytes_read - len(END)) / len(ids))
    assert len(report.longest_token) == max(len(saved.token_bytes(id_)) for id_ in range(269))


@pytest.mark.parametrize("chunk_bytes", [1, 5, 64])
def test_B15_the_vocabulary_does_not_depend_on_chunks_or_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    texts = [
        "the cat's \U0001f600 mat\r\n\n  sat" * 900,
        f"on{END}the\ufeff mat, 12345\n" * 900,
        "x" * 40,
    ]  # more than one block
    expected = train_bpe(texts, 300, special_tokens=[END]).tokenizer.fingerprint
    monkeypatch.setattr(corpus, "TextFile", lambda path: TextFile(path, chunk_bytes))
    assert learn(tmp_path, *texts[::-1]).tokenizer.fingerprint == expected


@pytest.mark.parametrize("texts", [[b""], [b"   "], [b"\n", b""]])
def test_B01_blank_text_is_refused_and_nothing_written(tmp_path: Path, texts: list[bytes]) -> None:
    with pytest.raises(TrainerError, match="white space"):
        learn(tmp_path, *texts)
    assert not (tmp_path / "out").exists()


def test_B01_no_files_and_folders_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        learn(tmp_path)
    with pytest.raises(UsageError):
        train_tokenizer([tmp_path], tmp_path / "out", VocabSettings(vocab_size=300))


def test_B02_the_size_reached_is_reported(tmp_path: Path) -> None:
    report = learn(tmp_path, "ab", vocab_size=1000)
    assert (report.requested_size, report.reached_size) == (1000, 258)
    assert len(json.loads((tmp_path / "out/tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]) == 258


def test_B03_impossible_settings_are_refused_before_reading(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="257"):
        learn(tmp_path, b"\xff", vocab_size=256)


@pytest.mark.parametrize("position", [0, 2])
def test_B06_a_wrong_file_is_named_wherever_it_stands(tmp_path: Path, position: int) -> None:
    texts: list[bytes] = [b"fine text"] * 5
    texts[position] = b"good \xff\xfe line\n" * 10
    with pytest.raises(CorpusError, match=rf"{position}\.txt is not UTF-8: byte 0xff at offset 5"):
        learn(tmp_path, *texts)
    assert not (tmp_path / "out").exists()


def test_B07_a_byte_order_mark_is_text_like_any_other(tmp_path: Path) -> None:
    tokenizer = learn(tmp_path, b"\xef\xbb\xbfhello hello", b"\xef\xbb\xbfhello hello").tokenizer
    assert "\ufeff".encode() in tokenizer.tokens.values()


def test_B08_carriage_returns_may_be_learnt(tmp_path: Path) -> None:
    tokenizer = learn(tmp_path, b"a\r\nb\rc\n" * 100, pattern="cl100k").tokenizer
    assert b"\r\n" in tokenizer.tokens.values()


def test_nothing_is_overwritten_unless_allowed(tmp_path: Path) -> None:
    first = learn(tmp_path, "ab ab").tokenizer.fingerprint
    with pytest.raises(TrainerError, match="exists"):
        learn(tmp_path, "cd cd")
    assert Tokenizer.from_files(tmp_path / "out").fingerprint == first
    assert learn(tmp_path, "cd cd", overwrite=True).tokenizer.fingerprint != first


def test_progress_is_reported(tmp_path: Path) -> None:
    seen: list[int] = []
    merges: list[tuple[int, int]] = []
    learn(tmp_path, "ab ab abc", "de", progress=seen.append, merge_progress=lambda *done: merges.append(done))
    assert seen[-1] == 11
    assert merges[-1][1] == 43
    assert merges == sorted(merges)
