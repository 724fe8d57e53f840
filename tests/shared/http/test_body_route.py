"""Large JSON bodies: read in a thread, with their parts counted before."""

import json
import threading
from collections import Counter
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.http import ApiError, body_route

JSON = {"Content-Type": "application/json"}
PAD = "x" * 70_000  # makes a body a large one


@pytest.fixture
def client(build: Any) -> TestClient:
    return TestClient(build(max_body_bytes=2**25), raise_server_exceptions=False)


def test_query_parameters_beside_json_are_refused(client: TestClient) -> None:
    answer = client.post("/echo?text=a", json={"text": "a"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "query parameters have no meaning here; in JSON they are fields"


def test_a_path_with_a_slash_behind_it_is_another_one(client: TestClient) -> None:
    """A redirect would name the scheme that a proxy used, which need not be the client's."""
    assert client.post("/echo/", json={"text": "a"}, follow_redirects=False).status_code == 404


def test_a_large_body_is_read_in_a_thread(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = []
    read = body_route._parse

    def observed(body: bytes) -> Any:
        readers.append(threading.current_thread().name)
        return read(body)

    monkeypatch.setattr(body_route, "_parse", observed)
    text = PAD + 'é\U0001f600"\\['
    assert client.post("/echo", json={"text": text}).json()["text"] == text
    assert readers == ["AnyIO worker thread"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (PAD, "cannot be read as JSON"),
        ('{"text": "' + PAD, "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),  # B69
        ('{"whole": ' + "9" * 70_000 + "}", "cannot be read as JSON"),  # B69
        (f'{{"text": "{PAD}", "number": NaN}}', "number: input should be a finite number"),
        (f'{{"text": "{PAD}\\ud800"}}', "cannot be read as JSON"),
        ("[" + "[]," * 3_000_000 + "[]]", "3,000,002 lists and objects in the body exceed the limit of 131,072"),
        ("[" + '"",' * 3_000_000 + '""]', "3,000,001 strings in the body exceed the limit of 131,072"),
        ("[" + '{"":0},' * 1_000_000 + "{}]", "1,000,000 strings in the body exceed the limit of 131,072"),
        ("[" + "1," * 3_000_000 + "1]", "3,000,000 commas between values in the body exceed the limit of 2,097,152"),
    ],
)
def test_large_hostile_bodies(client: TestClient, body: str, named: str) -> None:
    answer = client.post("/echo", content=body, headers=JSON)
    assert answer.status_code == 422
    assert named in answer.json()["error"]["message"]
    assert len(answer.content) < 500


@pytest.mark.parametrize("text", ["a", PAD])
def test_a_byte_order_mark_is_left_out_whatever_the_size(client: TestClient, text: str) -> None:
    answer = client.post("/echo", content=b"\xef\xbb\xbf" + json.dumps({"text": text}).encode(), headers=JSON)
    assert answer.json()["text"] == text


def test_what_is_within_a_string_is_no_part(client: TestClient) -> None:
    for text in ("[" * 300_000, '"' * 300_000, '\\"[{\\' * 100_000, "," * 1_100_000, '",' * 600_000):
        assert client.post("/echo", json={"text": text}).json()["text"] == text


VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a[{"\\/]}é\n', max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='b"\\[', max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def parts(value: Any) -> Counter[str]:
    """The strings, the lists and objects, and the commas between their items, of a value."""
    if isinstance(value, str):
        return Counter(strings=1)
    if not isinstance(value, list | dict):
        return Counter()
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    return sum(map(parts, inner), Counter(containers=1, commas=max(0, len(value) - 1)))


@settings(max_examples=200)
@given(
    value=VALUES,
    limit=st.integers(0, 8),
    max_commas=st.integers(0, 8),
    ascii_only=st.booleans(),
    counted=st.integers(1, 9),
)
def test_parts_are_counted_as_by_reading(
    value: Any, limit: int, max_commas: int, ascii_only: bool, counted: int
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_route, "_MAX_PARTS", limit)
        patch.setattr(body_route, "_MAX_COMMAS", max_commas)
        patch.setattr(body_route, "_COUNTED_BYTES", counted)
        found = parts(value)
        if max(found["strings"], found["containers"]) > limit or found["commas"] > max_commas:
            with pytest.raises(ApiError):
                body_route._check_parts(body)
        else:
            body_route._check_parts(body)
