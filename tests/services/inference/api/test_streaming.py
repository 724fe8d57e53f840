"""Streams over real sockets, from a model that generates a script of tokens."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from shared.bpe import Tokenizer
from tests.services.conftest import cut_off


def body_of(url: str, **body: Any) -> bytes:
    response = httpx.post(f"{url}/generate", json={"stream": True, **body}, timeout=240)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return response.content


def frames_of(content: bytes) -> list[Any]:
    """Read a stream as a simple client does: frames between LF LF, the last one is [DONE] (B33)."""
    *frames, done, rest = content.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(frame.startswith(b"data: {") for frame in frames)
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames]


def stream(url: str, **body: Any) -> list[Any]:
    return frames_of(body_of(url, **body))


def texts_of(frames: list[Any]) -> list[str]:
    return [choice["text"] for frame in frames for choice in frame["choices"]]


def whole(url: str, **body: Any) -> Any:
    response = httpx.post(f"{url}/generate", json=body, timeout=240)
    assert response.status_code == 200, response.text
    return response.json()


class Turnstile(threading.Semaphore):
    """A runner's gate that lets one step through each time that it is released."""

    def __init__(self) -> None:
        super().__init__(0)

    def wait(self) -> None:
        self.acquire()


SCRIPTS: dict[str, list[str | int]] = {
    "cut": ["DEF", "G", "HI", "J", "K"],
    "lines": [" a;\n", "b"],
    "chat": ["H", "<|", "im", "_end|>", "X"],
    "eos": ["H", "i", "<|endoftext|>", "Z"],
    "held": ["H", "<", "<|endoftext|>"],
    "control": ["H", "<|e|>", "Y", "<|endoftext|>"],
    "first": ["<|e|>", " a", "<|endoftext|>"],
    "framing": ["\n", "\r", "\r\n", "\n\ndata: x", "a\vb", "\u2028", "\x85", "\x1e", "é", "<|endoftext|>"],
    "broken": ["H", "i", -1],
}


@pytest.fixture
def url(scripted: Any, serve: Callable[..., str]) -> str:
    app, _ = scripted(SCRIPTS)
    return serve(app)


@pytest.mark.parametrize(
    ("prompt", "stop", "text", "stop_reason"),
    [
        ("cut", "DEFGHIJ", "", "DEFGHIJ"),  # B29
        ("cut", ["FGH"], "DE", "FGH"),
        ("lines", "\n", " a;", "\n"),  # B29
        ("chat", ["<|im_end|>"], "H", "<|im_end|>"),  # B29
        ("control", ["<|e|>"], "H", "<|e|>"),  # B104
        ("eos", "<|endoftext|>", "Hi", "<|endoftext|>"),  # B104
        ("eos", ["Z"], "Hi", 269),
        ("held", ["<|im"], "H<", 269),  # B37: what was held back comes out at the end
    ],
)
def test_stop_strings_end_the_answer_and_never_leak(
    url: str, prompt: str, stop: Any, text: str, stop_reason: str | int
) -> None:
    frames = stream(url, prompt=prompt, stop=stop)
    answer = whole(url, prompt=prompt, stop=stop)["choices"][0]
    if isinstance(stop_reason, int):
        stop_reason = answer["tokens"][-1]
    assert (answer["text"], answer["finish_reason"], answer["stop_reason"]) == (text, "stop", stop_reason)
    assert "".join(texts_of(frames)) == text
    last = frames[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop_reason)
    assert [token for frame in frames for token in frame["choices"][0]["tokens"]] == answer["tokens"]


@pytest.mark.case("D39")
@pytest.mark.parametrize(
    ("prompt", "stop", "min_tokens", "text", "num_tokens"),
    [
        ("cut", "FG", 1, "DE", 2),  # it begins in the first token, and is complete in the second
        ("cut", "FGHIJ", 3, "DE", 4),
        ("cut", "FG", 2, "DEFGHIJKKK", 7),  # complete too early: text like any other
        ("cut", ["FG", "GH", "IJK"], 2, "DEF", 3),
        ("cut", "KK", 5, "DEFGHIJ", 6),
    ],
)
def test_a_stop_string_may_begin_before_min_tokens(
    url: str, prompt: str, stop: Any, min_tokens: int, text: str, num_tokens: int
) -> None:
    body = {"prompt": prompt, "stop": stop, "min_tokens": min_tokens, "max_tokens": 7}
    answer, frames = whole(url, **body), stream(url, **body)
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == (text, num_tokens)
    assert "".join(texts_of(frames)) == text
    assert frames[-1]["choices"][0]["finish_reason"] == answer["choices"][0]["finish_reason"]
    assert frames[-1]["usage"] == answer["usage"]


def test_control_tokens_are_no_text(url: str) -> None:  # B42
    assert "".join(texts_of(stream(url, prompt="first"))) == " a"


def test_the_stream_adds_up_to_the_whole_answer(url: str) -> None:  # B30, B37
    for body in ({"prompt": "cut", "max_tokens": 1}, {"prompt": "eos", "n": 2}, {"prompt": "held", "stop": ["<x"]}):
        frames, answer = stream(url, **body), whole(url, **body)
        for choice in answer["choices"]:
            parts = [part for frame in frames for part in frame["choices"] if part["index"] == choice["index"]]
            assert "".join(part["text"] for part in parts) == choice["text"]
            assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
            assert parts[-1]["finish_reason"] == choice["finish_reason"]
        assert [frame["usage"] for frame in frames[:-1]] == [None] * (len(frames) - 1)
        assert frames[-1]["usage"] == answer["usage"]


