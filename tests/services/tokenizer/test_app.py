import base64
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from services.tokenizer import encode as encode_module
from services.tokenizer.app import create_app
from services.tokenizer.settings import TokenizerSettings
from shared.bpe import Tokenizer
from tests.services.conftest import wait_until


def encode(client: TestClient, **body: Any) -> Any:
    response = client.post("/encode", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_encodes_and_decodes_one_text_and_batches(client: TestClient, tokenizer: Tokenizer) -> None:
    texts = ["Once upon a time", "", "ab\u0000cd", "\U0001f600 été \u2028"]
    one = encode(client, text=texts[0])
    assert one == {
        "tokens": tokenizer.encode(texts[0]),
        "count": len(one["tokens"]),
        "fingerprint": tokenizer.fingerprint,
    }
    batch = encode(client, text=texts)
    assert batch["tokens"] == [tokenizer.encode(text) for text in texts]
    assert batch["count"] == sum(map(len, batch["tokens"]))
    decoded = client.post("/decode", json={"tokens": batch["tokens"]}).json()
    assert decoded == {"text": texts, "fingerprint": tokenizer.fingerprint}
    assert client.post("/decode", json={"tokens": one["tokens"]}).json()["text"] == texts[0]
    assert client.post("/decode", json={"tokens": []}).json()["text"] == ""


def test_nul_is_a_character_like_any_other(client: TestClient) -> None:  # B25
    assert encode(client, text="ab\u0000cd")["count"] == 5


def test_special_tokens_are_text_unless_allowed(client: TestClient, tokenizer: Tokenizer) -> None:  # B17
    control = tokenizer.special_tokens["<|endoftext|>"]
    text = "hi <|endoftext|> bye"
    assert control not in encode(client, text=text)["tokens"]
    assert encode(client, text=text, allowed_special=["<|endoftext|>"])["tokens"].count(control) == 1
    assert encode(client, text=text, allowed_special="all")["tokens"].count(control) == 1
    unknown = client.post("/encode", json={"text": text, "allowed_special": ["<|nope|>"]})
    assert unknown.status_code == 400
    assert "<|nope|>" in unknown.json()["error"]["message"]


def test_pieces_cover_the_text(client: TestClient) -> None:
    text = "a \U0001f600 fox<|e|>"
    answer = encode(client, text=[text], allowed_special="all", return_pieces=True)
    [pieces] = answer["pieces"]
    assert [piece["id"] for piece in pieces] == answer["tokens"][0]
    assert b"".join(base64.b64decode(piece["bytes"]) for piece in pieces) == text.encode()
    assert (pieces[0]["start"], pieces[-1]["end"], pieces[-1]["special"]) == (0, len(text), True)


def test_parts_of_characters_decode_to_replacements_or_are_refused(client: TestClient) -> None:  # B22
    for length in (1, 2, 3):
        tokens = list("\U0001f600".encode())[:length]
        replaced = client.post("/decode", json={"tokens": [tokens, [65]]})
        assert replaced.json()["text"] == ["\ufffd", "A"]
        strict = client.post("/decode", json={"tokens": tokens, "errors": "strict"})
        assert strict.status_code == 400


@pytest.mark.parametrize("bad", [-1, 4294967296, 9223372036854775808, True, "7", 1.0, None, 100_000])
def test_ids_that_are_no_tokens_are_refused_by_index(client: TestClient, bad: object) -> None:  # B23
    for tokens, where in (([65, bad], "1"), ([[65], [65, bad]], "tokens[1]")):
        response = client.post("/decode", json={"tokens": tokens})
        assert response.status_code in (400, 422)
        assert where in response.json()["error"]["message"]


def test_bos_of_the_template_is_added_once_and_only_when_asked(tmp_path: Path) -> None:  # B27
    from tokenizers import Tokenizer as HFTokenizer
    from tokenizers import decoders, models, pre_tokenizers, processors

    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    source = HFTokenizer(models.BPE(vocab=alphabet, merges=[]))
    source.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    source.decoder = decoders.ByteLevel()
    source.add_special_tokens(["<s>"])
    source.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    source.save(str(tmp_path / "tokenizer.json"))
    with TestClient(create_app(TokenizerSettings(model_dir=tmp_path)), base_url="http://localhost") as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        plain = encode(client, text="hi")["tokens"]
        assert encode(client, text="hi", add_special_tokens=True)["tokens"] == [256, *plain]
        doubled = encode(client, text="<s>hi", add_special_tokens=True, allowed_special="all")
        assert doubled["tokens"] == [256, *plain]


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({}, 422, "text: this field is required"),
        ({"text": 5}, 422, "text: "),
        ({"text": ["a", 5]}, 422, "text[1]: "),
        ({"text": "a", "allowed_specials": []}, 422, "allowed_specials: unknown field"),
        ({"text": "a", "return_pieces": 1}, 422, "return_pieces: "),
        ({"text": "a", "allowed_special": "some"}, 422, "allowed_special: "),
        ({"text": ["a"] * 6}, 400, "text: 6 items exceed the limit of 5"),
        ([], 422, "body: "),
    ],
)
def test_wrong_bodies_are_refused_by_field(client: TestClient, body: object, status: int, named: str) -> None:
    response = client.post("/encode", json=body)
    assert response.status_code == status
    assert response.json()["error"]["message"].startswith(named)
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_lone_surrogates_are_refused(client: TestClient) -> None:
    response = client.post("/encode", content=b'{"text": "ab\\ud800"}', headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert "cannot be read as JSON in UTF-8" in response.json()["error"]["message"]


def test_a_megabyte_of_one_character_is_encoded(client: TestClient) -> None:  # B19
    for character in "^ ":
        text = character * 1_048_576
        answer = encode(client, text=["a", "b", text, "c", "d"])
        assert client.post("/decode", json={"tokens": answer["tokens"]}).json()["text"][2] == text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/decode", {"tokens": [-1] * 2_000_000}),
        ("/decode", {"tokens": [[]] * 2_000_000}),
        ("/encode", {"text": [5] * 10**6}),
    ],
)
def test_a_million_wrong_items_are_refused_quickly(client: TestClient, path: str, body: object) -> None:
    started = time.process_time()
    response = client.post(path, json=body)
    assert response.status_code == 422
    assert len(response.content) < 500
    assert time.process_time() - started < 5


