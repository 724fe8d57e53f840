"""Search in the vocabulary, and merge trees."""

import base64
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from services.tokenizer.app import create_app
from services.tokenizer.settings import TokenizerSettings
from shared.bpe import Tokenizer

BYTES = {bytes([byte]): byte for byte in range(256)}


def search(client: TestClient, **body: Any) -> Any:
    response = client.post("/vocabulary", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def look_up(client: TestClient, **body: Any) -> Any:
    response = client.post("/vocabulary/token", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def containing(tokenizer: Tokenizer, needle: bytes) -> list[int]:
    """What a search must find, token by token."""
    found = [token_id for token_id, token in tokenizer.tokens.items() if needle in token]
    return sorted(found, key=lambda token_id: (len(tokenizer.tokens[token_id]), token_id))


def open_tokenizer(folder: Path, tokenizer: Tokenizer, **settings: Any) -> Iterator[TestClient]:
    tokenizer.save(folder)
    app = create_app(TokenizerSettings(model_dir=folder, **settings))
    with TestClient(app, base_url="http://localhost") as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        yield client


@pytest.fixture(scope="module")
def odd() -> Tokenizer:
    """A token of 5,000 bytes, one that no merge reaches, ids that no token has, and bytes that no text has."""
    letters = bytes(random.Random(0).choices(range(ord("a"), ord("z") + 1), k=4_999))
    word = b"A" + letters
    vocab = BYTES | {word[: length + 1]: 255 + length for length in range(1, 5_000)}
    vocab |= {b"\xf0\x9f\x98": 5_300, b"\xf0\x9f": 5_301, b"\xf0\x9f\x98\x80": 5_302, b"qqq": 5_303}
    merges = [(word[:length], word[length : length + 1]) for length in range(1, 5_000)]
    merges += [(b"\xf0", b"\x9f"), (b"\xf0\x9f", b"\x98"), (b"\xf0\x9f\x98", b"\x80")]
    return Tokenizer.from_vocab(vocab, merges, special_tokens=["<|e|>", "</script><img onerror=alert(1)>"])


@pytest.fixture(scope="module")
def odd_client(odd: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    yield from open_tokenizer(tmp_path_factory.mktemp("odd"), odd)


@pytest.mark.parametrize(
    "needle", [b"o", b" ", b"on", b"fox", b"\xf0\x9f", b"<|", b"no such token", b"\0", b"z" * 70_000]
)
def test_every_token_with_the_bytes_is_found(client: TestClient, tokenizer: Tokenizer, needle: bytes) -> None:
    answer = search(client, bytes=needle.hex(" "), limit=1000)
    assert [entry["id"] for entry in answer["tokens"]] == containing(tokenizer, needle)
    assert (answer["total"], answer["next"]) == (len(answer["tokens"]), None)
    assert answer["fingerprint"] == tokenizer.fingerprint
    for entry in answer["tokens"]:
        token = tokenizer.tokens[entry["id"]]
        assert base64.b64decode(entry["bytes"]) == token
        assert entry["text"] == token.decode(errors="replace")
        assert entry["special"] == (entry["id"] in tokenizer.special_tokens.values())
    if b"\xf0" not in needle:
        assert search(client, text=needle.decode(), limit=1000) == answer


def test_bytes_across_the_edges_of_tokens_are_not_found(client: TestClient, tokenizer: Tokenizer) -> None:
    both = tokenizer.tokens[256] + tokenizer.tokens[257]
    assert [entry["id"] for entry in search(client, bytes=both.hex())["tokens"]] == containing(tokenizer, both)


def test_a_random_vocabulary_is_searched_as_token_by_token(tmp_path: Path) -> None:
    random_ = random.Random(3)
    tokens = {b"".join(random_.choices([b"a", b"b", b"\xc3"], k=random_.randint(2, 14))) for _ in range(400)}
    vocab = BYTES | {token: 300 + 2 * index for index, token in enumerate(sorted(tokens))}
    tokenizer = Tokenizer.from_vocab(vocab, [])
    for client in open_tokenizer(tmp_path, tokenizer):
        for length in (1, 2, 3, 7, 8, 9, 10, 12):
            for _ in range(5):
                needle = b"".join(random_.choices([b"a", b"b", b"\xc3"], k=length))
                found = search(client, bytes=needle.hex(), limit=1000)["tokens"]
                assert [entry["id"] for entry in found] == containing(tokenizer, needle)


def test_ids_are_listed_from_one_on(odd_client: TestClient, odd: Tokenizer) -> None:
    answer = search(odd_client, id=5_255, limit=3)  # no token has it
    assert [entry["id"] for entry in answer["tokens"]] == [5_300, 5_301, 5_302]
    assert (answer["total"], answer["next"]) == (6, 3)
    rest = search(odd_client, id=5_255, limit=3, first=answer["next"])
    assert [entry["id"] for entry in rest["tokens"]] == [5_303, 5_304, 5_305]
    assert rest["next"] is None
    assert [entry["special"] for entry in rest["tokens"]] == [False, True, True]
    assert search(odd_client, id=0)["total"] == len(odd)


def test_pages_join_to_the_whole(odd_client: TestClient, odd: Tokenizer) -> None:
    """Long tokens: an answer ends early, so that none is large."""
    ids: list[int] = []
    first: int | None = 0
    while first is not None:
        response = odd_client.post("/vocabulary", json={"text": "A", "first": first, "limit": 1000})
        assert len(response.content) < 1 << 20
        ids += [entry["id"] for entry in response.json()["tokens"]]
        first = response.json()["next"]
    assert ids == containing(odd, b"A")
    assert search(odd_client, text="A", first=10**30)["tokens"] == []


def test_a_token_of_5000_bytes_has_a_tree(odd_client: TestClient, odd: Tokenizer) -> None:
    nodes: list[Any] = []
    first: int | None = 0
    while first is not None:
        response = odd_client.post("/vocabulary/token", json={"id": 5_254, "first": first, "limit": 1000})
        assert len(response.content) < 1 << 18
        answer = response.json()
        nodes += answer["tree"]
        first = answer["next"]
    assert nodes == [node._asdict() for node in odd.merge_tree(5_254)]
    assert answer["total"] == len(nodes) == 9_999
    assert max(node["depth"] for node in nodes) == 4_999
    assert (answer["merged"], answer["encoded"], answer["encoded_count"]) == (True, [5_254], 1)


def test_parts_of_characters_and_tokens_that_no_merge_reaches(odd_client: TestClient) -> None:
    part = look_up(odd_client, id=5_300)
    assert (part["text"], part["encoded"], part["encoded_count"], part["merged"]) == ("\ufffd", None, None, True)
    unreached = look_up(odd_client, id=5_303)
    assert (unreached["encoded"], unreached["merged"], unreached["total"]) == ([ord("q")] * 3, False, 3)
    assert [node["depth"] for node in unreached["tree"]] == [0, 0, 0]
    special = look_up(odd_client, id=5_305)
    assert (special["text"], special["special"]) == ("</script><img onerror=alert(1)>", True)
    assert (special["merged"], special["tree"], special["total"]) == (False, [], 0)
    assert special["encoded"] == [*b"</script><img onerror=alert(1)>"]
    byte = look_up(odd_client, id=0xFF)
    assert (byte["bytes"], byte["merged"], byte["encoded"]) == ("/w==", True, None)


def test_a_token_that_is_used_whole_without_merges(tmp_path: Path) -> None:
    import json

    tokenizer = Tokenizer.from_vocab(BYTES | {b"qqq": 256}, [])
    tokenizer.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["ignore_merges"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    for client in open_tokenizer(tmp_path, Tokenizer.from_files(tmp_path)):
        token = look_up(client, id=256)
        assert (token["merged"], token["encoded"]) == (False, [256])


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("", {}, 422, "give one of text, bytes and id, not none"),
        ("", {"text": "a", "id": 5}, 422, "give one of text, bytes and id, not text and id"),
        ("", {"text": ""}, 422, "text: "),
        ("", {"text": 5}, 422, "text: "),
        ("", {"text": "a" * 300_000}, 422, "text: string should have at most 262144 characters"),
        ("", {"bytes": "00" * 150_000}, 422, "bytes: string should have at most 262144 characters"),
        ("", {"bytes": "abc"}, 422, "bytes: must be bytes of two hexadecimal digits each"),
        ("", {"bytes": ""}, 422, "bytes: must be bytes of two hexadecimal digits each"),
        ("", {"bytes": "zz"}, 422, "bytes: must be bytes of two hexadecimal digits each"),
        ("", {"id": -1}, 422, "id: "),
        ("", {"id": "7"}, 422, "id: "),
        ("", {"id": True}, 422, "id: "),
        ("", {"id": 100_000}, 400, "id: 100000 is beyond the ids 0 to "),
        ("", {"id": 10**100}, 400, "id: an integer of 333 bits is beyond"),
        ("", {"text": "a", "limit": 1001}, 422, "limit: "),
        ("", {"text": "a", "limit": 0}, 422, "limit: "),
        ("", {"text": "a", "first": -1}, 422, "first: "),
        ("", {"txt": "a"}, 422, "txt: unknown field"),
        ("/token", {}, 422, "id: this field is required"),
        ("/token", {"id": 1.0}, 422, "id: "),
        ("/token", {"id": 100_000}, 400, "id: the token is 100000, but ids are 0 to "),
        ("/token", {"id": 5, "limit": 5_000}, 422, "limit: "),
    ],
)
def test_wrong_requests_are_refused_by_field(client: TestClient, path: str, body: Any, status: int, named: str) -> None:
    response = client.post(f"/vocabulary{path}", json=body)
    assert response.status_code == status
    assert named in response.json()["error"]["message"]


def test_an_id_without_a_token_is_named(odd_client: TestClient) -> None:
    response = odd_client.post("/vocabulary/token", json={"id": 5_299})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "id: the token is 5299, but no token has that id"


def test_keys_protect_the_vocabulary(model_dir: Path) -> None:
    with TestClient(
        create_app(TokenizerSettings(model_dir=model_dir, api_keys="secret")), base_url="http://localhost"
    ) as client:
        for path in ("/vocabulary", "/vocabulary/token"):
            assert client.post(path, json={"id": 65}).status_code == 401
            assert client.post(path, json={"id": 65}, headers={"Authorization": "Bearer secret"}).status_code in {
                200,
                503,
            }


def test_documented_examples_work(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for path, schema in (("/vocabulary", "VocabularyRequest"), ("/vocabulary/token", "TokenRequest")):
        assert path in document["paths"]
        for example in document["components"]["schemas"][schema]["examples"]:
            assert client.post(path, json=example).status_code == 200
