"""Texts that would run, rearrange or break a page that took them for anything but text."""

from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.conftest import check_accessibility, check_layout
from tests.browser.scripted_model import CONTROL, scripted_service, tokenizer_of
from tests.browser.test_playground import copied, generate, open_playground, wait_finished

__all__ = ["scripted_service"]

HOSTILE = [
    "<img src=x onerror=\"document.title='run'\">",
    "</script><script>document.title='run'</script>",
    "</textarea><svg onload=\"document.title='run'\">",
    "{{constructor.constructor('document.title=1')()}}",
    "\u202e\u2066\u200f right to left \u2069",
    "\0\x07\x1b[31m\x7f\x85\u2028\u2029",
    "\u200b\ufeff\U000e0041\ue000",
    "e\u0301" + "\u0316" * 50,
    "W" * 5000,
    "\u05d0\u05d1\u05d2 \u0627\u0644\u0639\u0631\u0628",
]


def ids_of(piece: str) -> list[int]:
    return list(piece.encode())


def test_hostile_tokens_are_shown_as_what_they_are(scripted_service: Any, page: Page) -> None:
    tokenizer = tokenizer_of(HOSTILE)
    control = tokenizer.special_tokens[CONTROL]
    script = [*range(256, 256 + len(HOSTILE)), control, *ids_of("</b>"), tokenizer.special_tokens["<|endoftext|>"]]
    url, _ = scripted_service(tokenizer, script)
    open_playground(page, url)
    prompt = "".join(HOSTILE).replace("\x85", "")
    generate(page, prompt, answers=2)
    wait_finished(page, 2)
    assert page.title() == "Playground · ownlm"
    assert page.locator("#answers img, #answers script, #answers svg, #inspector img").count() == 0
    card = page.locator("#answers article").first
    shown = card.locator(".t")
    expect(shown).to_have_count(len(script))
    expect(shown.first).to_have_text(HOSTILE[0])
    expect(shown.nth(4)).to_have_text("U+202EU+2066U+200F right to left U+2069")
    assert "␀" in (shown.nth(5).text_content() or "")
    expect(shown.nth(10)).to_have_class("t p0 special")
    assert copied(page, page.get_by_role("button", name="Copy Answer 1 as text")) == "".join(HOSTILE) + "</b>"
    check_layout(page)
    for index in (0, 1, 4, 5, 7, 8, 9, len(script) - 1):
        shown.nth(index).click()
        expect(page.locator("#inspector")).to_contain_text(f"Token {index + 1} of Answer 1")
        check_layout(page)
    check_accessibility(page)
    page.get_by_role("button", name="Edit").first.click()
    assert page.title() == "Playground · ownlm"
    check_layout(page)
    page.reload()
    expect(page.get_by_label("Temperature")).to_be_attached()
    assert page.get_by_label("Prompt").input_value() == f"{prompt}{''.join(HOSTILE)}</b>"


def test_100_000_characters_without_a_space(scripted_service: Any, page: Page) -> None:
    url, _ = scripted_service(tokenizer_of(["x" * 1000]), [256])
    open_playground(page, url)
    generate(page, "y" * 9000, max_tokens=100)
    wait_finished(page)
    check_layout(page)
    assert len(copied(page, page.get_by_role("button", name="as text"))) == 100_000


def test_half_characters_are_bytes_until_they_are_whole(scripted_service: Any, page: Page) -> None:
    script = [*ids_of("a\U0001f600"), 0xE2, 0x82, ord("b"), 0xFF, 0xF0, 0x9F]
    url, model = scripted_service(tokenizer_of(["DEF"]), script)
    open_playground(page, url)
    model.is_stepwise = True
    generate(page, max_tokens=len(script))
    shown = page.locator("#answers .t")
    for expected in (
        ["a"],
        ["a", "F0"],
        ["a", "F0", "9F"],
        ["a", "F0", "9F", "98"],
        ["a", "", "", "", "\U0001f600"],
        ["a", "", "", "", "\U0001f600", "E2"],
    ):
        model.permits.release()
        expect(shown).to_have_text(expected)
    model.hurry()
    wait_finished(page)
    expect(shown).to_have_text(["a", "", "", "", "\U0001f600", "E2", "82", "b", "FF", "F0", "9F"])
    shown.nth(2).click()
    expect(page.locator("#inspector")).to_contain_text("9F")
    rival = page.locator(".alternatives button").nth(1)
    expect(rival).to_contain_text("A0")
    rival.click()
    branch = page.get_by_role("article", name="Answer 1, another token 3").locator(".t")
    expect(branch.nth(2)).to_be_attached()
    assert branch.nth(0).text_content() == "a"


def test_an_end_of_text_token_that_is_chosen_ends_the_branch(scripted_service: Any, page: Page) -> None:
    tokenizer = tokenizer_of(["DEF"])
    url, _ = scripted_service(tokenizer, [256])  # its rival is the next id: the end of text
    open_playground(page, url)
    generate(page, max_tokens=5)
    wait_finished(page)
    page.locator("#answers .t").nth(2).click()
    page.locator(".alternatives button").nth(1).click()
    branch = page.get_by_role("article", name="Answer 1, another token 3")
    expect(branch.locator(".t")).to_have_text(["DEF", "DEF", "<|endoftext|>"])
    expect(branch).to_contain_text("ended by itself")
    page.reload()
    expect(page.locator("#answers article").nth(1).locator(".t")).to_have_text(["DEF", "DEF", "<|endoftext|>"])
