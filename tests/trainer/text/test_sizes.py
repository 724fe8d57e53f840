import pytest

from trainer.errors import UsageError
from trainer.text.sizes import parse_size


@pytest.mark.parametrize(("text", "size"), [("500M", 500 << 20), ("8g", 8 << 30), ("1.5GiB", 3 << 29), ("1000", 1000)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1G", "0", "8Q"])
def test_wrong_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_size(text)
