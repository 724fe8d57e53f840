"""The page about the model: what its folder carries, what a strange folder may carry, a service that is not there."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from shared.bpe import Tokenizer
from shared.lm.training_file import TRAINING_FILE
from tests.browser.conftest import Watched, check_accessibility, check_layout, service
from tests.services.inference.test_training_record import RECORD

KEY = "correct-horse"
LARGEST_PAGE = 60_000
HOSTILE = "\u202e<img src=x onerror=alert(1)>\x00</script>"
SHOWN = "U+202E<img src=x onerror=alert(1)>␀</script>"
STEPS = [*range(1, 401)]

FULL: dict[str, Any] = RECORD | {
    "ownlm_version": HOSTILE,
    "torch_version": HOSTILE,
    "seconds": 3725.0,
    "starts": 2,
    "machine": {
        "device": HOSTILE, "cpu": HOSTILE, "cpus": None, "processes": 2, "git": {"revision": HOSTILE, "dirty": True},
    },
    "best_validation_loss": {"step": 300, "value": 1.25},
    "data": {
        "training": {
            "tokens": 1_000_000, "documents": 5, "bytes": 4_000_000, "num_sources": 3,
            "sources": [{"name": HOSTILE, "bytes": 4_000_000, "documents": 5}],
        },
        "validation": {"tokens": 0, "documents": 0, "bytes": 0, "num_sources": 0, "sources": []},
    },
    "settings": {**RECORD["settings"], HOSTILE: HOSTILE, "long": "x" * 5000},
    "sample_prompt": "Once",
    "samples": [{"step": 100, "text": "Once upon"}, {"step": 200, "text": HOSTILE}, {"step": 300, "text": "x" * 5000}],
    "events": [{"step": 150, "text": HOSTILE}],
    "num_events": 40,
    "curves": {
        "loss": {"steps": STEPS, "values": [None if 100 < step < 120 else 1 + 8 / step for step in STEPS]},
        "validation_loss": {"steps": [200, 400], "values": [1.5, 1.25]},
        "learning_rate": {"steps": STEPS, "values": [1e-3 / step for step in STEPS]},
        "tokens_per_second": {"steps": [1], "values": [None]},
    },
}  # fmt: skip


METRICS = {"acc": {"value": 0.3125, "stderr": 0.0464}, "perplexity": {"value": 1234.5, "stderr": None}}
QUESTIONS = [
    {"file": f"<b>/{'x' * 200}.jsonl", "format": "HellaSwag", "questions": 10042, "metrics": METRICS},
    {"file": HOSTILE, "format": "ARC", "questions": 1, "metrics": METRICS},
]


@pytest.fixture(scope="module")
def full_url(model_dir: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A folder whose record is as strange as it may be, and whose other files are not ours."""
    folder = tmp_path_factory.mktemp("models") / "strange & <b>"
    shutil.copytree(model_dir, folder)
    (folder / "checksums.json").unlink()
    (folder / "ownlm.json").unlink()
    (folder / TRAINING_FILE).write_text(json.dumps({**FULL, "tokenizer_fingerprint": tokenizer.fingerprint}))
    (folder / "evaluations.json").write_text(json.dumps({"format_version": 1, "tasks": QUESTIONS}))
    with service("inference", folder) as process:
        yield process.url


def card(page: Page, name: str) -> Any:
    return page.get_by_role("region", name=name, exact=True)


def test_what_the_folder_carries(page: Page, full_url: str, tokenizer: Tokenizer) -> None:
    sizes: dict[str, int] = {}
    page.on("response", lambda response: sizes.update({response.url: len(response.body())}))
    page.goto(f"{full_url}/model")
    expect(page.locator("#headline")).to_contain_text("strange & <b>: a Llama model of ")
    expect(page.locator("#headline")).to_contain_text("trained on 1M tokens of text")
    expect(card(page, "Architecture")).to_contain_text("4 heads of 8 channels")
    expect(card(page, "Architecture")).to_contain_text("128 tokens, prompt and answer together")
    total = tokenizer.vocab_size * 32 * 2 + 2 * (2 * 32 * 8 * (4 + 2) + 3 * 32 * 64 + 2 * 32) + 32
    expect(card(page, "Parameters")).to_contain_text(f"{total:,} in all")
    expect(card(page, "Parameters").get_by_role("row", name="Feed-forward")).to_contain_text(f"{2 * 3 * 32 * 64:,}")
    expect(card(page, "Origin")).to_contain_text("another program: the folder has no ownlm.json")
    questions = card(page, "Questions")
    expect(questions.get_by_role("row")).to_have_count(3)
    expect(questions.get_by_role("row", name="acc")).to_contain_text("xxx.jsonl")
    expect(questions.get_by_role("row", name="acc")).to_contain_text("10,0420.3125 ± 0.0464")
    expect(card(page, "Origin")).to_contain_text(tokenizer.fingerprint)
    expect(card(page, "The run")).to_contain_text("1:02:05, started 2 times")
    expect(card(page, "The run")).to_contain_text("1.250 nats per token, at step 300")
    expect(card(page, "Data")).to_contain_text("4 MB, 4 bytes per token")
    expect(card(page, "Data")).to_contain_text("2 more")
    expect(page.get_by_text("40 in all")).to_be_visible()
    own = {url: size for url, size in sizes.items() if "/assets/" in url or url.endswith("/model")}
    assert len(own) > 8
    assert sum(own.values()) < LARGEST_PAGE, own


