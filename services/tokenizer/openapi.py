"""Raw bodies in the OpenAPI document, beside the JSON bodies that FastAPI documents."""

from typing import Any


def _parameter(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": f"For a raw body: {description}", "schema": schema}


_DTYPE = _parameter(
    "dtype",
    "the width of the ids, little-endian; by default uint16 where the vocabulary has at most 65,536 tokens, as in token"
    " files, else uint32",
    enum=["uint16", "uint32"],
)
_FINGERPRINT = {"description": "Identifies the tokenizer", "schema": {"type": "string"}}

RAW_ENCODE: dict[str, Any] = {
    "parameters": [
        _parameter(
            "allowed_special",
            'special tokens recognized in the text: their names, one per parameter, or "all"',
            type="array",
            items={"type": "string"},
        ),
        _parameter("add_special_tokens", "add the tokenizer's own", enum=["true", "false"]),
        _parameter("return_pieces", "return the tokens in columns, see the answer", enum=["true", "false"]),
        _DTYPE,
    ],
    "requestBody": {
        "content": {
            "text/plain": {
                "schema": {"type": "string", "format": "binary", "description": "A text in UTF-8"},
                "examples": {"a text": {"value": "Once upon a time"}},
            }
        }
    },
    "responses": {
        "200": {
            "content": {
                "application/octet-stream": {
                    "schema": {
                        "type": "string",
                        "format": "binary",
                        "description": "The ids, little-endian, for a text/plain body if the client accepts this type",
                    }
                }
            },
            "headers": {
                "X-Token-Count": {"description": "The number of raw ids", "schema": {"type": "integer"}},
                "X-Token-Dtype": {"description": "uint16 or uint32", "schema": {"type": "string"}},
                "X-Tokenizer-Fingerprint": _FINGERPRINT,
            },
        }
    },
}

RAW_DECODE: dict[str, Any] = {
    "parameters": [
        _parameter("skip_special_tokens", "leave special tokens out of the text", enum=["true", "false"]),
        _parameter("errors", "as in the JSON body", enum=["replace", "strict"]),
        _DTYPE,
    ],
    "requestBody": {
        "content": {
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary", "description": "Ids, little-endian"}
            }
        }
    },
    "responses": {
        "200": {
            "content": {"text/plain; charset=utf-8": {"schema": {"type": "string"}}},
            "headers": {"X-Tokenizer-Fingerprint": _FINGERPRINT},
        }
    },
}