def test_framing_survives_whatever_the_model_says(url: str) -> None:  # B31, B32, B33
    expected = "".join(piece for piece in SCRIPTS["framing"][:-1] if isinstance(piece, str))
    content = body_of(url, prompt="framing")
    assert content.isascii()
    assert "".join(texts_of(frames_of(content))) == expected
    with httpx.stream("POST", f"{url}/generate", json={"prompt": "framing", "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert "".join(texts_of([json.loads(line.removeprefix("data: ")) for line in lines[:-1]])) == expected


def test_no_empty_frames_while_nothing_is_held_back(url: str) -> None:  # B38
    texts = texts_of(stream(url, prompt="cut", stop=["ZZZZZZZZZZ"], max_tokens=30))
    assert texts == ["DEF", "G", "HI", "J"] + ["K"] * 26


def broken(url: str, route: str) -> bytes:
    """The stream of an answer that fails."""
    with httpx.stream("POST", f"{url}{route}", json={"stream": True, "prompt": "broken"}) as response:
        assert response.status_code == 200
        return cut_off(response)


@pytest.mark.case("D25")
@pytest.mark.parametrize("route", ["/generate", "/v1/completions"])
def test_a_failure_after_the_start_is_an_error_frame_and_no_end(url: str, route: str) -> None:
    *frames, error, rest = broken(url, route).split(b"\n\n")
    assert (len(frames), rest) == (2, b"")
    assert json.loads(error.removeprefix(b"data: "))["error"] == {
        "message": "there is no distribution to sample from: the model's logits are NaN or infinite",
        "type": "server_error",
        "param": None,
        "code": "generation_failed",
    }
    response = httpx.post(f"{url}/generate", json={"prompt": "broken"})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "generation_failed")


def test_frames_go_out_as_tokens_come(scripted: Any, serve: Any) -> None:  # B36
    """Each one is there before the model may take its next step."""
    app, runner = scripted({})
    url = serve(app)
    runner.gate = turnstile = Turnstile()
    turnstile.release()
    with httpx.stream(
        "POST",
        f"{url}/generate",
        json={"prompt": "p", "stream": True, "max_tokens": 10},
        headers={"Accept-Encoding": "gzip", "Origin": "http://elsewhere"},
    ) as response:
        parts = response.iter_raw()
        for _ in range(9):
            assert next(parts).count(b"data: ") == 1
            turnstile.release()
        assert b"".join(parts).endswith(b"data: [DONE]\n\n")


@pytest.mark.case("D42")
def test_each_frame_may_say_how_many_tokens_there_are_so_far(scripted: Any, serve: Any) -> None:
    app, runner = scripted({})
    url = serve(app)
    runner.gate = turnstile = Turnstile()
    options = {"continuous_usage_stats": True}
    body = {"prompt": "four", "stream": True, "max_tokens": 3, "stream_options": options}
    turnstile.release()
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as response:
        lines = response.iter_lines()
        for count in (1, 2, 3):
            usage = json.loads(next(line for line in lines if line).removeprefix("data: "))["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, count, 4 + count)
            turnstile.release()
        assert [line for line in lines if line] == ["data: [DONE]"]


def test_streams_do_not_disturb_each_other(url: str) -> None:  # B40
    def read(index: int) -> list[str]:
        time.sleep(0.05 * index)
        if index == 1:
            with httpx.stream("POST", f"{url}/generate", json={"prompt": "p", "stream": True}) as response:
                next(response.iter_raw())
            return []
        if index == 2:
            return [broken(url, "/generate").decode()]
        return texts_of(stream(url, prompt="cut", max_tokens=100))

    with ThreadPoolExecutor(5) as pool:
        results = list(pool.map(read, range(5)))
    alone = texts_of(stream(url, prompt="cut", max_tokens=100))
    assert results[0] == results[3] == results[4] == alone


def test_silent_streams_are_kept_open_by_comments(scripted: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.api.sse.PING_SECONDS", 0.1)
    app, runner = scripted({})
    url = serve(app)
    runner.gate.clear()

    def lines() -> Iterator[str]:
        with httpx.stream("POST", f"{url}/generate", json={"prompt": "p", "stream": True, "max_tokens": 1}) as response:
            yield from response.iter_lines()

    reader = lines()
    assert next(reader).startswith(": ")
    runner.gate.set()
    assert any(line == "data: [DONE]" for line in reader)


def test_parts_of_characters_never_go_out(scripted: Any, serve: Any, pieces_tokenizer: Tokenizer) -> None:
    emoji = list("\U0001f600".encode())
    app, _ = scripted({"emoji": [*emoji, *emoji, "<|endoftext|>"]})
    frames = stream(serve(app), prompt="emoji")
    assert texts_of(frames) == ["\U0001f600", "\U0001f600", ""]


def test_tokens_go_out_byte_by_byte_where_they_are_wanted_so(scripted: Any, serve: Any) -> None:
    emoji = list("\U0001f600".encode())
    app, _ = scripted({"emoji": [*emoji, "<|e|>", "H", "<|endoftext|>"]})
    url = serve(app)
    frames = stream(url, prompt="emoji", stream_bytes=True)
    assert texts_of(frames) == ["", "", "", "\U0001f600", "", "H", ""]
    assert [len(choice["tokens"]) for frame in frames for choice in frame["choices"]] == [1] * 7
    with_stop = stream(url, prompt="emoji", stream_bytes=True, stop="HI")
    assert texts_of(with_stop) == ["", "", "", "\U0001f600", "", "H"], "what may be a stop string waits"
    for stop in ("\U0001f600\U0001f600", "\ufffd"):
        assert texts_of(stream(url, prompt="emoji", stream_bytes=True, stop=stop))[0].startswith("\U0001f600")
