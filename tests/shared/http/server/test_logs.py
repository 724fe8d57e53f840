"""What reaches standard output, in a process of its own: one JSON object a line, whichever logger wrote it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended

PROGRAM = """
import logging, sys
import structlog
from shared.http.server.logs import configure_logging
from shared.http.request_context import RequestContext, current_request

configure_logging({level!r}, {style!r})
log = structlog.get_logger("ownlm.test")
log.debug("hidden")
log.info("plain", number=1, path=__import__("pathlib").Path("x"))
logging.getLogger("uvicorn.error").info("from a %s", "library")
logging.getLogger("uvicorn.error").debug("hidden")
current_request.set(RequestContext({{b"x-request-id": b"abc-1"}}))
log.info("within a request", text="a\\nb", odd="\\ud800", huge=2**100)
logging.getLogger("uvicorn.error").warning("library within a request")
def fail(secret):
    raise ValueError("broken")
try:
    fail("text of" + " a user")  # from Python 3.13 on, a traceback shows the lines of a program given by -c
except ValueError:
    log.exception("failed")
    logging.getLogger("uvicorn.error").exception("failed there")
"""


def lines(style: str, level: str = "info", stdout: int = subprocess.PIPE) -> list[str]:
    program = PROGRAM.format(style=style, level=level)
    done = subprocess.run([sys.executable, "-c", program], stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")
    return done.stdout.decode().splitlines() if done.stdout else []


def test_json_lines_of_everybody_have_one_shape() -> None:
    entries = [json.loads(line) for line in lines("json")]
    assert [entry["event"] for entry in entries] == [
        "plain", "from a library", "within a request", "library within a request", "failed", "failed there",
    ]  # fmt: skip
    for entry in entries:
        assert entry.keys() >= {"event", "level", "logger", "timestamp"}
    assert [entry.get("id") for entry in entries] == [None, None, *["abc-1"] * 4]
    assert (entries[2]["text"], entries[2]["huge"]) == ("a\nb", 2**100)
    for entry in entries[4:]:
        assert "ValueError: broken" in entry["exception"]
        assert "text of a user" not in entry["exception"]


@pytest.mark.case("D54")
@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_console_shows_no_escapes_of_others(is_terminal: bool) -> None:
    """Of structlog's colors only, where it is a terminal."""
    program = """
import logging, sys
sys.stdout.isatty = lambda: {is_terminal}
import structlog
from shared.http.server.logs import configure_logging
configure_logging("info", "console")
structlog.get_logger("a").info("request", path="/\\x1b[2J\\x9bx")
logging.getLogger("b").info("from a library: %s", "\\x1b[2J\\nx")
"""
    done = subprocess.run(
        [sys.executable, "-c", program.format(is_terminal=is_terminal)], capture_output=True, text=True, check=True
    )
    shown = re.sub(r"\x1b\[\d+m", "", done.stdout)
    assert shown.count("\\x1b[2J") == 2
    assert shown.replace("\n", "").isprintable()


def test_the_console_never_shows_variables() -> None:
    text = "\n".join(lines("console"))
    assert "ValueError: broken" in text
    assert "text of a user" not in text
    assert "hidden" not in text


def test_a_log_that_cannot_be_written_fails_nothing() -> None:
    program = PROGRAM.format(style="json", level="info") + "\nlogging.raiseExceptions = False; import os; os._exit(7)"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=subprocess.DEVNULL, check=False)
    assert done.returncode == 7
