"""The part of a model's card about questions, which `evaluate --record` writes; the rest of the card stays as it is."""

import re
from collections.abc import Sequence
from pathlib import Path

from shared.lm.evaluations_file import RecordedMetric, read_evaluations
from shared.system.checksums import CARD_FILE
from shared.system.files import write_text
from shared.system.regular_file import read_regular
from trainer.card.markdown import code, table
from trainer.card.model_card import LARGEST_CARD, MARK

_HEADING = "## Questions"
_SECTION = re.compile(rf"^{_HEADING}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_NEXT = re.compile(r"^## (?:Run it|License and limits)$", re.MULTILINE)


def renew_questions(folder: Path) -> None:
    """Write the section anew from `evaluations.json`, into a card of ours that the user has not made their own.

    Raises:
        OSError: If it cannot be written; it then stays as it was.
    """
    file = folder / CARD_FILE
    try:
        text = read_regular(file, LARGEST_CARD).decode("utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return
    if MARK not in text:
        return
    text = _SECTION.sub("", text)
    following = _NEXT.search(text)
    place = len(text) if following is None else following.start()
    write_text(file, text[:place] + _section(read_evaluations(folder)) + text[place:])


def _section(metrics: Sequence[RecordedMetric]) -> str:
    rows = [
        (*map(code, (each.file, each.format, each.metric)), f"{each.questions:,}", f"{each.value:.4f}", _stderr(each))
        for each in metrics
    ]
    lines = table(("file", "format", "metric", "questions", "value", "standard error"), rows)
    return "\n".join(
        [_HEADING, "", "By `python -m trainer evaluate --tasks`; how is in `evaluations.json`.", "", *lines, "", ""]
    )


def _stderr(metric: RecordedMetric) -> str:
    return "" if metric.stderr is None else f"{metric.stderr:.4f}"
