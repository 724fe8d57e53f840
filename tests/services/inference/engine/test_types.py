"""Which sequences can never run."""

import pytest

from services.inference.engine.errors import RequestTooLargeError
from tests.services.inference.engine.core_driver import request


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "blocks"), [(1, 0, 1), (16, 1, 1), (16, 2, 2), (17, 0, 2), (320, 321, 40)]
)
def test_the_last_token_needs_no_room(prompt: int, max_tokens: int, blocks: int) -> None:
    assert request(prompt, max_tokens).num_blocks == blocks


def test_the_check_of_what_fits_names_the_limit() -> None:
    request(1, 640).check_fits_cache(40)
    with pytest.raises(RequestTooLargeError, match="656 tokens of KV cache, and it holds 640"):
        request(1, 641).check_fits_cache(40)
