"""The conversation: turns, tokens, changes of what was said, links, and models that cannot hold one."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

from tests.browser.conftest import Watched, check_accessibility, check_layout, service
from tests.browser.test_playground import copied, tokens

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<|e|>{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
QUESTION = "Who lost the <b>hat</b>?"
PARAMETERS = {"temperature": 1.2, "seed": 7, "max_tokens": 8, "min_tokens": 8}


@pytest.fixture(scope="module")
def chat_url(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The tiny random model with a chat template whose turns end with <|e|>."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(model_dir, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with service("inference", folder) as process:
        yield process.url


def open_chat(page: Page, url: str, **fields: object) -> None:
    page.goto(f"{url}/chat")
    expect(page.get_by_label("Temperature")).to_be_attached()
    for name, value in fields.items():
        page.locator(f"#{name}").fill(str(value))


def send(page: Page, text: str = QUESTION) -> Locator:
    """Send a message; gives the turn of the answer."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    wait_answered(page)
    return turns(page).last


def turns(page: Page) -> Locator:
    return page.locator("#turns article")


def wait_answered(page: Page) -> None:
    expect(page.locator("#stop")).to_be_disabled()
    expect(page.locator("#turns .tokens[aria-busy=true]")).to_have_count(0)


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def ask(url: str, *messages: dict[str, str], **body: Any) -> Any:
    body = {"messages": messages, "logprobs": True, "top_logprobs": 20, **PARAMETERS, **body}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=240)
    response.raise_for_status()
    return response.json()["choices"][0]


def text_of(turn: Locator) -> str:
    return copied(turn.page, turn.get_by_role("button", name="as text"))


def state(page: Page) -> Any:
    return json.loads(unquote(page.url.partition("#")[2]))


def test_turns_their_tokens_and_a_link_that_shows_the_same(
    page: Page, new_context: Callable[..., BrowserContext], chat_url: str
) -> None:
    open_chat(page, chat_url, **PARAMETERS)
    page.get_by_text("System message").click()
    page.get_by_label("System message").fill("Be kind.\u202e")
    asked = [message("system", "Be kind.\u202e"), message("user", QUESTION)]
    answer = send(page)
    first = ask(chat_url, *asked)
    assert text_of(answer) == first["message"]["content"]
    entry = first["logprobs"]["content"][2]
    answer.locator(".t").nth(2).click()
    panel = page.get_by_role("complementary", name="Token")
    expect(panel).to_contain_text("Token 3 of Assistant, message 2")
    expect(panel).to_contain_text(f"{entry['logprob']:.4f}")
    expect(panel.locator("dd").nth(1)).to_have_text(bytes(entry["bytes"]).hex(" ").upper())
    expect(panel.locator(".alternatives button")).to_have_count(20)
    asked += [message("assistant", first["message"]["content"]), message("user", "Why?\u202e")]
    second = send(page, "Why?\u202e")
    expect(turns(page).nth(2)).to_contain_text("Why?U+202E")
    assert text_of(second) == ask(chat_url, *asked)["message"]["content"]
    expect(page.locator("#spoken")).to_contain_text("Assistant: ")
    page.get_by_role("button", name="What the model reads").click()
    expect(turns(page)).to_have_count(5)
    check_layout(page)
    check_accessibility(page)
    turns(page).last.get_by_role("button", name="Remove").click()
    shown = [tokens(turn) for turn in turns(page).all()]
    link = page.url
    again = new_context(permissions=["clipboard-read", "clipboard-write"]).new_page()
    again.goto(link)
    expect(again.locator("#turns .t")).to_have_count(16)
    wait_answered(again)
    expect(again.get_by_role("status")).to_be_empty()
    assert [tokens(turn) for turn in turns(again).all()] == shown
    assert again.url == link
    assert again.get_by_label("System message").input_value() == "Be kind.\u202e"


