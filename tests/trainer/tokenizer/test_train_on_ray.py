"""`vocab --ray`: the same tokenizer as one machine's."""

import json
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest

from shared.bpe.training import PartCounts, Source, TrainingConfig
from tests.trainer.made_text import SEPARATOR, made_documents
from trainer.errors import InterruptedRunError, UsageError
from trainer.settings.vocab import VocabSettings
from trainer.text.utf8 import CorpusError
from trainer.tokenizer import cluster_counting
from trainer.tokenizer.report import TokenizerReport
from trainer.tokenizer.train import train_tokenizer

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.timeout(300)]

count = cluster_counting._count


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_counting, "_PART_BYTES", range(1 << 18, 1 << 18))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    first, second = (made_documents(size, seed) for seed, size in enumerate((1_500_000, 300_000)))
    return write(first, "\n\n".join(second), tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def web_paths(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same with pages of the web, and Japanese ones."""
    texts = [(data_dir / name).read_text("utf-8") for name in ("owt/owt_sample.txt", "lang/ja.txt")]
    return write(texts[0][:1_500_000].split(SEPARATOR), texts[1][:300_000], tmp_path_factory.mktemp("web"))


def write(documents: list[str], second: str, folder: Path) -> list[Path]:
    (folder / "a.txt").write_text(SEPARATOR.join(documents), "utf-8")
    (folder / "b.txt").write_text(second, "utf-8")
    (folder / "c.jsonl").write_text(json.dumps({"text": "records are whole " * 99}) + "\n")
    (folder / "d.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in documents))
    return sorted(folder.iterdir())


def train(
    paths: list[Path], output: Path, ray: str | None, progress: Callable[[int], object] = id, **settings: Any
) -> TokenizerReport:
    options = VocabSettings(vocab_size=600, held_out="1K", ray=ray, **settings)
    return train_tokenizer(paths, output, options, progress=lambda done: progress(done) and None)


def after(calls: int, action: Callable[[], object]) -> Callable[[int], None]:
    """Acts when progress was reported for so many times."""
    left = [calls]

    def progress(_: int) -> None:
        left[0] -= 1
        if not left[0]:
            action()

    return progress


@pytest.mark.parametrize(("kind", "pattern"), [("paths", "gpt2"), ("paths", r"\w+|\s|[^\w\s]+"), ("web_paths", "gpt2")])
def test_the_tokenizer_is_that_of_one_machine(
    ray_nodes: Any, kind: str, tmp_path: Path, pattern: str, request: pytest.FixtureRequest
) -> None:
    paths: list[Path] = request.getfixturevalue(kind)
    seen: list[int] = []
    one = train(paths, tmp_path / "one", None, pattern=pattern)
    two = train(paths, tmp_path / "two", ray_nodes.address, seen.append, pattern=pattern)
    assert (tmp_path / "one" / "tokenizer.json").read_bytes() == (tmp_path / "two" / "tokenizer.json").read_bytes()
    assert one.training.words == two.training.words
    assert one.held_out_bytes_per_token == two.held_out_bytes_per_token
    assert len(seen) > 5
    assert seen == sorted(seen)
    assert one.bytes_read == two.bytes_read == seen[-1]


def test_from_and_to_an_object_store(ray_nodes: Any, s3: str, paths: list[Path], tmp_path: Path) -> None:
    """A cluster without a shared disk."""
    store, folder = fsspec.filesystem("s3"), f"{s3}/{tmp_path.name}"
    store.put([str(path) for path in paths], f"{folder}/texts/")
    one = train(paths, tmp_path / "one", None)
    two = train([Path(f"{folder}/texts")], Path(f"{folder}/two"), ray_nodes.address)
    assert store.cat_file(f"{folder}/two/tokenizer.json") == (tmp_path / "one" / "tokenizer.json").read_bytes()
    assert one.bytes_read == two.bytes_read


def count_or_die(folder: Path, config: TrainingConfig, source: Source) -> PartCounts:
    """Kills its process when it has counted, once."""
    counts = count(config, source)
    if not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return counts


def test_a_node_and_a_process_that_are_killed_change_nothing(
    ray_nodes: Any, paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What their tasks counted is not counted twice."""
    monkeypatch.setattr(cluster_counting, "_count", partial(count_or_die, tmp_path))
    train(paths, tmp_path / "one", None)
    node = ray_nodes.add_node(num_cpus=1, object_store_memory=100 << 20)
    seen: list[int] = []
    kill = after(2, threading.Thread(target=ray_nodes.remove_node, args=(node, False)).start)
    report = train(paths, tmp_path / "two", ray_nodes.address, lambda done: (seen.append(done), kill(done)))
    assert (tmp_path / "died").exists()
    assert (tmp_path / "one" / "tokenizer.json").read_bytes() == (tmp_path / "two" / "tokenizer.json").read_bytes()
    assert seen == sorted(seen)
    assert report.bytes_read == seen[-1]


def test_ctrl_c_cancels(ray_nodes: Any, paths: list[Path], tmp_path: Path) -> None:
    """Nothing is kept, and the same command does all of it."""
    seen: list[int] = []
    stop = after(3, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(InterruptedRunError, match="nothing was written: run the same command again"):
        train(paths, tmp_path / "two", ray_nodes.address, lambda done: (seen.append(done), stop(done)))
    assert len(seen) == 3
    assert not (tmp_path / "two").exists()
    report = train(paths, tmp_path / "two", ray_nodes.address)
    assert report.bytes_read > seen[-1]
    train(paths, tmp_path / "one", None)
    assert (tmp_path / "one" / "tokenizer.json").read_bytes() == (tmp_path / "two" / "tokenizer.json").read_bytes()


def test_bytes_that_are_no_utf8(ray_nodes: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x " * 300_000 + b"\xff")
    with pytest.raises(CorpusError, match="0xff at offset 600000"):
        train_tokenizer([tmp_path / "a.txt"], tmp_path / "out", VocabSettings(vocab_size=300, ray=ray_nodes.address))
    assert not (tmp_path / "out").exists()


def test_standard_input_is_refused(ray_nodes: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--ray reads text on all nodes, and standard input is a stream"):
        train_tokenizer([Path("-")], tmp_path / "out", VocabSettings(vocab_size=300, ray=ray_nodes.address))
