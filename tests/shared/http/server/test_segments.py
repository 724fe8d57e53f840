"""Answers depend on the bytes that a client sends, never on where packets are cut."""

import asyncio
import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from fastapi import FastAPI

from tests.shared.http.connection import answers, statuses

HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
INNER = b"GET /livez HTTP/1.1\r\nHost: xyz\r\n\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n"


def post(body: bytes, *more: bytes) -> bytes:
    return HEAD + b"".join(more) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def smuggled() -> bytes:
    """A body whose end would be a request to a server that renames `Upgrade:` in it, and so makes it longer."""
    return post(b"\r\nUpgrade:" * (len(INNER) // 2) + INNER)


SHAPES = {
    "smuggled": (smuggled(), [b"422"]),
    "upgrade and body": (post(b'{"text": "a"}', UPGRADE) + GET + b"\r\n", [b"400"]),
    "upgrade in a pipeline": (GET + b"\r\n" + post(INNER, UPGRADE), [b"200", b"400"]),
    "upgrade without a body": (GET + UPGRADE + b"\r\n" + GET + b"\r\n", [b"200", b"200"]),
    "chunked with a trailer": (
        HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"tex\r\n8\r\nt": "a"}\r\n0\r\nX-A: b\r\n\r\n' + GET + b"\r\n",
        [b"200", b"200"],
    ),
    "nonsense behind": (post(b'{"text": "a"}') + b"\x00\r\n\r\n", [b"200", b"400"]),
}


def cuts(data: bytes, *places: int) -> list[bytes]:
    edges = [0, *places, len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def without_ids(answer: bytes) -> list[bytes]:
    """What is the same each time: all but ids of requests and the date."""
    return [re.sub(rb"(x-request-id|date): [^\r]*\r\n", b"", part) for part in answer.split(b"HTTP/1.1 ")]


def check(app: FastAPI, data: bytes, expected: list[bytes], places: Iterable[tuple[int, ...]]) -> None:
    async def compare() -> None:
        whole = await answers(app, [data], len(expected))
        assert statuses(whole) == expected
        for where in places:
            assert without_ids(await answers(app, cuts(data, *where), len(expected))) == without_ids(whole), where

    asyncio.run(compare())


@pytest.mark.case("D01", "D02", "D09", "D10")
@pytest.mark.parametrize("name", SHAPES)
def test_each_cut_into_two(build: Any, name: str) -> None:
    data, expected = SHAPES[name]
    check(build(), data, expected, ((place,) for place in range(1, len(data))))


@pytest.mark.slow
@pytest.mark.case("D01", "D02")
@pytest.mark.parametrize("name", SHAPES)
def test_each_cut_into_three(build: Any, name: str) -> None:
    data, expected = SHAPES[name]
    check(build(), data, expected, itertools.combinations(range(1, len(data)), 2))


@pytest.mark.case("D01")
def test_a_body_arrives_as_it_was_sent(build: Any) -> None:
    text = "log" + "\r\nUpgrade: h2c\r\n\r\n" * 3
    data = post(json.dumps({"text": text}).encode())
    [_, body] = asyncio.run(answers(build(), cuts(data, data.index(b"\r\n\r\n") + 2), 1)).split(b"\r\n\r\n", 1)
    assert json.loads(body)["text"] == text
