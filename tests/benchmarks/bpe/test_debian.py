import gzip
from pathlib import Path

from benchmarks.bpe.debian import text_of


def test_markup_is_taken_out(tmp_path: Path):
    path = tmp_path / "page.html.gz"
    path.write_bytes(gzip.compress(b"<html><style>p {}</style><p>a &lt; b</p><script>no()</script></html>"))
    assert text_of(path) == "a < b"


def test_plain_text_is_left_as_it_is(tmp_path: Path):
    for name in ("read.txt", "tool.1", "book.pod"):
        tmp_path.joinpath(name).write_text("a <b> c")
        assert text_of(tmp_path / name) == "a <b> c"


def test_what_is_no_text_is_passed_over(tmp_path: Path):
    tmp_path.joinpath("image.png").write_bytes(b"text")
    tmp_path.joinpath("latin.txt").write_bytes(b"caf\xe9")
    tmp_path.joinpath("broken.txt.gz").write_bytes(b"text")
    tmp_path.joinpath("link.txt").symlink_to(tmp_path / "latin.txt")
    assert [text_of(path) for path in tmp_path.iterdir()] == [None] * 4
