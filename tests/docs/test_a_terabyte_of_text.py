"""The commands of the page about Ray, on small texts."""

import json
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest

from shared.bpe import Tokenizer
from tests.docs.pages import DOCS, run_example, run_page
from tests.trainer.made_text import made_documents
from trainer.tokens.token_file import TokenFile

PAGE = DOCS / "how-to" / "a-terabyte-of-text.md"

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def test_on_one_machine(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs ownlm[ray]: make ray")
    text = ("The cat sat on the mat, and the dog lay by the door.\n" * 20 + "<|endoftext|>\n") * 200
    (tmp_path / "stories.txt").write_text(text)
    (tmp_path / "web.txt").write_text(text.replace("The cat", "A bird"))
    run_page(PAGE, tmp_path, small=False)
    assert Tokenizer.from_files(tmp_path / "ray-tokenizer").fingerprint
    assert TokenFile.open(tmp_path / "ray-tokens", "train").manifest.documents == 400


def test_on_a_cluster(ray_nodes: Any, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an object store, and to it."""
    pytest.importorskip("rensa", reason="needs ownlm[clean]")
    documents = made_documents(400_000)
    lines = [json.dumps({"text": text}) + "\n" for text in documents]
    bucket = f"{s3}/{tmp_path.name}"
    for number, part in enumerate((lines[::2], lines[1::2])):
        packed = pyarrow.compress("".join(part).encode(), "zstd", asbytes=True)
        fsspec.filesystem("s3").pipe_file(f"{bucket}/text/{number}.jsonl.zst", packed)
    instead = {"s3://my-bucket": bucket, "--ray auto": f"--ray {ray_nodes.address}", "32768": "1000"}
    run_example(PAGE, "a cluster", tmp_path, instead)
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path / "cache"))
    kept = TokenFile.open(Path(f"{bucket}/tokens"), "train").manifest.documents
    assert 0.9 * len({*documents}) < kept <= len({*documents})
