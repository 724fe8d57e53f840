"""Write what the documentation has from the code again: `python scripts/reference.py`.

That is docs/reference/cli.md, the tables of docs/reference/environment.md, and the map of CONTRIBUTING.md.
"""

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ByteSize

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import Argument
    from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"

_CLI_HEAD = """# The command line

Generated from the code by `python scripts/reference.py`: do not edit.

`ownlm COMMAND` and `python -m trainer COMMAND` are the same. Every command also takes `--config PATH`, a TOML file
with any of its options as `name = value` (the command line wins over it), and `--verbose`, which shows the whole
traceback when a job fails and logs more. What is also named in capitals, such as `FILES...`, may be given without the
name of the option. A flag's opposite begins with `--no-`.

Exit status: 0 done, 1 the job failed, 2 wrong usage, 128 + N stopped by signal N (130 after Ctrl-C).
"""


def main() -> int:
    """Write the pages."""
    sys.path.insert(0, str(ROOT))
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    return 0


def pages() -> dict[Path, str]:
    """The generated pages as they should be."""
    environment, contributing = REFERENCE / "environment.md", ROOT / "CONTRIBUTING.md"
    return {
        REFERENCE / "cli.md": cli_page(),
        environment: with_settings(environment.read_text(encoding="utf-8")),
        contributing: with_table(contributing.read_text(encoding="utf-8"), "map", map_of_folders()),
    }


def cli_page() -> str:
    """Every command with its options, by group."""
    from trainer.cli import app

    train = set(_groups(app["train"]).values())
    return _CLI_HEAD + "".join(
        _command(name, app[name], set() if name == "train" else train) for name in app if not name.startswith("-")
    )


def _command(name: str, command: "App", train: set[str]) -> str:
    """A section; tables that are those of `train` are replaced by a link."""
    summary = inspect.cleandoc(str(command.help)).split("\n\nArgs:")[0].split("\n\nRaises:")[0]
    groups = _groups(command)
    parts = [f"\n## {name}\n\n{summary.replace('<|endoftext|>', '`<|endoftext|>`').replace('``', '`')}\n"]
    for group, table in groups.items():
        if table not in train:
            parts.append((f"\n**{group}**\n" if len(groups) > 1 else "") + f"\n{table}")
    if shared := [group.split(":")[0] for group, table in groups.items() if table in train]:
        parts.append(f"\nAlso the options of [train](#train): {', '.join(shared)}.\n")
    return "".join(parts)


def _groups(command: "App") -> dict[str, str]:
    """The tables of a command's options, by the name of their group."""
    groups: dict[str, list[str]] = {}
    for argument in command.assemble_argument_collection(parse_docstring=True):
        if argument.show:
            groups.setdefault(argument.parameter.group[0].name, []).append(_option(argument))
    head = "| option | default | meaning |\n| --- | --- | --- |\n"
    return {group: head + "".join(rows) for group, rows in groups.items()}


def _option(argument: "Argument") -> str:
    names = list(argument.positives)
    if argument.index is not None:
        # By position, as --help shows it.
        names.insert(0, argument.name.removeprefix("--").upper() + ("..." if argument.token_count()[1] else ""))
    default = argument.field_info.default
    if argument.required:
        shown = "required"
    elif default is None or default is inspect.Parameter.empty or default in ("", ()):
        shown = ""
    else:
        shown = f"`{_default(default)}`"
    meaning = " ".join(str(argument.parameter.help or "").split())
    if choices := argument.get_choices():
        meaning += " One of " + ", ".join(f"`{choice}`" for choice in choices) + "."
    return f"| {', '.join(f'`{name}`' for name in names)} | {shown} | {_cell(meaning)} |\n"


def with_settings(page: str) -> str:
    """The page with each `<!-- settings: NAME -->` followed by the table of that service's variables."""
    from services.inference.settings import InferenceSettings
    from services.tokenizer.settings import TokenizerSettings
    from shared.http import ServiceSettings

    # A service may give a common setting its own default, as the port: that is the service's own line then.
    common = {name: field for name, field in ServiceSettings.model_fields.items() if not field.is_required()}
    required = {name: field for name, field in ServiceSettings.model_fields.items() if name == "model_dir"}
    tables = {"both": {**required, **common}}
    for service, settings in {"tokenizer": TokenizerSettings, "inference": InferenceSettings}.items():
        fields = settings.model_fields.items()
        tables[service] = {name: field for name, field in fields if name not in tables["both"]}
    for name, fields_of_table in tables.items():
        page = with_table(page, f"settings: {name}", _settings_table(fields_of_table))
    return page


def with_table(page: str, name: str, table: str) -> str:
    """The page with the table after `<!-- NAME -->`, instead of the one that is there."""
    page, found = re.subn(rf"(<!-- {name} -->\n)(?:\n(?:\|.*\n)+)?", lambda match: f"{match[1]}\n{table}", page)
    if found != 1:
        raise SystemExit(f"found {found} markers for the table '{name}', expected one")
    return page


def map_of_folders() -> str:
    """Every package with the first line of its docstring."""
    files = sorted(file for top in ("shared", "services", "trainer") for file in (ROOT / top).rglob("__init__.py"))
    docstrings = {file.parent: ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) for file in files}
    lines = {folder: text.splitlines()[0] for folder, text in docstrings.items() if text}
    rows = [f"| `{folder.relative_to(ROOT)}` | {line} |\n" for folder, line in lines.items()]
    return "| folder | holds |\n| --- | --- |\n" + "".join(rows)


def _settings_table(fields: "dict[str, FieldInfo]") -> str:
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for name, field in fields.items():
        default = "" if field.is_required() or field.default is None else f"`{_default(field.default)}`"
        rows.append(f"| `OWNLM_{name.upper()}` | {default} | {_cell(str(field.description))} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("<|endoftext|>", "`<|endoftext|>`").replace("``", "`").replace("|", "\\|")


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_default, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, ByteSize):
        return value.human_readable().replace(".0", "")
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", "\\n")


if __name__ == "__main__":
    sys.exit(main())
