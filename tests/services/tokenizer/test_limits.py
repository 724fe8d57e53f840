"""Answers are bounded, whatever is asked, and the same bytes get the same answer at any size."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from services.tokenizer.app import create_app
from services.tokenizer.settings import TokenizerSettings
from shared.bpe import Tokenizer

LIMIT = 1_000
IDS = {"Content-Type": "application/octet-stream"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def limited(model_dir: Path) -> Iterator[TestClient]:
    settings = TokenizerSettings(model_dir=model_dir, max_answer_bytes=LIMIT)
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        yield client


@pytest.mark.case("D04")
def test_places_are_given_for_so_many_tokens(client: TestClient, tokenizer: Tokenizer) -> None:
    text = "?!" * 65_536
    assert len(tokenizer.encode(text)) == 1 << 17
    for given in (text, [text[:-2], "?!"]):
        response = client.post("/encode", json={"text": given, "return_pieces": True})
        assert response.status_code == 200
        assert response.json()["count"] == 1 << 17
    for given in (text + "?", [text, "?"], "?!" * 3_000_000):
        response = client.post("/encode", json={"text": given, "return_pieces": True})
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "answer_too_large"
        assert "the limit of 131,072" in response.json()["error"]["message"]


@pytest.mark.case("D06")
@pytest.mark.parametrize("text", ["a" * LIMIT, "\0" * (LIMIT // 6), "\u00e9" * (LIMIT // 2)])
def test_text_of_so_many_bytes_is_decoded(limited: TestClient, tokenizer: Tokenizer, text: str) -> None:
    """As JSON writes it, where a control character takes six bytes."""
    ids = tokenizer.encode(text)
    more = [*ids, *tokenizer.encode("\0" if "\0" in text else "a")]
    assert limited.post("/decode", json={"tokens": ids}).json()["text"] == text
    assert limited.post("/decode", json={"tokens": [ids[:4], ids[4:]]}).status_code == 200
    for tokens in (more, [more], [ids, [ids[0]]]):
        response = limited.post("/decode", json={"tokens": tokens})
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "answer_too_large"
        assert f"{LIMIT:,} bytes (OWNLM_MAX_ANSWER_BYTES)" in response.json()["error"]["message"]


@pytest.mark.case("D06")
def test_raw_text_of_so_many_bytes_is_decoded(limited: TestClient, tokenizer: Tokenizer) -> None:
    ids = b"".join(token.to_bytes(2, "little") for token in tokenizer.encode("a" * LIMIT))
    more = ids + tokenizer.encode("a")[0].to_bytes(2, "little")
    assert limited.post("/decode", content=ids, headers=IDS).text == "a" * LIMIT
    # Bytes that are not text become three each.
    for body in (more, ids * 1_000, b"\x80\x00" * (LIMIT // 2)):
        response = limited.post("/decode", content=body, headers=IDS)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "answer_too_large"


@pytest.mark.case("D15")
@pytest.mark.parametrize("pad", [1, 5_000, 70_000])
def test_bodies_are_read_alike_at_any_size(client: TestClient, pad: int) -> None:
    body = json.dumps({"text": "x" * pad})
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        response = client.post("/encode", content=body.encode(encoding), headers=JSON)
        assert (response.status_code, "cannot be read as JSON in UTF-8" in response.text) == (422, True)
    wide = body[:-1] + f', "return_pieces": {2**64}}}'
    response = client.post("/encode", content=wide, headers=JSON)
    assert (response.status_code, response.json()["error"]["param"]) == (422, "return_pieces")
    assert str(2**64) in response.json()["error"]["message"]
