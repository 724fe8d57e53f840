"""`encode --ray`: the same files as one machine's."""

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from shared.bpe import Tokenizer, train_bpe
from tests.trainer.made_text import SEPARATOR, made_documents
from trainer.errors import InterruptedRunError, UsageError
from trainer.settings.encode import EncodeSettings
from trainer.tokens.encode import encode_files

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    first, second = (made_documents(size, seed) for seed, size in enumerate((1_500_000, 200_000)))
    return write(SEPARATOR.join(first), "\n\n".join(second), tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def web_paths(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same with pages of the web, and Japanese ones."""
    texts = [(data_dir / name).read_text("utf-8") for name in ("owt/owt_sample.txt", "lang/ja.txt")]
    return write(texts[0][:1_500_000], texts[1][:200_000], tmp_path_factory.mktemp("web"))


def write(first: str, second: str, folder: Path) -> list[Path]:
    (folder / "a.txt").write_text(first, "utf-8")
    (folder / "b.txt").write_text(second, "utf-8")
    (folder / "c.jsonl").write_text("".join(json.dumps({"text": f"record {n}"}) + "\n" for n in range(500)))
    (folder / "d.txt").write_text(f"one{SEPARATOR}two{SEPARATOR} \n")
    return [folder / name for name in ("a.txt", "b.txt", "c.jsonl", "d.txt")]


@pytest.fixture(scope="module")
def tokenizer(paths: list[Path]) -> Tokenizer:
    return train_bpe([paths[0].read_text("utf-8")[:200_000]], 600, special_tokens=[SEPARATOR]).tokenizer


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("kind", "options"),
    [("paths", {}), ("paths", {"val_fraction": 0.05}), ("paths", {"no_separator": True}), ("web_paths", {})],
    ids=str,
)
def test_the_files_are_those_of_one_machine(
    ray_nodes: Any,
    kind: str,
    tokenizer: Tokenizer,
    tmp_path: Path,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    paths: list[Path] = request.getfixturevalue(kind)
    monkeypatch.chdir(paths[0].parent)
    names = [Path(path.name) for path in paths]
    for ray in (None, ray_nodes.address):
        seen: list[int] = []
        settings = EncodeSettings(shard_tokens=50_000, ray=ray, **options)
        report = encode_files(names, tokenizer, tmp_path / str(ray), settings, progress=seen.append)
    one = files_in(tmp_path / "None")
    assert len(one) > 12
    assert files_in(tmp_path / ray_nodes.address) == one
    assert len(seen) > 5
    assert seen == sorted(seen)
    assert seen[-1] == report.bytes_read


def test_from_and_to_an_object_store(
    ray_nodes: Any,
    s3: str,
    paths: list[Path],
    tokenizer: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster without a shared disk: the nodes read text from the store, and write shards there."""
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path / "cache"))
    store = fsspec.filesystem("s3")
    store.put([str(path) for path in paths], f"{s3}/{tmp_path.name}/texts/")
    names = [Path(f"{s3}/{tmp_path.name}/texts/{path.name}") for path in paths]
    for name, ray in (("one", None), ("two", ray_nodes.address)):
        settings = EncodeSettings(shard_tokens=50_000, val_fraction=0.05, ray=ray)
        encode_files(names, tokenizer, Path(f"{s3}/{tmp_path.name}/{name}"), settings)
    store.invalidate_cache()
    one, two = (
        {key.rpartition("/")[2]: store.cat_file(key) for key in store.find(f"{s3}/{tmp_path.name}/{name}")}
        for name in ("one", "two")
    )
    assert len(one) > 12
    assert one == two


def test_a_node_that_is_killed_and_a_run_that_is_stopped_change_nothing(
    ray_nodes: Any, paths: list[Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    encode_files(paths, tokenizer, tmp_path / "one", EncodeSettings(shard_tokens=20_000))
    node = ray_nodes.add_node(num_cpus=1, object_store_memory=100 << 20)
    settings = EncodeSettings(shard_tokens=20_000, ray=ray_nodes.address)
    calls: list[int] = []

    def after(count: int, action: Callable[[], object]) -> Callable[[int], None]:
        def progress(done: int) -> None:
            calls.append(done)
            if len(calls) == count:
                action()

        return progress

    stop = after(6, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(InterruptedRunError, match=r"of \d+ parts of the text are finished and kept"):
        encode_files(paths, tokenizer, tmp_path / "two", settings, progress=stop)
    calls.clear()
    kill = after(2, threading.Thread(target=ray_nodes.remove_node, args=(node, False)).start)
    report = encode_files(paths, tokenizer, tmp_path / "two", settings, progress=kill)
    assert report.parts_kept >= 5
    assert files_in(tmp_path / "two") == files_in(tmp_path / "one")


def test_standard_input_is_refused(ray_nodes: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--ray reads text on all nodes"):
        encode_files([Path("-")], tokenizer, tmp_path / "out", EncodeSettings(ray=ray_nodes.address))
    assert not (tmp_path / "out").exists()
