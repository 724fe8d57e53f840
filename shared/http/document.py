"""The OpenAPI document: what FastAPI leaves out of it, or writes inexactly."""

from typing import Any

from fastapi import FastAPI

from shared.http.probes import HEALTH_PATHS

_ENVELOPE = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorEnvelope"}}}


def complete_document(app: FastAPI, *, keys: bool) -> None:
    """Write whole numbers as integers; with `keys`, document which operations need a key, and the response without one.

    FastAPI makes every bound a float, and JSON then has 9.223372036854776e+18 for 2**63, which is 192 more: to a client
    that reads the digits, a document that allows seeds which are refused.
    """
    build_document = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _with_whole_numbers(build_document())
            if keys:
                _add_keys(app.openapi_schema)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_whole_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _add_keys(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = {"ApiKey": {"type": "http", "scheme": "bearer"}}
    refusal = {"description": "The API key is missing or unknown", "content": _ENVELOPE}
    for path, calls in document["paths"].items():
        for call in calls.values() if path not in HEALTH_PATHS else ():
            call["security"] = [{"ApiKey": []}]
            call["responses"]["401"] = refusal
