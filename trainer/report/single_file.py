"""The page as one file that needs no other: its modules, style sheets and data within it.

The file allows only its own scripts and style sheets, by their hashes. Its data is JSON in an element that browsers do
not run, without any `<`.
"""

import base64
import hashlib
import re
from importlib import resources
from pathlib import PurePosixPath

from trainer.report.description import to_json

_PLACES = (("trainer.report.pages", ""), ("shared.pages", "assets"))
_IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"\./([\w.-]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|let|class|function\*?|async function\*?) (\w+))", re.MULTILINE)
_EXPORT_LIST = re.compile(r"^export \{([^}]*)\};$", re.MULTILINE)
_UNKNOWN = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
_LINK = re.compile(r'<link rel="stylesheet" href="assets/([\w.-]+)">')
_ICON = re.compile(r'<link rel="icon"[^>]*>\n?')
_SCRIPT = re.compile(r'<script type="module" src="assets/([\w.-]+)"></script>')


def single_file(page: str, data: object) -> str:
    """A page with all that it needs.

    Args:
        page: The name of its HTML file.
        data: What it shows: the content of its element `data`.

    Raises:
        ValueError: a module imports or exports in a way that is not supported here.
    """
    style = "\n".join(_asset(name) for name in _LINK.findall(_asset(page)))
    (entry,) = _SCRIPT.findall(_asset(page))
    script = bundle(entry)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    html = _ICON.sub("", _LINK.sub("", _SCRIPT.sub("", _asset(page))))
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
    json = to_json(data).decode().replace("<", "\\u003c")
    body = f'<script type="application/json" id="data">{json}</script>\n<script type="module">{script}</script>\n'
    html = html.replace("<title>", head + "<title>", 1)
    return html.replace("</body>", body + "</body>", 1)


def bundle(entry: str) -> str:
    """A module and all that it imports as one module.

    Each becomes a function that returns what the module exports, so that equal names stay apart.
    """
    modules: dict[str, str] = {}
    _add_module(entry, modules)
    script = "".join(modules.values())
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError(f"{entry} or a module that it imports contains what ends a script within a page")
    return script


def _add_module(name: str, modules: dict[str, str]) -> None:
    """Add a module's code after that of those that it imports."""
    if name in modules:
        return
    code = _asset(name)
    for _, imported in _IMPORT.findall(code):
        _add_module(imported, modules)
    exported = _EXPORT.findall(code)
    for names in _EXPORT_LIST.findall(code):
        exported += [each.strip() for each in names.split(",") if each.strip()]
    code = _EXPORT.sub("", _EXPORT_LIST.sub("", code))
    code = _IMPORT.sub(lambda found: _destructured(found[1] or "", found[2]), code)
    unknown = _UNKNOWN.search(code)
    if unknown or any(" as " in each for each in exported):
        raise ValueError(f"{name}: this import or export cannot be put into one file: {unknown and unknown[0]}")
    modules[name] = f"const {_variable(name)} = (() => {{\n{code}\nreturn {{ {', '.join(exported)} }};\n}})();\n"


def _destructured(names: str, module: str) -> str:
    """`import { a, b as c } from "./x.js"` as a declaration."""
    return f"const {{ {names.strip().replace(' as ', ': ')} }} = {_variable(module)};"


def _variable(module: str) -> str:
    return "module_" + re.sub(r"\W", "_", PurePosixPath(module).stem)


def _asset(name: str) -> str:
    for package, folder in _PLACES:
        file = resources.files(package).joinpath(folder, name) if folder else resources.files(package) / name
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise FileNotFoundError(f"{name} is in none of {', '.join(package for package, _ in _PLACES)}")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
