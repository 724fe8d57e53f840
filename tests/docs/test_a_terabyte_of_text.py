"""The commands of the page about Ray, on a small text."""

from pathlib import Path

import pytest

from shared.bpe import Tokenizer
from tests.docs.pages import DOCS, run_page
from trainer.tokens.token_file import TokenFile


@pytest.mark.ray
def test_a_terabyte_of_text(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs ownlm[ray]: make ray")
    text = ("The cat sat on the mat, and the dog lay by the door.\n" * 20 + "<|endoftext|>\n") * 200
    (tmp_path / "stories.txt").write_text(text)
    (tmp_path / "web.txt").write_text(text.replace("The cat", "A bird"))
    run_page(DOCS / "how-to" / "a-terabyte-of-text.md", tmp_path, small=False)
    assert Tokenizer.from_files(tmp_path / "ray-tokenizer").fingerprint
    assert TokenFile.open(tmp_path / "ray-tokens", "train").manifest.documents == 400
