"""/docs without another host, with a key."""

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.conftest import Watched, check_layout, service

KEY = "correct-horse"


def test_swagger_ui_works_offline(page: Page, tokenizer_url: str) -> None:
    page.goto(f"{tokenizer_url}/docs")
    expect(page.get_by_text("ownlm tokenizer")).to_be_visible()
    expect(page.locator(".opblock-summary-path").first).to_be_visible()
    check_layout(page)


def test_requests_below_the_path_of_a_proxy(page: Page, tokenizer_url: str) -> None:
    page.route("**/below/**", lambda route: route.continue_(url=route.request.url.replace("/below/", "/")))
    page.goto(f"{tokenizer_url}/below/docs")
    page.locator("[id$=livez] .opblock-summary-control").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".request-url")).to_contain_text(f"{tokenizer_url}/below/livez")
    expect(page.locator(".live-responses-table tbody .response-col_status")).to_contain_text("200")


def test_a_request_with_a_key(page: Page, model_dir: Path, watched: Watched) -> None:
    watched.expected.append("401")
    with service("tokenizer", model_dir, api_keys=KEY) as process:
        page.goto(f"{process.url}/docs")
        page.locator("[id$=encode] .opblock-summary-control").click()
        page.get_by_role("button", name="Execute").click()
        expect(page.locator(".live-responses-table tbody .response-col_status")).to_contain_text("401")
        page.locator("button.authorize").click()
        page.locator(".auth-container input").fill(KEY)
        page.locator(".auth-btn-wrapper button.authorize").click()
        page.locator(".auth-btn-wrapper button.btn-done").click()
        page.get_by_role("button", name="Execute").click()
        expect(page.locator(".live-responses-table tbody .response-col_status")).to_contain_text("200")
