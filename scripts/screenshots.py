"""Make the pictures of the documentation: train the demo models, watch a run meanwhile, then open both services.

python scripts/screenshots.py    # 15 minutes on two cores; needs Chromium, and the packages of the extra `dev`
"""

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect, sync_playwright

from trainer.demo.questions import conversations
from trainer.runs.metrics import read_metrics

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT = 1280, 820
LARGEST = 300_000  # bytes of a picture
WATCHED_STEP = 1_800  # of the demo's 3,600
PATIENCE = 120_000  # ms
HELD_OUT_SEED = 3  # other stories than those that the demo is asked about

TEXT = "Once upon a time, an unbelievably small fox\nmet 3 hedgehogs at the café. <|endoftext|>"


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--browser", default=shutil.which("chromium") or shutil.which("google-chrome"))
    args = parser.parse_args()
    if args.browser is None:
        parser.error("no Chromium found: install it, or name it with --browser")
    args.output.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=PATIENCE)
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=args.browser, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        model = Path(work) / "demo"
        training = [sys.executable, "-m", "trainer", "demo", "--keep", "--output", str(model)]
        with running(training) as process:
            watch(page, process, model.with_name("demo.work") / "run", args.output / "watch.png")
            if process.wait() != 0:
                return 1
        with service("inference", model) as url:
            playground(page, url, args.output / "playground.png")
            about(page, url, args.output / "model.png")
        with service("tokenizer", model) as url:
            tokenizer(page, url, args.output / "tokenizer.png")
        teaching = [sys.executable, "-m", "trainer", "demo", "--chat", "--output", str(model)]
        subprocess.run(teaching, cwd=ROOT, check=True)
        with service("inference", model.with_name("demo-chat")) as url:
            conversation(page, url, args.output / "conversation.png")
        browser.close()
    return 0


@contextmanager
def running(command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | environment) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def service(name: str, model: Path) -> Iterator[str]:
    """A service that is ready; its address."""
    port = free_port()
    environment = {"OWNLM_MODEL_DIR": str(model), "OWNLM_PORT": str(port), "OWNLM_LOG_LEVEL": "warning"}
    url = f"http://127.0.0.1:{port}"
    with running([sys.executable, "-m", f"services.{name}"], **environment):
        wait_for(f"{url}/readyz")
        yield url


def wait_for(url: str) -> None:
    """Wait until there is an answer of 200."""
    end = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < end:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"{url} does not answer")


def free_port() -> int:
    """A port that nothing uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def watch(page: Page, training: subprocess.Popen[bytes], run: Path, picture: Path) -> None:
    """A run at work, half way."""
    port = free_port()
    with running([sys.executable, "-m", "trainer", "watch", str(run), "--port", str(port)]):
        wait_for(f"http://127.0.0.1:{port}/")
        while not run.joinpath("metrics.jsonl").exists() or last_step(run) < WATCHED_STEP:
            if training.poll() is not None:
                raise RuntimeError("the training ended before its picture could be taken")
            time.sleep(1)
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("#now")).to_contain_text("running")
        page.get_by_label("log y").check()
        take(page, picture, height=1_060)


def last_step(run: Path) -> int:
    """The step of the newest record."""
    return max((record["step"] for record in read_metrics(run / "metrics.jsonl")), default=0)


def playground(page: Page, url: str, picture: Path) -> None:
    """An answer whose tokens are colored by probability, and what else the model considered for one of them."""
    page.goto(url)
    page.get_by_label("Prompt").fill("Once upon a time")
    page.locator("#seed").fill("1")
    page.locator("#temperature").fill("0.9")
    page.get_by_role("button", name="Generate").click()
    tokens = page.locator("#answers .t")
    expect(tokens.nth(20)).to_be_visible()
    expect(page.locator("#stop")).to_be_disabled()
    tokens.filter(has_text=re.compile(r"^\W*(curious|little|kind|brave|young|old|eager|lively)$")).first.click()
    expect(page.locator("#inspector")).to_be_visible()
    take(page, picture)


def conversation(page: Page, url: str, picture: Path) -> None:
    """A story that the model has not seen, two questions about it, and how sure it was of a word of the answer."""
    asked = next(conversations(HELD_OUT_SEED, held_out=True))
    page.goto(f"{url}/chat")
    page.locator("#temperature").fill("0")
    for number, question in enumerate((asked[0].message, asked[1].question), start=1):
        page.get_by_label("Message", exact=True).fill(question)
        page.keyboard.press("Enter")
        expect(page.locator("#turns article")).to_have_count(2 * number)
        expect(page.locator("#turns article").last).to_contain_text("cached")
    page.locator("#turns article").last.locator(".t").nth(1).click()
    expect(page.locator("#inspector")).to_be_visible()
    page.evaluate("() => window.scrollTo(0, 0)")
    take(page, picture, height=1_180)


def about(page: Page, url: str, picture: Path) -> None:
    """What the model is, and its training curves."""
    page.goto(f"{url}/model")
    expect(page.locator("figure .chart-readout").first).to_contain_text("step")
    page.get_by_label("log y").check()
    take(page, picture, height=1_050)


def tokenizer(page: Page, url: str, picture: Path) -> None:
    """A text in pieces, and the merges of one of them."""
    page.goto(url)
    page.locator("#text").fill(TEXT)
    pieces = page.locator("#first").get_by_role("option")
    expect(pieces.nth(5)).to_be_visible()
    pieces.filter(has_text=re.compile("time|upon")).first.click()
    page.locator("#query").fill("up")
    expect(page.locator("#entries tr").nth(1)).to_be_visible()
    take(page, picture)


def take(page: Page, picture: Path, *, height: int = HEIGHT) -> None:
    """Take a picture of what is in the window, once it stands still."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    page.mouse.move(0, 0)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    content = page.screenshot(path=picture)
    if len(content) > LARGEST:
        raise ValueError(f"{picture} has {len(content):,} bytes, more than {LARGEST:,}: show less")
    print(f"{picture}: {len(content):,} bytes", flush=True)


if __name__ == "__main__":
    sys.exit(main())
