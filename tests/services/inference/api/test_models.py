"""What the service says of the model that it serves."""

from fastapi.testclient import TestClient

from shared.bpe import Tokenizer

CONTEXT = 128


def test_info_describes_the_model(client: TestClient, tokenizer: Tokenizer) -> None:
    info = client.get("/info").json()
    assert (info["model"], info["fingerprint"], info["context_length"]) == ("tiny", tokenizer.fingerprint, CONTEXT)
    assert info["limits"]["max_choices"] == 8


def test_models(client: TestClient) -> None:
    [card] = client.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", CONTEXT)
    assert client.get("/v1/models/tiny").json() == card
    unknown = client.get("/v1/models/org/other")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
