"""The playground beside a service that needs a key, is busy, not ready, or gone."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Process, Watched, check_accessibility, service
from tests.browser.scripted_model import scripted_service, tokenizer_of
from tests.browser.test_playground import copied, direct, generate, open_playground, wait_finished
from tests.services.conftest import process, slow

__all__ = ["process", "scripted_service", "slow"]

KEY = "correct-horse-battery"


def test_the_key_is_asked_for_and_stays_in_memory(page: Page, model_dir: Path, watched: Watched) -> None:
    watched.expected.append("401")
    page.clock.install()
    with service("inference", model_dir, api_keys=KEY) as running:
        page.goto(running.url)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("needs an API key")
        check_accessibility(page)
        dialog.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("status")).to_contain_text("The service needs an API key")
        page.get_by_label("Prompt").fill("Anna")
        page.clock.run_for(1000)  # what is typed would go into the address
        page.get_by_role("button", name="Generate").click()
        dialog.get_by_label("Key").fill("\u043a\u043b\u044e\u0447")  # no header can have it
        page.keyboard.press("Enter")
        expect(page.locator("#api-key:invalid")).to_be_visible()
        dialog.get_by_label("Key").fill("wrong")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("does not know this key")
        dialog.get_by_label("Key").fill(KEY)
        page.keyboard.press("Enter")
        wait_finished(page)
        assert 'os.environ["KEY"]' in copied(page, page.get_by_role("button", name="as Python"))
        stored = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])")
        assert KEY not in stored
        assert page.context.cookies() == []
        page.reload()
        expect(dialog).to_contain_text("needs an API key")


def refuse(status: int, code: str, message: str, **headers: str) -> Callable[[Route], None]:
    error = {"error": {"message": message, "type": "", "param": None, "code": code}}
    return lambda route: route.fulfill(status=status, json=error, headers=headers)


def test_a_full_queue_is_named_and_tried_again(scripted_service: Any, page: Page, watched: Watched) -> None:
    watched.expected.append("429")
    url, model = scripted_service(tokenizer_of(["DEF"]), [256], max_batch=1, max_queue=0, max_choices=1)
    open_playground(page, url)
    model.is_stepwise = True
    model.permits.release()  # a response begins with its first token
    with httpx.stream("POST", f"{url}/generate", json={"prompt": "a", "max_tokens": 5, "stream": True}) as other:
        frames = other.iter_raw()  # its end would close the stream
        next(frames)
        generate(page, max_tokens=3)
        expect(page.get_by_role("status")).to_contain_text("The service is busy: try again in 1 s.")
    model.hurry()
    wait_finished(page)
    expect(page.locator("#answers .t")).to_have_count(3)
    expect(page.get_by_role("status")).to_be_empty()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("loading", "the service is loading, try again soon"),
        ("draining", "the server is shutting down"),
        ("restarting", "the model is being restarted, try again soon: it took too long"),
        ("engine_restarted", "the model was restarted"),
    ],
)
def test_a_service_that_is_not_ready_is_waited_for(
    page: Page, inference_url: str, watched: Watched, code: str, message: str
) -> None:
    watched.expected.append("503")
    open_playground(page, inference_url)
    answer = refuse(503, code, message, **{"Retry-After": "1"})
    page.route("**/generate", answer)
    page.route("**/readyz", answer)
    generate(page, temperature=0, max_tokens=3)
    expect(page.get_by_role("status")).to_contain_text(message)
    page.unroute("**/generate")
    page.unroute("**/readyz")
    wait_finished(page)
    expect(page.locator("#answers .t")).to_have_count(3)


def test_a_page_that_is_opened_while_the_model_loads(scripted_service: Any, page: Page, watched: Watched) -> None:
    watched.expected.append("503")
    may_load = threading.Event()
    url, _ = scripted_service(tokenizer_of(["DEF"]), [256], may_load, wait=False)
    page.goto(url)
    expect(page.get_by_role("status")).to_contain_text("the service is loading")
    may_load.set()
    expect(page.get_by_label("Temperature")).to_be_attached()
    expect(page.get_by_role("status")).to_be_empty()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_answers_go_on_after_the_service_has_ended(
    slow: Callable[..., Process], page: Page, watched: Watched, ending: signal.Signals
) -> None:
    """Three of them, each of which becomes what it would have been."""
    watched.expected += ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "503"]
    running = slow(0.05, shutdown_timeout=0)
    port = int(running.url.rpartition(":")[2])
    open_playground(page, running.url)
    generate(page, answers=3, temperature=1.4, max_tokens=60, min_tokens=60, seed=11)
    expect(page.locator("#answers article").last.locator(".t").nth(5)).to_be_attached()
    running.popen.send_signal(ending)
    running.popen.wait()
    expect(page.get_by_role("status")).to_contain_text("when the service is back")
    assert page.locator("#answers .t").count() < 180
    back = slow(0.0, port=port)
    wait_finished(page, 3)
    expect(page.locator("#answers .t")).to_have_count(180)
    body = {"prompt": "Once upon a time", "temperature": 1.4, "max_tokens": 60, "min_tokens": 60, "seed": 11, "n": 3}
    choices = httpx.post(f"{back.url}/generate", json=body, timeout=240).json()["choices"]
    for choice, card in zip(choices, page.locator("#answers article").all(), strict=True):
        assert copied(page, card.get_by_role("button", name="as text")) == choice["text"]


def test_an_answer_that_had_ended_when_its_stream_was_cut_is_not_asked_for_again(
    page: Page, inference_url: str
) -> None:
    open_playground(page, inference_url)
    calls = []

    def cut(route: Route) -> None:
        calls.append(route.request.post_data_json)
        response = route.fetch()
        route.fulfill(response=response, body=response.text().replace("data: [DONE]\n\n", ""))

    page.route("**/generate", cut)
    generate(page, max_tokens=3, temperature=0)
    wait_finished(page)
    expect(page.locator("#answers .t")).to_have_count(3)
    expect(page.get_by_role("status")).to_be_empty()
    assert [call["max_tokens"] for call in calls] == [3]


def test_stop_gives_up_waiting(page: Page, inference_url: str, watched: Watched) -> None:
    watched.expected.append("ERR_FAILED")
    open_playground(page, inference_url)
    page.route("**/generate", lambda route: route.abort())
    page.route("**/readyz", lambda route: route.abort())
    generate(page)
    expect(page.get_by_role("status")).to_contain_text("No connection to the service")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Stopped.")
    page.unroute("**/generate")
    page.unroute("**/readyz")
    generate(page, max_tokens=3, temperature=0)
    wait_finished(page)
    text = copied(page, page.get_by_role("button", name="as text"))
    assert text == direct(inference_url, prompt="Once upon a time", max_tokens=3, temperature=0)["text"]


def test_a_name_of_a_model_that_would_move_the_text(page: Page, model_dir: Path) -> None:
    with service("inference", model_dir, model_name="<b>\u202eevil") as process:
        page.goto(process.url)
        expect(page.locator("#model")).to_contain_text("<b>U+202Eevil: ")
        page.goto(f"{process.url}/model")
        expect(page.locator("#headline")).to_contain_text("<b>U+202Eevil: ")
    with service("tokenizer", model_dir, model_name="<b>\u202eevil") as process:
        page.goto(process.url)
        expect(page.locator("#served")).to_contain_text("<b>U+202Eevil · ")
        page.locator("#file").set_input_files({"name": "a\u202eb.json", "mimeType": "", "buffer": b"{"})
        expect(page.locator("#second-status")).to_contain_text("aU+202Eb.json cannot be compared")
        page.locator("#ids").fill("a\u202eb")
        expect(page.locator("#decode-status")).to_contain_text("aU+202Eb")
