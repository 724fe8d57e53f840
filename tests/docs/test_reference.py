"""docs/reference says what the code does: its options, settings, metrics, files."""

import ast
import asyncio
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from services.inference.metrics import InferenceMetrics
from shared.http import ServiceSettings
from tests.docs.pages import DOCS, ROOT, pages
from trainer.watch.exporter import Exporter

_NOT_SETTINGS = {"cache_dir", "data"}  # of the kernels, and of the tests


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_current(script: ModuleType) -> None:
    for page, text in script.pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name}: run python scripts/reference.py"


def _rows(text: str) -> list[list[str]]:
    """The cells of every line of every table; a pipe ends a cell unless it is escaped, also in code."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def _options(text: str) -> list[str]:
    return re.findall(r"`(--[\w-]+)`", " ".join(row[0] for row in _rows(text)))


def test_every_row_of_a_table_has_the_cells_of_its_header() -> None:
    for page in pages():
        # Code blocks may hold anything. What follows a row must be another row, or a blank line.
        text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for block in text.split("\n\n"):
            if block.lstrip("\n").startswith("|"):
                lines = block.strip("\n").splitlines()
                assert all(line.startswith("|") and line.endswith("|") for line in lines), f"{page.name}: {block}"
                assert len({len(row) for row in _rows(block)}) == 1, f"{page.name}: {block}"


def test_every_option_of_a_command_is_in_its_tables() -> None:
    from trainer.cli import app

    text = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    sections = {section.split("\n", 1)[0]: section for section in text.split("\n## ")[1:]}
    assert not [name for name, section in sections.items() if not all(row[0] for row in _rows(section))]
    groups = re.split(r"^\*\*(.+)\*\*$", sections["train"], flags=re.MULTILINE)[1:]
    train = {group.split(":")[0]: _options(table) for group, table in zip(groups[::2], groups[1::2], strict=True)}
    for name, section in sections.items():
        linked = re.search(r"Also the options of \[train\]\(#train\): (.+)\.", section)
        options = _options(section)
        for group in linked[1].split(", ") if linked else ():
            options += train[group]
        arguments = [argument for argument in app[name].assemble_argument_collection() if argument.show]
        # Two settings of `evaluate` are one option, --chat: it is in both tables.
        names = [name for argument in arguments for name in argument.names if name not in argument.negatives]
        assert sorted(options) == sorted(names), name


def test_every_setting_that_is_named_exists() -> None:
    from services.inference.settings import InferenceSettings
    from services.tokenizer.settings import TokenizerSettings

    fields = {*InferenceSettings.model_fields, *TokenizerSettings.model_fields}
    for page in pages():
        named = {name.lower() for name in re.findall(r"OWNLM_([A-Z_]+[A-Z])", page.read_text(encoding="utf-8"))}
        assert named <= fields | _NOT_SETTINGS, page


def test_every_size_may_have_a_unit() -> None:
    from services.inference.settings import InferenceSettings
    from services.tokenizer.settings import TokenizerSettings

    for settings in InferenceSettings, TokenizerSettings:
        names = [name for name in settings.model_fields if "bytes" in name]
        read = settings(model_dir=Path("model"), **dict.fromkeys(names, "16MiB"))
        assert [getattr(read, name) for name in names] == [16 << 20] * len(names)


def _calls() -> Iterator[ast.Call]:
    """Every call in the sources of the services."""
    for file in (*(ROOT / "shared" / "http").rglob("*.py"), *(ROOT / "services").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield node


def _codes_of_source() -> dict[str, set[int | None]]:
    """The codes in calls like `ApiError(400, ..., code="empty_prompt")`, with the status where it stands beside."""
    codes: dict[str, set[int | None]] = {}
    for call in _calls():
        status = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
        for keyword in call.keywords:
            if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                codes.setdefault(keyword.value.value, set()).add(status if isinstance(status, int) else None)
    return codes


def _table_of_codes() -> dict[str, tuple[int, bool]]:
    """The status of every error code, and whether it says that the request may be sent again."""
    section = (DOCS / "reference" / "http-api.md").read_text(encoding="utf-8").split("| code | status |")[1]
    return {code: (int(row[1]), row[2] == "yes") for row in _rows(section) for code in re.findall(r"`(\w+)`", row[0])}


def test_every_error_code_is_in_the_table_with_its_status() -> None:
    from services.inference.engine import errors
    from services.inference.generation.stream import to_api_error
    from shared.http.lifecycle import State, not_ready

    found = _codes_of_source()
    raised = [not_ready(state, "why") for state in get_args(State) if state != "ready"]
    raised += [to_api_error(kind("n", "why")) for kind in vars(errors).values() if hasattr(kind, "code")]
    for error in raised:
        found.setdefault(str(error.code), set()).add(error.status_code)
    proxy = (ROOT / "deploy" / "proxy" / "haproxy.cfg").read_text(encoding="utf-8")
    for status, code in re.findall(r'http-error status (\d+) .*"code":"(\w+)"', proxy):
        found.setdefault(code, set()).add(int(status))
    table = {code: status for code, (status, _) in _table_of_codes().items()}
    assert found.keys() == table.keys()
    assert not {code for code, statuses in found.items() if statuses - {None, table[code]}}


def test_the_pages_wait_after_the_errors_that_may_be_retried() -> None:
    script = (ROOT / "services" / "inference" / "pages" / "waiting.js").read_text(encoding="utf-8")
    passing = re.search(r"PASSING = \((.*?)\)", script, re.DOTALL)
    assert passing is not None
    retried = {code for code, (_, may_be_retried) in _table_of_codes().items() if may_be_retried}
    assert set(re.findall(r"\w+", passing[1])) == retried | {"cut", "no_connection"}  # these two have no response


def test_every_field_of_a_request_in_the_log_is_described() -> None:
    page = (DOCS / "reference" / "logs.md").read_text(encoding="utf-8")
    called = [call for call in _calls() if isinstance(call.func, ast.Name) and call.func.id == "add_log_fields"]
    fields = {keyword.arg for call in called for keyword in call.keywords}
    assert fields
    assert fields <= set(re.findall(r"[`\"](\w+)[`\"]", page))


def test_every_metric_is_described_and_no_other() -> None:
    names = set()
    training = asyncio.run(Exporter([]).text())
    for line in (InferenceMetrics(lambda: None, os.getpid).render() + training).decode().splitlines():
        if line.startswith("# TYPE ownlm_"):
            names.add(line.split()[2])
    page = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(ownlm_[a-z_]+)", page)) == names


def test_compose_leaves_more_time_to_end_than_the_services_take() -> None:
    seconds = re.findall(r"stop_grace_period: (\d+)s", (ROOT / "docker-compose.yml").read_text())
    assert len(seconds) == 3
    assert min(map(int, seconds)) > ServiceSettings.model_fields["shutdown_timeout"].default + 2
