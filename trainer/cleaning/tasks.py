"""The two passes over a part of the text, as tasks of any process: each leaves a file that is there whole or not."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from trainer.cleaning.corpus import Corpus, Part
from trainer.cleaning.examination import examine
from trainer.cleaning.output import STATE, examined_name, written_name
from trainer.cluster.task_output import TaskOutput

_SHOWN = 300  # characters of an example


class Common(NamedTuple):
    """What all tasks share.

    Attributes:
        corpus: What is cleaned.
        output: Where the files go.
    """

    corpus: Corpus
    output: TaskOutput


class Verdict(NamedTuple):
    """What the second pass does with a part.

    Attributes:
        number: That of the part.
        part: What is read.
        stays: Which of its documents stay.
        wanted: The numbers of those that are shown as examples.
    """

    number: int
    part: Part
    stays: NDArray[np.bool_]
    wanted: tuple[int, ...]


def examine_part(common: Common, item: tuple[int, Part]) -> None:
    """Examine a part, whose number is given.

    Raises:
        CorpusError: It cannot be read.
        TrainerError: A filter fails, or this node lacks one.
    """
    number, part = item
    common.corpus.check_tools()
    with common.output.attempt() as scratch:
        file = scratch / examined_name(number)
        examine(common.corpus, part, file)
        common.output.folder.put(file, f"{STATE}/{file.name}")


def write_part(common: Common, verdict: Verdict) -> dict[int, tuple[str, str]]:
    """Write the documents of a part that stay, if there are any.

    Returns:
        The place and the beginning of those that are wanted.

    Raises:
        CorpusError: It cannot be read.
    """
    with common.output.attempt() as scratch:
        file = scratch / written_name(verdict.number)
        found = _write(common.corpus, verdict, file)
        if verdict.stays.any():
            common.output.folder.put(file, f"{STATE}/{file.name}")
    return found


def _write(corpus: Corpus, verdict: Verdict, path: Path) -> dict[int, tuple[str, str]]:
    found = {}
    with path.open("wb") as file:
        documents = zip(corpus.documents(verdict.part), verdict.stays.tolist(), strict=True)
        for number, ((text, place), stays) in enumerate(documents):
            if stays:
                file.write(orjson.dumps({"text": text}, option=orjson.OPT_APPEND_NEWLINE))
            if number in verdict.wanted:
                found[number] = (place, text.strip()[:_SHOWN])
    return found
