"""The OpenAPI documents, as programs read them that make clients of them."""

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from services.inference.app import create_app as create_inference
from services.inference.settings import InferenceSettings
from services.tokenizer.app import create_app as create_tokenizer
from services.tokenizer.settings import TokenizerSettings

pytestmark = pytest.mark.case("D58")

DOCUMENTS = {
    "inference": create_inference(InferenceSettings(model_dir=Path("x"))).openapi(),
    "tokenizer": create_tokenizer(TokenizerSettings(model_dir=Path("x"))).openapi(),
}
COMMON = {"info", "livez", "metrics", "readyz"}


@pytest.mark.parametrize(
    ("service", "names"),
    [
        (
            "inference",
            COMMON
            | {"generate", "completions", "chat_completions", "tokenize", "detokenize"}
            | {"list_models", "retrieve_model", "training"},
        ),
        ("tokenizer", COMMON | {"encode", "decode", "vocabulary", "vocabulary_token"}),
    ],
)
def test_operations_have_plain_names(service: str, names: set[str]) -> None:
    found = [operation["operationId"] for path in DOCUMENTS[service]["paths"].values() for operation in path.values()]
    assert len(found) == len(set(found))
    assert set(found) == names
    assert all(re.fullmatch("[a-z]+(_[a-z]+)?", name) for name in found)


def test_raw_bodies_are_bytes() -> None:
    def content(path: str) -> Any:
        return DOCUMENTS["tokenizer"]["paths"][path]["post"]["requestBody"]["content"]

    for path, kind in (("/encode", "text/plain"), ("/decode", "application/octet-stream")):
        assert content(path).keys() == {"application/json", kind}
        schema = content(path)[kind]["schema"]
        assert (schema["type"], schema["format"]) == ("string", "binary")


def test_the_largest_seed_is_written_exactly() -> None:
    """To a reader of the digits too: as a float, 2**63 is 9.223372036854776e+18 in JSON, which is 192 more."""
    document = json.loads(json.dumps(DOCUMENTS["inference"]), parse_float=Decimal)
    for name in ("GenerateRequest", "CompletionRequest"):
        bounds = document["components"]["schemas"][name]["properties"]["seed"]["anyOf"][0]
        assert (bounds["minimum"], bounds["exclusiveMaximum"]) == (0, 2**63)


@pytest.mark.parametrize("service", DOCUMENTS)
def test_whole_numbers_are_written_without_a_point(service: str) -> None:
    def refuse(number: str) -> float:
        assert not float(number).is_integer(), number
        return float(number)

    assert json.loads(json.dumps(DOCUMENTS[service]), parse_float=refuse) == DOCUMENTS[service]
