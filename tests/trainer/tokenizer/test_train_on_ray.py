"""`vocab --ray`: the same tokenizer as one machine's."""

import json
from pathlib import Path
from typing import Any

import pytest

from shared.bpe import Tokenizer
from trainer.errors import UsageError
from trainer.settings.vocab import VocabSettings
from trainer.text.utf8 import CorpusError
from trainer.tokenizer import cluster_counting
from trainer.tokenizer.train import train_tokenizer

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_counting, "_PART_BYTES", range(1 << 18, 1 << 18))


@pytest.mark.parametrize("pattern", ["gpt2", r"\w+|\s|[^\w\s]+"])
def test_the_tokenizer_is_that_of_one_machine(
    ray_nodes: Any,
    data_dir: Path,
    tmp_path: Path,
    pattern: str,
) -> None:
    text = (data_dir / "owt" / "owt_sample.txt").read_text("utf-8")[:1_500_000]
    (tmp_path / "a.txt").write_text(text, "utf-8")
    (tmp_path / "b.txt").write_text((data_dir / "lang" / "ja.txt").read_text("utf-8")[:300_000], "utf-8")
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": "records are whole " * 99}) + "\n")
    documents = text.split("<|endoftext|>")
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in documents))
    paths = [tmp_path / name for name in ("a.txt", "b.txt", "c.jsonl", "d.jsonl")]
    seen: list[int] = []
    reports = [
        train_tokenizer(
            paths,
            tmp_path / str(ray),
            VocabSettings(vocab_size=600, pattern=pattern, held_out="1K", ray=ray),
            progress=seen.append,
        )
        for ray in (None, ray_nodes.address)
    ]
    one, other = (Tokenizer.from_files(tmp_path / str(ray)) for ray in (None, ray_nodes.address))
    assert one.fingerprint == other.fingerprint
    assert (tmp_path / "None" / "tokenizer.json").read_bytes() == (
        tmp_path / ray_nodes.address / "tokenizer.json"
    ).read_bytes()
    assert reports[0].training.words == reports[1].training.words
    assert reports[0].bytes_read == reports[1].bytes_read == seen[-1]
    assert reports[0].held_out_bytes_per_token == reports[1].held_out_bytes_per_token


def test_bytes_that_are_no_utf8(ray_nodes: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x " * 300_000 + b"\xff")
    with pytest.raises(CorpusError, match="0xff at offset 600000"):
        train_tokenizer([tmp_path / "a.txt"], tmp_path / "out", VocabSettings(vocab_size=300, ray=ray_nodes.address))
    assert not (tmp_path / "out").exists()


def test_standard_input_is_refused(ray_nodes: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--ray reads text on all nodes, and standard input is a stream"):
        train_tokenizer([Path("-")], tmp_path / "out", VocabSettings(vocab_size=300, ray=ray_nodes.address))