def test_info_tells_what_is_served(client: TestClient, tokenizer: Tokenizer) -> None:
    info = client.get("/info").json()
    assert (info["fingerprint"], info["vocab_size"]) == (tokenizer.fingerprint, tokenizer.vocab_size)
    assert info["special_tokens"] == dict(tokenizer.special_tokens)


class Gate:
    """Holds up each call of `encode_json` until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.begun, self.open = threading.Event(), threading.Event()
        self._encode = encode_module.encode_json
        monkeypatch.setattr(encode_module, "encode_json", self._wait)

    def _wait(self, *arguments: Any) -> bytes:
        self.calls += 1
        self.begun.set()
        assert self.open.wait(240)
        return self._encode(*arguments)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


LARGE = {"text": "fox " * 10_000}


def test_probes_answer_while_a_large_text_is_encoded(model_dir: Path, serve: Any, gate: Gate) -> None:
    url = serve(create_app(TokenizerSettings(model_dir=model_dir)))
    with ThreadPoolExecutor(1) as pool:
        encoding = pool.submit(httpx.post, f"{url}/encode", json=LARGE, timeout=240)
        assert gate.begun.wait(240)
        assert httpx.get(f"{url}/livez").status_code == 200
        assert httpx.get(f"{url}/readyz").status_code == 200
        assert not encoding.done()
        gate.open.set()
        assert encoding.result().status_code == 200


def test_who_leaves_while_waiting_for_a_thread_is_forgotten(model_dir: Path, serve: Any, gate: Gate) -> None:
    url = serve(create_app(TokenizerSettings(model_dir=model_dir, cpu_threads=1)))
    with ThreadPoolExecutor(1) as pool:
        encoding = pool.submit(httpx.post, f"{url}/encode", json=LARGE, timeout=240)
        assert gate.begun.wait(240)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/encode", json=LARGE, timeout=httpx.Timeout(240, read=0.5))
        left = 'ownlm_http_requests_total{method="POST",route="/encode",status="499"} 1.0'
        wait_until(lambda: left in httpx.get(f"{url}/metrics").text)
        gate.open.set()
        assert encoding.result().status_code == 200
    assert gate.calls == 1


def test_documented_examples_work(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for path, schema in (("/encode", "EncodeRequest"), ("/decode", "DecodeRequest")):
        for example in schemas[schema]["examples"]:
            assert client.post(path, json=example).status_code == 200
