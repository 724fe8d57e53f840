"""Tables where there is no terminal, and where there is a narrow one."""

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from trainer.console.tables import print_table
from trainer.sweep.record import Outcome, summary_table

LONG = "a name that is longer than any terminal is wide, " * 4


def test_what_goes_into_a_file_is_not_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    table = Table("name", "loss")
    table.add_row(LONG, "6.2296")
    print_table(table)
    assert any(LONG.strip() in line and "6.2296" in line for line in capsys.readouterr().out.splitlines())


def test_a_sweep_in_a_narrow_terminal_keeps_every_digit() -> None:
    figures = {"loss": 6.2482, "validation_loss": 6.2296, "best_validation_loss": 6.2296, "bits_per_byte": 3.7034}
    outcome = Outcome(
        "run", {"learning_rate": 1000000000000.0, "qk_norm": True}, None, "diverged", "", 10,
        **figures, tokens=1280.0, tokens_per_second=189.7, seconds=6.9,
    )  # fmt: skip
    console = Console(width=80, file=StringIO())
    console.print(summary_table([outcome]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown
    assert all(word in shown for word in ("3.7034", "6.2482", "190", "0:00:07", "diverged"))


@pytest.mark.case("D48")
def test_markup_from_files_is_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """rich would take these for a style, an emoji and an end without a beginning, which it raises for."""
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table("name", title="corpus[b].txt", caption=":smile:")
    table.add_row("[red]text[/red] [/b] :smile:")
    print_table(table)
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("corpus[b].txt", "[red]text[/red] [/b] :smile:"))
    assert shown.count(":smile:") == 2
