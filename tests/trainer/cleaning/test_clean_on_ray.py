"""`clean --ray`: the same files as one machine's."""

import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.trainer.made_text import SEPARATOR, made_documents
from trainer.cleaning.clean import clean_files
from trainer.cleaning.report import CleaningReport
from trainer.errors import InterruptedRunError, TrainerError
from trainer.settings.clean import CleanSettings
from trainer.text.utf8 import CorpusError

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def rensa() -> None:
    pytest.importorskip("rensa", reason="needs ownlm[clean]")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Documents in two files, a part of them twice, and as many with a few words changed."""
    return write(made_documents(600_000), tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def web_texts(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same of pages of the web."""
    text = (data_dir / "owt" / "owt_sample.txt").read_text("utf-8")[:600_000]
    return write(text.split(SEPARATOR)[:-1], tmp_path_factory.mktemp("web"))


def write(documents: list[str], folder: Path) -> list[Path]:
    draw = random.Random(7)
    edited = [" ".join("x" if draw.random() < 0.01 else word for word in each.split()) for each in documents[:40]]
    (folder / "a.txt").write_text(SEPARATOR.join(documents), "utf-8")
    (folder / "b.txt").write_text(SEPARATOR.join([*edited, *documents[20:60]]), "utf-8")
    return [folder / "a.txt", folder / "b.txt"]


Progress = dict[str, list[int | None]]
"""For each pass the bytes or steps that it has: at its start, later, and at last the total that it announced."""


def clean(
    paths: list[Path],
    output: Path,
    after: Callable[[str], object] = id,
    progress: Progress | None = None,
    **settings: Any,
) -> CleaningReport:
    """Clean; `after` is called with the name of a pass whenever it has come further."""

    def new_bar(description: str, total: int | None, start: int = 0) -> Callable[..., None]:
        steps = ({} if progress is None else progress).setdefault(description, [start, total])

        def report(done: int, note: str = "") -> None:
            steps.insert(-1, done)
            after(description)

        return report

    return clean_files(paths, output, CleanSettings(**settings), new_bar, part_bytes=30_000)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def once(name: str, calls: int, action: Callable[[], object]) -> Callable[[str], None]:
    """Acts when a pass has come further for so many times."""
    left = [calls]

    def after(description: str) -> None:
        if description == name:
            left[0] -= 1
            if not left[0]:
                action()

    return after


@pytest.mark.parametrize("kind", ["texts", "web_texts"])
def test_the_files_are_those_of_one_machine(
    ray_nodes: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    texts: list[Path] = request.getfixturevalue(kind)
    monkeypatch.chdir(tmp_path)
    Path("my_cluster_filters.py").write_text("def short(text): return 'short' if len(text) < 2000 else True\n")
    options = {"filter": ("my_cluster_filters:short",)}
    clean(texts, Path("one"), workers=1, **options)
    progress: Progress = {}
    report = clean(texts, Path("two"), progress=progress, ray=ray_nodes.address, **options)
    for steps in progress.values():
        assert steps == sorted(steps)
        assert steps[-2] == steps[-1]
    assert progress.keys() == {"examining", "comparing", "writing"}
    assert len(progress["examining"]) > 12
    one = files_in(tmp_path / "one")
    assert len(one) > 12
    assert files_in(tmp_path / "two") == one
    assert {*report.counts.left} == {"my_cluster_filters:short: short", "duplicate", "near-duplicate"}


def test_from_and_to_an_object_store(ray_nodes: Any, s3: str, texts: list[Path], tmp_path: Path) -> None:
    """A cluster without a shared disk; the run is stopped, and continues on one machine."""
    store = fsspec.filesystem("s3")
    store.put([str(path) for path in texts], f"{s3}/{tmp_path.name}/texts/")
    given, output = [Path(f"{s3}/{tmp_path.name}/texts")], Path(f"{s3}/{tmp_path.name}/two")
    clean(given, tmp_path / "one", workers=1)
    with pytest.raises(InterruptedRunError, match=r"kept in s3://.*/two/clean-state: the same command continues"):
        clean(given, output, once("writing", 3, lambda: signal.raise_signal(signal.SIGINT)), ray=ray_nodes.address)
    passes: list[str] = []
    clean(given, output, passes.append, workers=1)
    assert "examining" not in passes
    store.invalidate_cache()
    found = {key.rpartition("/")[2]: store.cat_file(key) for key in store.find(f"{s3}/{tmp_path.name}/two")}
    assert found == files_in(tmp_path / "one")


def test_a_node_that_is_killed_and_a_run_that_is_stopped_change_nothing(
    ray_nodes: Any, texts: list[Path], tmp_path: Path
) -> None:
    whole: list[str] = []
    clean(texts, tmp_path / "one", whole.append, workers=1)
    node = ray_nodes.add_node(num_cpus=1, object_store_memory=100 << 20)
    stop = once("examining", 4, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(InterruptedRunError, match=r"[1-9]\d* of \d+ parts of the text are examined and kept"):
        clean(texts, tmp_path / "two", stop, ray=ray_nodes.address)
    passes: list[str] = []
    kill = once("examining", 2, threading.Thread(target=ray_nodes.remove_node, args=(node, False)).start)
    clean(texts, tmp_path / "two", lambda name: (passes.append(name), kill(name)), ray=ray_nodes.address)
    assert passes.count("examining") <= whole.count("examining") - 4
    assert files_in(tmp_path / "two") == files_in(tmp_path / "one")


def test_a_filter_that_a_node_lacks(
    ray_nodes: Any, texts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "on this machine only"
    folder.mkdir()
    (folder / "filters_of_the_driver.py").write_text("def keep(text): return True\n")
    monkeypatch.syspath_prepend(folder)
    message = r"on the node .*: --filter filters_of_the_driver:keep: ModuleNotFoundError.*all nodes need it"
    with pytest.raises(TrainerError, match=message):
        clean(texts, tmp_path / "out", ray=ray_nodes.address, filter=("filters_of_the_driver:keep",))
    assert not (tmp_path / "out").exists()


def test_bytes_that_are_no_utf8(ray_nodes: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x " * 30_000 + b"\xff")
    with pytest.raises(CorpusError, match="0xff at offset 60000"):
        clean([tmp_path / "a.txt"], tmp_path / "out", ray=ray_nodes.address)
    assert not (tmp_path / "out").exists()
