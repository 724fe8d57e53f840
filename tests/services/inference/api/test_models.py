"""What the service says of the model that it serves."""

from fastapi.testclient import TestClient

from shared.bpe import Tokenizer

CONTEXT = 128


def test_info_describes_the_model(client: TestClient, tokenizer: Tokenizer) -> None:
    info = client.get("/info").json()
    assert (info["model"], info["fingerprint"], info["context_length"]) == ("tiny", tokenizer.fingerprint, CONTEXT)
    assert info["limits"]["max_choices"] == 8
    assert info["special_tokens"] == tokenizer.special_tokens
    assert info["eos_token_ids"] == [tokenizer.special_tokens["<|endoftext|>"]]
    assert (info["limits"]["max_stops"], info["limits"]["max_stop_characters"]) == (4, 256)


def test_ranges_are_those_that_requests_are_checked_by(client: TestClient) -> None:
    info = client.get("/info").json()
    ranges = info["ranges"]
    assert ranges["temperature"] == {"minimum": 0, "maximum": 100}
    assert ranges["repetition_penalty"] == {"exclusiveMinimum": 0, "maximum": 10}
    assert ranges["n"] == {"minimum": 1, "maximum": 8}
    assert info["defaults"].keys() <= ranges.keys()
    for name, bounds in ranges.items():
        beyond = [
            *([bounds["minimum"] - 1] if "minimum" in bounds else []),
            *([bounds["exclusiveMinimum"]] if "exclusiveMinimum" in bounds else []),
            *([bounds["maximum"] + 1] if "maximum" in bounds else []),
        ]
        for value in beyond:
            response = client.post("/generate", json={"prompt": "a", "max_tokens": 1, name: value})
            assert response.status_code in (400, 422), (name, value)


def test_models(client: TestClient) -> None:
    [card] = client.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", CONTEXT)
    assert client.get("/v1/models/tiny").json() == card
    unknown = client.get("/v1/models/org/other")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
