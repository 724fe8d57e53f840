"""Write the tables of settings in docs/operations.md anew: `python scripts/settings_tables.py`."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "operations.md"


def main() -> int:
    """Rewrite the page."""
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def with_tables(page: str) -> str:
    """The page with each `<!-- settings: NAME -->` followed by the table as it is now."""
    from services.inference.settings import InferenceSettings
    from services.tokenizer.settings import TokenizerSettings
    from shared.http import ServiceSettings

    # A service may give a common setting its own default, as the port: that is the service's own line then.
    common = {name: field for name, field in ServiceSettings.model_fields.items() if not field.is_required()}
    own = {
        "tokenizer": TokenizerSettings.model_fields,
        "inference": InferenceSettings.model_fields,
    }
    required = {name: field for name, field in ServiceSettings.model_fields.items() if name == "model_dir"}
    tables = {"both": _table({**required, **common})}
    for service, fields in own.items():
        tables[service] = _table(
            {name: field for name, field in fields.items() if name not in common and name not in required}
        )
    for name, table in tables.items():
        page, found = re.subn(
            rf"(<!-- settings: {name} -->\n)(?:\n(?:\|.*\n)+)?", lambda m, t=table: f"{m[1]}\n{t}", page
        )
        if found != 1:
            raise SystemExit(f"{PAGE.name} has {found} places for the table '{name}', it needs one")
    return page


def _table(fields: dict) -> str:
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for name, field in fields.items():
        default = "" if field.is_required() or field.default is None else f"`{_shown(field.default)}`"
        rows.append(f"| `OWNLM_{name.upper()}` | {default} | {field.description.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.exit(main())
