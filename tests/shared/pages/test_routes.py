"""Pages as files over HTTP; tests/browser opens them."""

import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from shared.pages import SECURITY_HEADERS, is_page_path, page_routes

ROOT = Path(__file__).parents[3]
PACKAGES = ["shared.http.docs_page", "services.inference.pages", "services.tokenizer.pages", "trainer.report.pages"]
FOLDERS = [ROOT / "shared/pages/assets", *(ROOT / name.replace(".", "/") for name in PACKAGES)]
SOURCES = sorted(file for folder in FOLDERS for file in folder.glob("*.*") if file.suffix in {".js", ".html", ".css"})


@pytest.fixture
def client() -> TestClient:
    routes = page_routes(PACKAGES[:2], assets=[("fastapi_offline", "static")])
    return TestClient(Starlette(routes=routes))


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html"),
        ("/docs", "text/html"),
        ("/assets/base.css", "text/css"),
        ("/assets/dom.js", "text/javascript"),
        ("/assets/icon.svg", "image/svg+xml"),
        ("/assets/swagger-ui-bundle.js", "text/javascript"),
    ],
)
def test_files_have_types_and_headers(client: TestClient, path: str, media_type: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"].split(";")[0] == media_type
    assert {name: response.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert "'unsafe-" not in response.headers["content-security-policy"]
    again = client.get(path, headers={"If-None-Match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for ranges, status in {"bytes=0-5": 206, "bytes=99999999-": 416, "bytes": 400}.items():
        part = client.get(path, headers={"Range": ranges})
        assert (part.status_code, part.headers["x-content-type-options"]) == (status, "nosniff")
    assert client.head(path).content == b""
    assert client.post(path).status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/assets/__init__.py",
        "/assets/index.html",
        "/assets/../routes.py",
        "/assets/%2e%2e%2froutes.py",
        "/assets/..%5croutes.py",
        "/assets/nothing.js",
        "/assets/",
        "/index",
        "/assets/%00.js",
        "/assets/" + "a" * 5000 + ".js",
    ],
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_paths_of_pages() -> None:
    routes = page_routes(PACKAGES[:2])
    assert all(is_page_path(path, routes) for path in ("/", "/docs", "/assets/a.js"))
    assert not any(is_page_path(path, routes) for path in ("", "/generate", "/assets", "/assets/a/b", "//", "/docs/"))


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_data_never_becomes_markup(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text)
    assert not re.search(r"https?://(?!www\.w3\.org/)", text), "another host"
    assert not re.search(r"localStorage|sessionStorage|document\.cookie|indexedDB", text), "keys stay in memory"
    if file.suffix == ".html":
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", text), "refused by the policy"
        assert not re.search(r'(?:src|href)="/', text), "must work below a proxy's path"


def with_imports(start: Path) -> set[Path]:
    """A page or a script and all files that it loads at first, without workers and what a function imports later."""
    found, todo = set(), [start]
    while todo:
        file = todo.pop()
        found.add(file)
        text = re.sub(r"new Worker\([^)]*\)|=> import\([^)]*\)", "", file.read_text(encoding="utf-8"))
        names = re.findall(r"""(?:assets/|from "\./|import "\./|import\("\./|new URL\("\./)([\w.-]+)""", text)
        for name in names:
            [match] = [folder / name for folder in (start.parent, FOLDERS[0]) if (folder / name).is_file()]
            if match not in found:
                todo.append(match)
    return found


@pytest.mark.parametrize("page", sorted(file for file in SOURCES if file.suffix == ".html" and file.stem != "docs"),
                         ids=lambda file: f"{file.parents[1].name}/{file.stem}")  # fmt: skip
def test_a_page_with_all_its_files_is_under_60_kb(page: Path) -> None:
    assert sum(file.stat().st_size for file in with_imports(page)) < 60_000


@pytest.mark.parametrize("worker", sorted(file for file in SOURCES if file.stem.endswith("-worker")),
                         ids=lambda file: file.stem)  # fmt: skip
def test_a_worker_that_a_person_starts_is_small(worker: Path) -> None:
    assert sum(file.stat().st_size for file in with_imports(worker)) < 30_000


def imported_later() -> list[Path]:
    """Scripts that a function imports: when a person does what they are for."""
    pattern = re.compile(r"""=> import\("\./([\w.-]+)""")
    return sorted(
        {file.parent / name for file in SOURCES for name in pattern.findall(file.read_text(encoding="utf-8"))}
    )


@pytest.mark.parametrize("script", imported_later(), ids=lambda file: file.stem)
def test_a_script_that_a_page_imports_later_is_small(script: Path) -> None:
    first = set.union(*(with_imports(page) for page in script.parent.glob("*.html")))
    assert sum(file.stat().st_size for file in with_imports(script) - first | {script}) < 10_000
