"""Fractions where whole numbers are expected."""

import pytest

from trainer import cli


@pytest.mark.case("D51")
@pytest.mark.parametrize(
    "arguments",
    [
        "train --data d --output o --max-steps 2.9",
        "estimate --vocab-size 300.5",
        "vocab text.txt --vocab-size 300.5 --output o",
        "encode text.txt --tokenizer t --output o --threads 1.5",
        "generate model --top-k 2.5",
        "evaluate model text.txt --stride 8.5",
        "sweep --data d --output o --grid seed=1,2 --keep 2.7",
        "train --data d --output o --depth 2.5",
    ],
)
def test_no_option_of_any_command_is_rounded(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.app.meta(arguments.split())
    assert ended.value.code == 2
    assert "must be a whole number" in capsys.readouterr().err