def test_continue_regenerate_and_back(page: Page, chat_url: str) -> None:
    open_chat(page, chat_url, temperature=0, max_tokens=4, min_tokens=4)
    answer = send(page)
    body = {"temperature": 0, "max_tokens": 4, "min_tokens": 4}
    first = ask(chat_url, message("user", QUESTION), **body)["message"]["content"]
    answer.get_by_role("button", name="Continue").click()
    wait_answered(page)
    expect(answer.locator(".t")).to_have_count(8)
    given = [message("user", QUESTION), message("assistant", first)]
    rest = ask(chat_url, *given, continue_final_message=True, **body)["message"]["content"]
    assert text_of(answer) == first + rest
    assert [part["text"] for part in state(page)["turns"][1]["parts"]] == [first, rest]
    link = page.url
    page.locator("#temperature").fill("5")
    turns(page).last.get_by_role("button", name="Regenerate").click()
    wait_answered(page)
    assert text_of(turns(page).last) != first + rest
    page.go_back()
    expect(page).to_have_url(link)
    expect(page.locator("#turns .t")).to_have_count(8)
    wait_answered(page)
    assert text_of(turns(page).last) == first + rest


def test_what_a_request_took_is_drawn_when_it_comes_after_the_last_token(page: Page, chat_url: str) -> None:
    open_chat(page, chat_url, **PARAMETERS)
    expect(send(page)).to_contain_text(re.compile(r"prompt: \d+ tokens, \d+ cached"))
    drawn = """async () => {
        const { Answer } = await import("./assets/answer.js");
        const answer = new Answer({}, {});
        answer.isChanged = false; // as when the last token has been drawn
        answer.usage = { prompt_tokens: 5 };
        return [answer.isChanged, answer.usage.prompt_tokens];
    }"""
    assert page.evaluate(drawn) == [True, 5]


def test_another_token_and_another_text(page: Page, chat_url: str) -> None:
    open_chat(page, chat_url, **PARAMETERS)
    send(page)
    answer = turns(page).nth(1)
    entries = ask(chat_url, message("user", QUESTION))["logprobs"]["content"]
    before = bytes(entries[0]["bytes"]).decode()
    answer.locator(".t").nth(1).click()
    rank, other = next(
        (rank, other)
        for rank, other in enumerate(entries[1]["top_logprobs"])
        if other["bytes"] != entries[1]["bytes"] and "\ufffd" not in other["token"] and other["token"].isascii()
    )
    page.locator(".alternatives button").nth(rank).click()
    expect(answer.locator(".t")).to_have_count(10)
    wait_answered(page)
    given = [message("user", QUESTION), message("assistant", before + other["token"])]
    rest = ask(chat_url, *given, continue_final_message=True)["message"]["content"]
    assert text_of(answer) == before + other["token"] + rest
    page.reload()
    expect(answer.locator(".t")).to_have_count(10)
    wait_answered(page)
    assert text_of(answer) == before + other["token"] + rest, "the link asks for one token, not for eight"
    answer.get_by_role("button", name="Edit").click()
    field = answer.get_by_role("textbox", name="Text of Assistant, message 2")
    field.fill("It was")
    field.press("Control+Enter")
    expect(answer.locator(".t")).to_have_text(["It was"])
    answer.locator(".t").hover()
    page.keyboard.press("Escape")
    answer.get_by_role("button", name="Continue").click()
    wait_answered(page)
    given = [message("user", QUESTION), message("assistant", "It was")]
    assert text_of(answer) == "It was" + ask(chat_url, *given, continue_final_message=True)["message"]["content"]
    turns(page).first.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Text of You, message 1").fill("Why?")
    page.get_by_role("button", name="Save and answer").click()
    expect(turns(page).first).to_contain_text("Why?")
    wait_answered(page)
    assert text_of(turns(page).last) == ask(chat_url, message("user", "Why?"))["message"]["content"]


