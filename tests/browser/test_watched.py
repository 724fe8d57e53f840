"""What the other tests of pages rely on: a request to another host fails the test."""

from playwright.sync_api import Page

from tests.browser.conftest import Watched


def test_a_request_to_another_host_is_a_fault(page: Page, watched: Watched) -> None:
    page.goto("data:text/html,<img src='http://example.org/picture.png'>")
    faults = [*watched.faults]
    watched.faults.clear()
    assert "asked another host: http://example.org/picture.png" in faults
