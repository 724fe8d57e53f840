"""Raw bodies: text/plain and little-endian ids, beside JSON."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from services.tokenizer import encode as encode_module
from services.tokenizer.app import create_app
from services.tokenizer.settings import TokenizerSettings
from shared.bpe import Tokenizer
from shared.bpe.vocabulary import AddedToken

TEXT = {"Content-Type": "text/plain; charset=utf-8", "Accept": "application/octet-stream"}
IDS = {"Content-Type": "application/octet-stream"}


@pytest.mark.parametrize("text", ["", "a", "Once upon a time, été \U0001f600\0\u2028 <|e|>", "fox " * 300_000])
def test_a_text_goes_to_ids_and_back(client: TestClient, tokenizer: Tokenizer, text: str) -> None:
    encoded = client.post("/encode", content=text.encode(), headers=TEXT)
    assert encoded.status_code == 200
    assert encoded.headers["content-type"] == "application/octet-stream"
    assert encoded.headers["x-token-dtype"] == "uint16"
    assert encoded.headers["x-tokenizer-fingerprint"] == tokenizer.fingerprint
    ids = np.frombuffer(encoded.content, "<u2")
    assert ids.tolist() == tokenizer.encode(text)
    assert encoded.headers["x-token-count"] == str(len(ids))
    decoded = client.post("/decode", content=encoded.content, headers=IDS)
    assert decoded.headers["content-type"] == "text/plain; charset=utf-8"
    assert decoded.headers["x-tokenizer-fingerprint"] == tokenizer.fingerprint
    assert decoded.content == text.encode()


def test_a_text_has_the_same_ids_raw_and_as_json_at_any_size(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Also where a space is put before a text, but not behind an added token that is recognized in every text."""
    new_id = 1 + max(token.id for token in tokenizer.vocabulary.added)
    added = (*tokenizer.vocabulary.added, AddedToken(new_id, "<m>", special=False))
    Tokenizer(replace(tokenizer.vocabulary, added=added, prefix_space=True, only_first=True)).save(tmp_path)
    with TestClient(create_app(TokenizerSettings(model_dir=tmp_path)), base_url="http://localhost") as spaced:
        while spaced.get("/readyz").status_code != 200:
            time.sleep(0.01)
        for text in ("fox<m>fox fox", "fox<m>fox fox " * 2_000, "été fox " * 200_000):
            raw = np.frombuffer(spaced.post("/encode", content=text.encode(), headers=TEXT).content, "<u2")
            assert raw.tolist() == spaced.post("/encode", json={"text": text}).json()["tokens"]


NOT_ACCEPTED = [f"application/octet-stream{weight}, */*" for weight in (";q=0", " ; Q=0.000", ";a=b;q=0.")]
ACCEPTED = [f"text/html, Application/Octet-Stream{weight}" for weight in ("", ";q=0.001", "; q=1", ";a=b")]


@pytest.mark.parametrize("accept", ACCEPTED)
def test_who_asks_for_raw_ids_gets_them(client: TestClient, accept: str) -> None:
    answer = client.post("/encode", content=b"a fox", headers={"Content-Type": "text/plain", "Accept": accept})
    assert answer.headers["content-type"] == "application/octet-stream"


def test_ids_can_be_wide(client: TestClient, tokenizer: Tokenizer) -> None:
    encoded = client.post("/encode?dtype=uint32", content=b"a fox", headers=TEXT)
    assert encoded.headers["x-token-dtype"] == "uint32"
    assert np.frombuffer(encoded.content, "<u4").tolist() == tokenizer.encode("a fox")
    assert client.post("/decode?dtype=uint32", content=encoded.content, headers=IDS).text == "a fox"


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "text/html, */*;q=0.1", *NOT_ACCEPTED])
def test_who_does_not_ask_for_raw_ids_gets_json(client: TestClient, tokenizer: Tokenizer, accept: str | None) -> None:
    headers = {"Content-Type": "text/plain", **({"Accept": accept} if accept else {})}
    ids = tokenizer.encode("a fox")
    answer = client.post("/encode", content=b"a fox", headers=headers)
    assert answer.json() == {"tokens": ids, "count": len(ids), "fingerprint": tokenizer.fingerprint}


def test_special_tokens_are_text_unless_allowed(client: TestClient, tokenizer: Tokenizer) -> None:  # B17
    text = "hi <|endoftext|> bye <|e|>"
    for query, allowed in (
        ({}, ()),
        ({"allowed_special": "<|e|>"}, ["<|e|>"]),
        ({"allowed_special": ["<|e|>", "<|endoftext|>"]}, ["<|e|>", "<|endoftext|>"]),
        ({"allowed_special": "all"}, "all"),
    ):
        answer = client.post("/encode", params=query, content=text.encode(), headers=TEXT)
        ids = np.frombuffer(answer.content, "<u2")
        assert ids.tolist() == tokenizer.encode(text, allowed_special=allowed)
    skipped = client.post("/decode", params={"skip_special_tokens": "true"}, content=ids.tobytes(), headers=IDS)
    assert skipped.text == "hi  bye "


