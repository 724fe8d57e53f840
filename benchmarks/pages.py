"""What the pages cost: bytes, first paint, frames per second, and what an open page costs the streams of others.

`python -m benchmarks.pages` serves a random model of CS336's shape, opens the pages in Chromium, and measures 32
streams of other clients in turn: alone; beside a playground that is open; beside four more streams with 20 log-
probabilities per token, which is what a playground with four answers asks for, from a client that draws nothing; and
beside that playground, whose browser shares the processors. It prints tables of medians and one line of JSON, and
needs Chromium and the extra `dev`.
"""

import argparse
import json
import shlex
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.host import describe_machine, installed_versions
from benchmarks.report import table
from benchmarks.serving.load import Measurement, measure
from benchmarks.serving.model import make_model
from benchmarks.serving.servers import Contestant, Server, ours

CLIENTS = 32
ANSWERS = 4
ALONE, OPEN, STREAMS, STREAMING = CONDITIONS = (
    "alone",
    "a page is open",
    "4 more streams as a page asks for",
    "a page streams 4 answers",
)
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
BYTES = "performance.getEntries().reduce((sum, entry) => sum + (entry.decodedBodySize ?? 0), 0)"
COUNT_FRAMES = """() => {
  window.frames_seen = [];
  const note = (time) => { frames_seen.push(time); requestAnimationFrame(note); };
  requestAnimationFrame(note);
}"""


def main() -> None:
    """Measure and report."""
    options = _options()
    with (
        tempfile.TemporaryDirectory(prefix="ownlm-benchmark-") as name,
        _servers(Path(name)) as servers,
        _chromium() as browser,
    ):
        paints = {path: _paint(browser, url, options.loads) for path, url in _pages(*servers).items()}
        turns = [_turn(browser, servers[0], options.requests) for _ in range(options.rounds)]
    medians = {
        condition: {key: statistics.median(turn[condition][key] for turn in turns) for key in turns[0][condition]}
        for condition in CONDITIONS
    }
    print(
        table(
            ["page", "bytes, data included", "first paint, median ms", "slowest"],
            [[path, *found.values()] for path, found in paints.items()],
        )
    )
    print()
    print(_table(medians), end="\n\n")
    report = {
        "command": shlex.join(["python", "-m", "benchmarks.pages", *sys.argv[1:]]),
        "machine": describe_machine(),
        "versions": {**installed_versions(["playwright", "starlette", "uvicorn"])},
        "pages": paints,
        "medians": medians,
    }
    print(json.dumps(report))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of the conditions in turn; 5 by default")
    parser.add_argument("--requests", type=int, default=96, help="of other clients in each; 96 by default")
    parser.add_argument("--loads", type=int, default=15, help="of each page; 15 by default")
    return parser.parse_args()


@contextmanager
def _servers(work: Path) -> Iterator[tuple[Server, Server]]:
    folder = make_model(work / "model")
    inference = ours(folder, "float32")
    more_rows = ("OWNLM_MAX_BATCH", str(CLIENTS + ANSWERS))
    inference = replace(inference, environment=(*inference.environment, more_rows))
    tokenizer = Contestant(
        name="tokenizer",
        command=(sys.executable, "-m", "services.tokenizer"),
        environment=inference.environment,
        ready_path="/readyz",
        path="/encode",
        sampling={},
        count=inference.count,
    )
    started: list[Server] = []
    try:
        started.append(Server(inference))
        started.append(Server(tokenizer))
        yield started[0], started[1]
    finally:
        for server in started:
            server.close()


@contextmanager
def _chromium() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise SystemExit("Chromium is not installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def _pages(inference: Server, tokenizer: Server) -> dict[str, str]:
    return {
        "playground": f"http://127.0.0.1:{inference.port}/",
        "about the model": f"http://127.0.0.1:{inference.port}/model",
        "tokenizer": f"http://127.0.0.1:{tokenizer.port}/",
    }


def _paint(browser: Browser, url: str, loads: int) -> dict[str, float]:
    """First contentful paint in ms, each time in a context of its own without a cache; and all bytes loaded."""
    paints = []
    for _ in range(loads):
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(url, wait_until="networkidle")
            paints.append(float(page.evaluate(PAINT)))
            size = int(page.evaluate(BYTES))
    return {"bytes": size, "median_ms": round(statistics.median(paints)), "slowest_ms": round(max(paints))}


def _turn(browser: Browser, server: Server, requests: int) -> dict[str, dict[str, float]]:
    """One round of each condition."""
    with ThreadPoolExecutor(2) as pool:
        found = {ALONE: _figures(_load(pool, server, requests).result())}
        load = _load(pool, server, requests)
        pool.submit(_stream_until, load, server).result()
        found[STREAMS] = _figures(load.result())
        for condition in (OPEN, STREAMING):
            with browser.new_context() as context:
                page = context.new_page()
                page.goto(f"http://127.0.0.1:{server.port}/", wait_until="networkidle")
                load = _load(pool, server, requests)
                if condition == OPEN:  # counting frames would make the page draw them
                    found[condition] = _figures(load.result())
                else:
                    page.evaluate(COUNT_FRAMES)
                    _generate_until(page, load)
                    found[condition] = _figures(load.result(), frames=_frames_per_second(page.evaluate("frames_seen")))
    return found


def _stream_until(load: "Future[Any]", server: Server) -> None:
    """Four streams at a time with what the playground asks for, for as long as the others are at work."""
    contestant = server.contestant
    while not load.done():
        bodies = [{**contestant.body([65] * 8, seed), "logprobs": 20, "stream_bytes": True} for seed in range(ANSWERS)]
        measure(server.port, contestant.path, bodies, clients=ANSWERS, count_tokens=contestant.count_tokens)


def _load(pool: ThreadPoolExecutor, server: Server, requests: int) -> "Future[Measurement]":
    contestant = server.contestant
    bodies = [contestant.body([65 + seed % 26] * 8, seed) for seed in range(requests)]
    return pool.submit(
        measure, server.port, contestant.path, bodies, clients=CLIENTS, count_tokens=contestant.count_tokens
    )


def _generate_until(page: Page, load: "Future[Any]") -> None:
    """Stream four answers at a time, one set after another, for as long as the others are at work."""
    page.fill("#prompt", "A story")
    page.fill("#n", str(ANSWERS))
    page.check("#ignore_eos")
    while not load.done():
        if page.is_disabled("#stop"):
            page.click("#generate")
        page.wait_for_timeout(200)


def _frames_per_second(times: Sequence[float]) -> float:
    return 1000 * (len(times) - 1) / (times[-1] - times[0])


def _figures(others: Measurement, *, frames: float = 0.0) -> dict[str, float]:
    return {
        "tokens_per_second": others.tokens_per_second,
        "between_ms": others.between_ms,
        "between_p99_ms": others.between_p99_ms,
        "frames_per_second": frames,
    }


def _table(medians: dict[str, dict[str, float]]) -> str:
    base = medians[ALONE]
    rows = [
        [
            condition,
            f"{found['tokens_per_second']:,.0f} ({found['tokens_per_second'] / base['tokens_per_second']:.2f})",
            f"{found['between_ms']:.1f}",
            f"{found['between_p99_ms']:.1f} ({found['between_p99_ms'] / base['between_p99_ms']:.2f})",
            f"{found['frames_per_second']:.0f}" if found["frames_per_second"] else "",
        ]
        for condition, found in medians.items()
    ]
    return table(
        [f"beside {CLIENTS} streams", "tokens/s of these", "between tokens, median ms", "p99 ms", "frames/s"], rows
    )


if __name__ == "__main__":
    main()
