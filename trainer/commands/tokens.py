"""`tokens`: what a text or a token file is made of."""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import TrainerError, UsageError
from trainer.settings.inspection import InspectionSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer.console.token_lines import ShownToken

logger = logging.getLogger(__name__)

_DEFAULTS = InspectionSettings()


def tokens(source: str, *, tokenizer: Path | None = None, settings: InspectionSettings = _DEFAULTS) -> None:
    r"""Show the tokens of a text, of a text file or of a token file: id, bytes, text, and where each begins.

    The ids of a text are those that `encode` writes for it. Nothing in it controls the terminal: bytes that are not
    UTF-8 by themselves, such as half of a character, are shown as \xNN, and control characters escaped.

    Args:
        source: A text in quotes; a text file or several, as for `encode`; or token files, such as tokens/train.json.
            An argument without spaces that contains a slash or ends in one of these suffixes is read as a file name.
        tokenizer: A tokenizer, as for `evaluate-tokenizers`. Default: the one beside a token file.
        settings: What is shown.
    """
    from itertools import islice

    from trainer.console.token_lines import print_token_json, print_token_table, print_token_text

    is_file = not settings.as_text and _is_name(source)
    start, stop = settings.bounds(is_file=is_file)
    found = _tokens(source, tokenizer, settings, start, is_file=is_file)
    shown = _Counted(found if stop is None else islice(found, stop - start))
    {"table": print_token_table, "text": print_token_text, "json": print_token_json}[settings.show](shown)
    rate = shown.bytes / max(1, shown.tokens)
    name = source if is_file else "the text"
    logger.info("%s: %s tokens, %s bytes, %.2f bytes per token", name, f"{shown.tokens:,}", f"{shown.bytes:,}", rate)
    if stop is not None and settings.window is None and next(found, None) is not None:
        logger.info("more follow: --window START:STOP and --document N show them")


class _Counted:
    """Tokens, counted as they pass; special ones stand for no text."""

    def __init__(self, found: "Iterator[ShownToken]"):
        self._found = found
        self.tokens = 0
        self.bytes = 0

    def __iter__(self) -> "Iterator[ShownToken]":
        for token in self._found:
            self.tokens += 1
            self.bytes += 0 if token.is_special else len(token.data)
            yield token


def _tokens(
    source: str, tokenizer: Path | None, settings: InspectionSettings, start: int, *, is_file: bool
) -> "Iterator[ShownToken]":
    from shared.bpe import Tokenizer
    from shared.bpe.training import Blocks
    from trainer.text.sources import Input, open_inputs
    from trainer.tokenizer.comparison import open_tokenizer
    from trainer.tokens.inspection import tokens_of_file, tokens_of_text
    from trainer.tokens.token_file import TokenFile, is_token_file

    path = Path(source) if is_file else None
    if path is not None and is_token_file(path):
        opened = Tokenizer.from_files(path.parent) if tokenizer is None else open_tokenizer(tokenizer)
        file = TokenFile.open_path(path, fingerprint=opened.fingerprint)
        return tokens_of_file(file, opened, settings.document, start)
    if path is not None and path.suffix == ".npy":
        raise UsageError(f"{path} is an array; make a token file of it first: encode --manifest-for {path}")
    if tokenizer is None:
        raise UsageError("name the tokenizer that a text is encoded with: --tokenizer")
    if path is not None:
        inputs = open_inputs([path], text_field=settings.text_field)
    else:
        data = os.fsencode(source)
        inputs = [Input(Path("text"), Blocks("the text", lambda: iter([data])))]
    return tokens_of_text(inputs, open_tokenizer(tokenizer), settings, settings.document, start)


def _is_name(source: str) -> bool:
    """Whether an argument names a file or several; what only looks like a name is refused."""
    from glob import has_magic

    from trainer.text.sources import expand, is_known
    from trainer.tokens.token_file import is_token_file

    if not source:
        return False
    try:
        if source == "-" or Path(source).exists():
            return True
        with suppress(UsageError):  # no file matches
            if has_magic(source) and expand(Path(source)):
                return True
    except (OSError, ValueError):  # too long for a name, or with a null character
        return False
    if any(map(str.isspace, source)):
        return False
    if "/" in source or is_known(Path(source)) or is_token_file(Path(source)):
        raise TrainerError(f"{source}: there is no such file; to show the tokens of these characters, add --text")
    return False
