"""The playground: generate, stop, continue, edit, branch, and links that make the same answers again."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.browser.conftest import check_accessibility, check_layout
from tests.services.conftest import Stepwise, stepwise, wait_until

__all__ = ["stepwise"]

PROMPT = "Once upon a time"


def open_playground(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.get_by_label("Temperature")).to_be_attached()


def generate(page: Page, prompt: str = PROMPT, *, answers: int = 1, **fields: object) -> None:
    page.get_by_label("Prompt").fill(prompt)
    page.locator("#n").fill(str(answers))
    for name, value in fields.items():
        page.locator(f"#{name}").fill(str(value))
    page.get_by_role("button", name="Generate").click()


def wait_finished(page: Page, answers: int = 1) -> None:
    expect(page.locator("#answers article")).to_have_count(answers)
    expect(page.locator("#stop")).to_be_disabled()
    expect(page.locator("#answers .tokens[aria-busy=true]")).to_have_count(0)


def tokens(card: Locator) -> list[str]:
    return card.locator(".t").all_text_contents()


def texts(page: Page) -> list[list[str]]:
    return [tokens(card) for card in page.locator("#answers article").all()]


def copied(page: Page, button: Locator) -> str:
    button.click()
    expect(button).to_have_text("Copied")
    return page.evaluate("navigator.clipboard.readText()")


def state(page: Page) -> Any:
    """What the address bar holds, once it has the answers."""
    expect(page).to_have_url(re.compile("answers"))
    return json.loads(unquote(page.url.partition("#")[2]))


def direct(url: str, **body: Any) -> Any:
    response = httpx.post(f"{url}/generate", json=body, timeout=240)
    response.raise_for_status()
    return response.json()["choices"][0]


def test_answers_side_by_side_and_a_link_that_makes_them_again(
    page: Page, new_context: Callable[..., BrowserContext], inference_url: str
) -> None:
    open_playground(page, inference_url)
    generate(page, answers=3, temperature=1.5, max_tokens=25, min_tokens=20)
    wait_finished(page, 3)
    first = texts(page)
    assert all(20 <= len(answer) <= 25 for answer in first)
    assert len({tuple(answer) for answer in first}) == 3, "each has a seed of its own"
    facts = page.locator("#answers article").first
    expect(facts).to_contain_text(re.compile(r"tokens/s.*prompt: \d+ tokens, \d+ cached"))
    check_layout(page)
    check_accessibility(page)
    link = page.url
    assert state(page)["parameters"] == {"temperature": 1.5, "min_tokens": 20}
    again = new_context().new_page()
    again.goto(link)
    wait_finished(again, 3)
    assert texts(again) == first
    assert again.get_by_label("Temperature").input_value() == "1.5"


def test_a_token_shows_what_else_was_considered_and_another_one_is_a_branch(
    page: Page, new_context: Callable[..., BrowserContext], inference_url: str
) -> None:
    open_playground(page, inference_url)
    generate(page, temperature=1.2, max_tokens=20, seed=7)
    wait_finished(page)
    body = {"prompt": PROMPT, "temperature": 1.2, "max_tokens": 20, "seed": 7, "logprobs": 20}
    answer = direct(inference_url, **body)
    entry = answer["logprobs"][3]
    page.locator("#answers .t").nth(3).click()
    panel = page.get_by_role("complementary", name="Token")
    expect(panel).to_contain_text("Token 4 of Answer 1")
    expect(panel).to_contain_text(f"{entry['logprob']:.4f}")
    expect(panel.locator("dd").nth(1)).to_have_text(str(entry["id"]))
    expect(panel.locator("dd").nth(2)).to_have_text(bytes(entry["bytes"]).hex(" ").upper())
    rows = panel.locator(".alternatives button")
    expect(rows).to_have_count(20)
    expect(panel.locator("[aria-current=true]")).to_have_attribute("title", f"id {entry['id']}")
    rank = next(index for index, other in enumerate(entry["top_logprobs"]) if other["id"] != entry["id"])
    check_accessibility(page)
    rows.nth(rank).click()
    wait_finished(page, 2)
    branch = page.get_by_role("article", name="Answer 1, another token 4")
    given = [*answer["tokens"][:3], entry["top_logprobs"][rank]["id"]]
    rest = direct(inference_url, **body, continue_tokens=given)
    expect(branch.locator(".t")).to_have_count(len(given) + len(rest["tokens"]))
    assert state(page)["answers"][1] == {"seed": 7, "max_tokens": 20, "given": given}
    before = texts(page)
    again = new_context().new_page()
    again.goto(page.url)
    wait_finished(again, 2)
    assert texts(again) == before
    again.locator("#answers article").nth(1).locator(".t").first.hover()
    expect(again.locator("#inspector")).to_contain_text("The 20 most likely", timeout=10_000)


def test_the_tokens_of_the_prompt_are_shown_before_the_answers(page: Page, inference_url: str) -> None:
    prompt = "Once upon a time, été"
    open_playground(page, inference_url)
    generate(page, prompt, answers=2, max_tokens=4, seed=7)
    wait_finished(page, 2)
    link = page.url
    page.get_by_role("button", name="Prompt tokens").last.click()
    card = page.locator("#answers article").first
    expect(card.locator("h3")).to_have_text("Prompt")
    expect(card.locator(".tokens")).to_be_focused()
    choice = direct(inference_url, prompt=prompt, max_tokens=0, prompt_logprobs=20)
    ids, scores = choice["prompt_token_ids"], choice["prompt_logprobs"]
    assert "".join(tokens(card)) == prompt
    expect(card.locator(".t")).to_have_count(len(ids))
    panel = page.locator("#inspector")
    expect(panel.locator("dd").nth(1)).to_have_text(str(ids[0]))
    expect(panel).to_contain_text("no token before it")
    expect(panel.locator(".alternatives")).to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(panel).to_contain_text("Token 2 of Prompt")
    expect(panel.locator("dd").nth(1)).to_have_text(str(ids[1]))
    expect(panel).to_contain_text(f"{scores[1]['logprob']:.4f}")
    check_accessibility(page)
    others = scores[1]["top_logprobs"]
    rank = next(i for i, other in enumerate(others) if other["id"] != ids[1] and "\ufffd" not in other["token"])
    whole = b"".join(bytes(entry["bytes"]) for entry in scores[1:])
    first = prompt.encode().removesuffix(whole).decode()
    page.get_by_role("button", name="Prompt tokens").first.click()
    expect(page.locator("#answers article")).to_have_count(3)
    assert page.url == link, "the link makes the answers"
    panel.locator(".alternatives button").nth(rank).click()
    expect(page.locator("#prompt")).to_be_focused()
    expect(page.locator("#prompt")).to_have_value(first + others[rank]["token"])


def test_stop_ends_the_row_and_continue_makes_the_uninterrupted_answer(
    page: Page, stepwise: Callable[..., Stepwise]
) -> None:
    service = stepwise()
    open_playground(page, service.url)
    generate(page, temperature=1.3, max_tokens=12, seed=3, min_tokens=12)
    service.wait_rows(running=1, waiting=0)
    for count in (2, 3):
        service.steps.allow()
        expect(page.locator("#answers .t")).to_have_count(count)
    page.keyboard.press("Escape")
    expect(page.locator("#answers article")).to_contain_text("stopped")
    service.steps.allow()  # the one that was under way
    wait_until(lambda: service.metric("ownlm_running_rows") == 0)
    assert service.metric("ownlm_cancelled_requests_total") == 1
    assert state(page)["answers"] == [{"seed": 3, "max_tokens": 3}], "the link makes what is shown"
    stopped = page.url
    service.steps.allow(100)
    page.get_by_role("button", name="Continue", exact=True).click()
    wait_finished(page)
    body = {"prompt": PROMPT, "temperature": 1.3, "max_tokens": 12, "seed": 3, "min_tokens": 12}
    expect(page.locator("#answers .t")).to_have_count(12)
    assert copied(page, page.get_by_role("button", name="as text")) == direct(service.url, **body)["text"]
    page.get_by_role("button", name="Continue", exact=True).click()
    wait_finished(page)
    expect(page.locator("#answers .t")).to_have_count(24)
    page.goto("about:blank")
    page.goto(stopped)
    wait_finished(page)
    expect(page.locator("#answers .t")).to_have_count(3)


def test_an_edited_text_is_the_next_prompt(page: Page, inference_url: str) -> None:
    open_playground(page, inference_url)
    generate(page, temperature=0, max_tokens=5, seed=1)
    wait_finished(page)
    text = direct(inference_url, prompt=PROMPT, temperature=0, max_tokens=5)["text"]
    page.get_by_role("button", name="Edit").click()
    prompt = page.get_by_label("Prompt")
    expect(prompt).to_be_focused()
    expect(prompt).to_have_value(PROMPT + text)
    page.keyboard.type(" Anna")
    page.keyboard.press("Control+Enter")
    wait_finished(page)
    expected = direct(inference_url, prompt=f"{PROMPT}{text} Anna", temperature=0, max_tokens=5)
    assert copied(page, page.get_by_role("button", name="as text")) == expected["text"]


def test_the_keyboard_alone_reaches_everything(page: Page, inference_url: str) -> None:
    open_playground(page, inference_url)
    page.locator("nav a").last.focus()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Prompt")).to_be_focused()
    page.keyboard.type(PROMPT)
    page.locator("#max_tokens").fill("8")
    page.locator("#temperature").fill("0")
    page.get_by_label("Prompt").focus()
    page.keyboard.press("Control+Enter")
    wait_finished(page)
    for _ in range(40):
        if page.evaluate("document.activeElement.classList.contains('tokens')"):
            break
        page.keyboard.press("Tab")
    expect(page.locator("#answers .tokens")).to_be_focused()
    expect(page.locator("#inspector")).to_contain_text("Token 1 of Answer 1")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#inspector")).to_contain_text("Token 3 of Answer 1")
    expect(page.locator("#answers .tokens")).to_have_attribute("aria-activedescendant", "selected-token")
    page.keyboard.press("End")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator(".alternatives button").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#answers .tokens")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".alternatives button").first).to_have_attribute("aria-current", "true")  # at temperature 0
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    wait_finished(page, 2)
    expect(page.get_by_role("article", name="Answer 1, another token 1").locator(".tokens")).to_be_focused()


@pytest.mark.parametrize("kind", ["curl", "Python", "OpenAI client"])
def test_what_is_copied_runs_and_gives_the_same_answer(page: Page, inference_url: str, kind: str) -> None:
    prompt = 'It\'s "a" \\n $HOME `x`\u202e\U000e0041é\nEOF\n'
    open_playground(page, inference_url)
    generate(page, prompt, temperature=1.4, top_k=40, max_tokens=12, logit_bias="65=1.5", seed=9)
    page.locator("#stop-strings").fill("\\n\\n\nzzz")
    wait_finished(page)
    page.get_by_role("button", name="Generate").click()
    wait_finished(page)
    text = copied(page, page.get_by_role("button", name="as text"))
    program = copied(page, page.get_by_role("button", name=f"as {kind}"))
    assert "\u202e" not in program
    command = ["bash", "-c", program] if kind == "curl" else [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert (json.loads(printed)["choices"][0]["text"] if kind == "curl" else printed[:-1]) == text


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", "101", "Temperature"),
        ("repetition_penalty", "0", "above 0 to 10"),
        ("top_k", "1.5", "Top k"),
        ("n", "9", "Answers"),
        ("min_tokens", "9", "at most max tokens"),
    ],
)
def test_a_wrong_value_is_named_and_not_sent(
    page: Page, inference_url: str, field: str, value: str, message: str
) -> None:
    open_playground(page, inference_url)
    page.get_by_label("Prompt").fill("a")
    page.locator("#max_tokens").fill("8")
    page.locator(f"#{field}").fill(value)
    page.get_by_role("button", name="Generate").click()
    expect(page.get_by_role("status")).to_contain_text(message)
    expect(page.locator(f"#{field}")).to_be_focused()
    expect(page.locator("#answers article")).to_have_count(0)


@pytest.mark.parametrize(
    ("fragment", "status"),
    [
        ('{"prompt":"a","answers":[null]}', "This link is damaged"),
        ('{"prompt":"a","answers":[{"seed":1,"given":["<img>"]}]}', "valid integer"),
        ('{"prompt":"a","parameters":{"bogus":1},"answers":[{"seed":1}]}', "bogus is not a parameter"),
        ('{"prompt":"a","parameters":{"n":8},"answers":[{"seed":1}]}', "n is not a parameter"),
        ('{"prompt":"a","parameters":{"continue_tokens":[1]},"answers":[{"seed":1}]}', "is not a parameter"),
        (json.dumps({"prompt": "a", "answers": [{"seed": 1}] * 33}), "it has more than 32 answers"),
        ('{"prompt":"a","tokenizer":"0000","answers":[{"seed":1}]}', "another tokenizer"),
        ('{"prompt":"a', "This link is damaged"),
    ],
)
def test_a_damaged_link_is_said_to_be_one(
    page: Page, inference_url: str, watched: Any, fragment: str, status: str
) -> None:
    watched.expected.append("422")
    page.goto(f"{inference_url}/#{quote(fragment)}")
    expect(page.get_by_label("Temperature")).to_be_attached()
    expect(page.get_by_role("status")).to_contain_text(status)


def test_what_the_service_refuses_is_said(page: Page, inference_url: str, watched: Any) -> None:
    watched.expected += ["400", "422"]
    open_playground(page, inference_url)
    generate(page, "")
    expect(page.get_by_role("status")).to_contain_text("Prompt: empty")
    generate(page, logit_bias="x=1")
    expect(page.get_by_role("status")).to_contain_text("is not a token id")
    page.locator("#logit_bias").fill("")
    page.locator("#stop-strings").fill("a\nb\nc\nd\ne")
    generate(page)
    expect(page.get_by_role("status")).to_contain_text("Stop: 5 entries exceed the limit of 4")