def test_parts_of_characters_decode_to_replacements_or_are_refused(client: TestClient) -> None:  # B22
    ids = np.array([*"\U0001f600".encode()[:2], 65], "<u2").tobytes()
    assert client.post("/decode", content=ids, headers=IDS).text == "\ufffdA"
    strict = client.post("/decode", params={"errors": "strict"}, content=ids, headers=IDS)
    assert strict.status_code == 400
    assert "byte 0 of their 3 bytes" in strict.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/encode", b"ab\xffcd", 400, "the body is not UTF-8: byte 2 is 0xff"),
        ("/encode", "é".encode() + b"\xed\xa0\x80", 400, "the body is not UTF-8: byte 2 is 0xed"),
        ("/encode", b"ab\xf0\x9f\x98", 400, "the body is not UTF-8: byte 2 is 0xf0"),
        ("/encode?allowed_special=%3C%7Cnope%7C%3E", b"a", 400, "<|nope|>"),
        ("/encode?allowed_specials=all", b"a", 422, "allowed_specials"),
        ("/encode?add_special_tokens=yes", b"a", 422, "add_special_tokens: must be false or true"),
        ("/encode?dtype=int64", b"a", 422, "dtype: must be uint16 or uint32"),
        ("/encode?dtype=uint16&dtype=uint32", b"a", 422, "dtype: must be uint16 or uint32, once"),
        ("/decode", b"\0\0\0", 400, "the body has 3 bytes, not a multiple of the 2 bytes of a uint16 id"),
        ("/decode", b"A\0\xff\xff", 400, "token 1 is 65535, but ids are 0 to"),
        ("/decode?dtype=uint32", b"\xff\xff\xff\xff", 400, "token 0 is 4294967295"),  # B23
        ("/decode?errors=ignore", b"A\0", 422, "errors: must be replace or strict"),
    ],
)
def test_wrong_bodies_are_refused(client: TestClient, path: str, body: bytes, status: int, message: str) -> None:
    answer = client.post(path, content=body, headers=TEXT if path.startswith("/encode") else IDS)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/encode", "text/plain; charset=latin-1"),
        ("/encode", "text/html"),
        ("/encode", "application/octet-stream"),
        ("/decode", "text/plain"),
    ],
)
def test_other_content_types_are_refused(client: TestClient, path: str, content_type: str) -> None:  # B68
    assert client.post(path, content=b"ab", headers={"Content-Type": content_type}).status_code == 415


@pytest.mark.parametrize(("path", "headers"), [("/encode", TEXT), ("/decode", IDS)])
def test_a_compressed_body_is_not_taken_for_text_or_ids(client: TestClient, path: str, headers: dict[str, str]) -> None:
    """With a large vocabulary any bytes are ids: they would be decoded, with status 200."""
    answer = client.post(path, content=b"A\0", headers={**headers, "Content-Encoding": "gzip"})
    assert answer.status_code == 415
    assert "without Content-Encoding" in answer.json()["error"]["message"]


def test_a_page_may_read_what_the_headers_tell(model_dir: Path) -> None:
    """Browsers hide all but a few headers from a page of another origin."""
    page = "https://app.example.com"
    with TestClient(
        create_app(TokenizerSettings(model_dir=model_dir, cors_origins=page)), base_url="http://localhost"
    ) as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        answer = client.post("/encode", content=b"a fox", headers={**TEXT, "Origin": page})
    exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
    ours = {name for name in answer.headers if name.startswith("x-")}
    assert "x-token-dtype" in ours
    assert ours <= set(exposed)


@pytest.mark.parametrize("special", [{}, {"allowed_special": "all"}, {"allowed_special": ["<|e|>"]}])
@pytest.mark.parametrize(
    "text", ["", "a", "Once upon a time, \u00e9t\u00e9 \U0001f600\0\u2028 <|e|> a\r\n", "fox " * 50_000]
)
def test_pieces_in_columns(client: TestClient, tokenizer: Tokenizer, text: str, special: dict[str, Any]) -> None:
    answer = client.post("/encode", params={"return_pieces": "true", **special}, content=text.encode(), headers=TEXT)
    assert answer.headers["x-token-dtype"] == "uint32"
    count = int(answer.headers["x-token-count"])
    ids, starts, ends, byte_ends = np.frombuffer(answer.content, "<u4", 4 * count).reshape(4, count).tolist()
    flags = answer.content[16 * count : 17 * count]
    joined = answer.content[17 * count :]
    spans = tokenizer.encode_with_offsets(text, **special)
    assert joined == text.encode()
    tokens = [joined[start:end] for start, end in zip([0, *byte_ends], byte_ends, strict=False)]
    assert [*zip(ids, tokens, starts, ends, map(bool, flags), strict=True)] == [tuple(span) for span in spans]


def test_pieces_need_raw_answers_and_have_a_limit(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "/encode?return_pieces=true"
    refused = client.post(url, content=b"a", headers={"Content-Type": "text/plain", "Accept": "*/*"})
    assert refused.status_code == 400
    assert "return_pieces: send the header 'Accept: application/octet-stream'" in refused.json()["error"]["message"]
    monkeypatch.setattr(encode_module, "_MAX_RAW_PIECES", 3)
    assert client.post(url, content=b"\0\0\0", headers=TEXT).status_code == 200
    refused = client.post(url, content=b"\0\0\0\0", headers=TEXT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "answer_too_large")