def test_its_curves(page: Page, full_url: str) -> None:
    page.goto(f"{full_url}/model")
    loss = page.locator("figure", has=page.get_by_role("application", name="Loss by step"))
    expect(loss.locator(".chart-readout")).to_have_text("step 400 · training 1.02 · validation 1.25")
    assert page.locator("figure").count() == 3  # bits per byte and gradient norm were not recorded
    rate = page.locator("figure", has=page.get_by_role("application", name="Learning rate by step"))
    expect(rate.locator(".chart-readout")).to_have_text("step 400 · rate 2.5e-6")
    throughput = page.locator("figure", has=page.get_by_role("application", name="Throughput by step"))
    expect(throughput.locator(".chart-readout")).to_have_text("step 1 · tokens –")
    area = loss.get_by_role("application")
    area.press("Home")
    expect(loss.locator(".chart-readout")).to_have_text("step 1 · training 9")
    area.press("ArrowRight")
    expect(loss.locator(".chart-readout")).to_have_text("step 2 · training 5")


def test_the_view_of_the_charts_is_in_the_address(page: Page, full_url: str) -> None:
    page.goto(f"{full_url}/model")
    page.get_by_label("log y").check()
    page.get_by_label("smoothing").fill("0.5")
    page.reload()
    expect(page.get_by_label("log y")).to_be_checked()
    expect(page.get_by_label("log x")).not_to_be_checked()
    expect(page.get_by_label("smoothing")).to_have_value("0.5")
    expect(page.locator(".chart-readout").first).to_contain_text("(raw 1.02)")


@pytest.mark.parametrize(
    "fragment", ["%7B", "%", "null", "[]", '{"smoothing":1e9,"xLog":"a","yLog":1}', '{"smoothing":"1"}']
)
def test_a_strange_address_counts_as_none(page: Page, full_url: str, fragment: str) -> None:
    page.goto(f"{full_url}/model#{fragment}")
    expect(page.get_by_label("smoothing")).to_have_value("0")
    expect(page.get_by_label("log y")).not_to_be_checked()


def test_strange_texts_are_shown_and_never_run(page: Page, full_url: str) -> None:
    page.add_init_script("globalThis.alert = () => { globalThis.ran = true; };")
    page.goto(f"{full_url}/model")
    samples = page.locator(".samples").first.locator("li")
    expect(samples).to_have_count(3)
    expect(samples.nth(0).locator("mark")).to_have_text("Once")
    expect(samples.nth(1)).to_contain_text(SHOWN)
    expect(card(page, "Data")).to_contain_text(SHOWN)
    expect(card(page, "The run")).to_contain_text(f"{SHOWN}; {SHOWN}, ? CPUs; 2 processes")
    page.get_by_text("Settings that decide the result").click()
    expect(page.locator("#training details table").last).to_contain_text(SHOWN)
    assert page.locator("main img, main script").count() == 0
    assert not page.evaluate("globalThis.ran ?? false")
    check_layout(page)
    check_accessibility(page)


def test_a_folder_without_a_record(page: Page, inference_url: str) -> None:
    page.goto(f"{inference_url}/model")
    expect(page.locator("#training")).to_contain_text("No curves and samples: the model folder has no training.json")
    expect(card(page, "Origin")).to_contain_text("as written, by their checksums")
    assert page.locator("figure").count() == 0
    check_layout(page)
    check_accessibility(page)


def test_the_keyboard_reaches_everything(page: Page, full_url: str) -> None:
    page.goto(f"{full_url}/model")
    expect(page.locator("figure").first).to_be_visible()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.innerText"))
    for name in ("Playground", "Copy fingerprint", "Loss by step", "Values as a table", "validation"):
        assert any(name in text for text in reached if text), (name, reached)
    page.get_by_role("button", name="Copy fingerprint").press("Enter")
    expect(page.get_by_role("button", name="Copied")).to_be_visible()


def test_with_a_key(page: Page, model_dir: Path, watched: Watched) -> None:
    watched.expected.append("401")
    with service("inference", model_dir, api_keys=KEY) as process:
        page.goto(f"{process.url}/model")
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#status")).to_contain_text("The service needs an API key")
        page.get_by_role("button", name="Try again").click()
        page.get_by_label("Key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_text("The service does not know this key.")).to_be_visible()
        page.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        expect(card(page, "Architecture")).to_be_visible()
        expect(page.locator("#status")).to_be_empty()
        kept = page.evaluate(
            "[JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie, location.href]"
        )
        assert not any(KEY in text for text in kept)


@pytest.mark.parametrize(
    ("status", "said"), [(503, "The service is not ready (the service is loading)"), (429, "The service is busy")]
)
def test_it_waits_for_a_service_that_is_not_ready(
    page: Page, inference_url: str, watched: Watched, status: int, said: str
) -> None:
    watched.expected.append(str(status))
    refused: list[Route] = []

    def refuse_once(route: Route) -> None:
        if refused:
            route.fallback()
            return
        refused.append(route)
        body = {"error": {"message": "the service is loading", "type": "x", "param": None, "code": "x"}}
        route.fulfill(status=status, json=body, headers={"Retry-After": "1"})

    page.route("**/info", refuse_once)
    page.goto(f"{inference_url}/model")
    expect(page.locator("#status")).to_contain_text(said)
    expect(card(page, "Architecture")).to_be_visible()
    expect(page.locator("#status")).to_be_empty()


def test_it_goes_on_when_the_service_is_back(page: Page, inference_url: str, watched: Watched) -> None:
    watched.expected.append("ERR_CONNECTION_REFUSED")
    page.route("**/info", lambda route: route.abort("connectionrefused"), times=2)
    page.route("**/readyz", lambda route: route.abort("connectionrefused"), times=1)
    page.goto(f"{inference_url}/model")
    expect(page.locator("#status")).to_contain_text("No connection to the service.")
    expect(card(page, "Architecture")).to_be_visible()