def test_what_the_model_reads_by_keyboard(page: Page, chat_url: str) -> None:
    open_chat(page, chat_url, **PARAMETERS)
    page.get_by_label("Message", exact=True).focus()
    page.keyboard.type("Hi")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("you")
    page.keyboard.press("Enter")
    wait_answered(page)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.get_by_role("button", name="What the model reads").press("Enter")
    reading = page.get_by_role("article", name="What the model reads")
    expect(reading.locator(".tokens")).to_be_focused()
    page.keyboard.press("End")
    expect(page.locator("#inspector")).to_contain_text("<|e|>")
    shown = tokens(reading)
    assert "".join(shown).startswith("u:Hi\nyou<|e|>a:")
    assert shown[-1] == "<|e|>"
    page.keyboard.press("Enter")
    expect(page.locator(".alternatives button").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(reading.locator(".tokens")).to_be_focused()


def test_what_is_copied_gives_the_same_answer(
    page: Page, chat_url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    open_chat(page, chat_url, logit_bias="65=1.5", **PARAMETERS)
    answer = send(page, 'It\'s "a" \\n $HOME `x`\u202e\U000e0041é\nEOF')
    text = text_of(answer)
    program = copied(page, answer.get_by_role("button", name="as curl"))
    printed = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, timeout=120).stdout
    assert json.loads(printed)["choices"][0]["message"]["content"] == text
    for kind in ("Python", "OpenAI client"):
        program = copied(page, answer.get_by_role("button", name=f"as {kind}"))
        assert "\u202e" not in program
        capsys.readouterr()
        exec(compile(program, kind, "exec"), {})
        assert capsys.readouterr().out[:-1] == text


def test_stop_and_a_stream_that_is_cut(page: Page, chat_url: str, watched: Watched) -> None:
    open_chat(page, chat_url, **PARAMETERS)
    answers = "**/v1/chat/completions"
    page.route(answers, lambda _: None)
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.get_by_role("button", name="Send").click()
    expect(turns(page)).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.get_by_role("status")).to_have_text("Stopped.")
    page.unroute(answers)
    calls = []

    def cut(route: Route) -> None:
        calls.append(route.request.post_data_json)
        frames = route.fetch().text().split("\n\n")
        route.fulfill(body="\n\n".join(frames[:3] if len(calls) == 1 else frames), content_type="text/event-stream")

    page.route(answers, cut)
    turns(page).last.get_by_role("button", name="Continue").click()
    expect(page.locator("#turns .t")).to_have_count(8)
    wait_answered(page)
    assert len(calls) == 2
    assert text_of(turns(page).last) == ask(chat_url, message("user", QUESTION))["message"]["content"]
    page.unroute(answers)
    watched.expected.append("400")
    send(page, "x" * 200)
    expect(page.get_by_role("status")).to_contain_text("context length 128, shared by")
    expect(turns(page).last).to_contain_text("not finished")


def test_a_model_without_a_template_says_so(page: Page, inference_url: str) -> None:
    page.goto(inference_url)
    page.get_by_role("link", name="Conversation").click()
    expect(page.get_by_role("status")).to_contain_text("This model has no chat template")
    expect(page.get_by_label("Message", exact=True)).to_be_hidden()


@pytest.mark.parametrize(
    ("fragment", "status"),
    [
        ('{"turns":[{"role":"user"', "This link is damaged"),
        ('{"turns":[{"role":"tool","text":"a"}]}', "neither yours nor the assistant's"),
        ('{"turns":[{"role":"user","text":["a"]}]}', "a message has no text"),
        ('{"turns":[{"role":"assistant","parts":[{"text":"a","parameters":{"messages":[]}}]}]}', "is not a parameter"),
        ('{"turns":[{"role":"user","text":"a"},{"role":"assistant","parts":[{"text":"<b>other</b>",'
         '"parameters":{"seed":1,"max_tokens":4}}]}]}', "made with another model"),
    ],
)  # fmt: skip
def test_a_link_that_is_damaged_or_of_another_model(page: Page, chat_url: str, fragment: str, status: str) -> None:
    page.goto(f"{chat_url}/chat#{quote(fragment)}")
    expect(page.get_by_role("status")).to_contain_text(status)
    if "other" in fragment:
        expect(page.locator("#turns .t")).to_have_text(["<b>other</b>"])
        assert state(page)["turns"][1]["parts"] == [{"text": "<b>other</b>"}]
