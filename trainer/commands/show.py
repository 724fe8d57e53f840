"""`show`: what a model will see of token files, and what of it the loss counts."""

import logging
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trainer.errors import UsageError

logger = logging.getLogger(__name__)


def show(
    tokens: Path,
    *,
    documents: Annotated[int, Parameter(negative="")] = 3,
    start: int = 0,
    most_tokens: int = 4096,
    tokenizer: Path | None = None,
) -> None:
    """Show documents of a token file as a model is trained on them: tokens excluded from the loss are dimmed.

    On a terminal special tokens are bold, and documents follow each other as they are. Where there is no color, as in a
    pipe or with NO_COLOR, every part has a line of its own, escaped: `+` before those that the loss counts, `-` before
    the others. In a file without a mask all tokens count.

    Args:
        tokens: Token files, such as tokens/train.json; or the folder, for its train.json.
        documents: How many are shown.
        start: The first of them, counted from 0.
        most_tokens: How many tokens of a document are shown at most.
        tokenizer: Default: the one beside the token file.
    """
    from shared.bpe import Tokenizer
    from trainer.console.masked_text import print_document
    from trainer.storage.cache import local_copy
    from trainer.storage.remote import display_path, local_path, url_of
    from trainer.tokenizer.comparison import open_tokenizer
    from trainer.tokens.inspection import documents_of_file
    from trainer.tokens.token_file import TokenFile, is_token_file

    if min(documents, most_tokens) < 1 or start < 0:
        got = f"{documents}, {most_tokens} and {start}"
        raise UsageError(f"--documents and --most-tokens must be at least 1, and --start at least 0; got {got}")
    tokens = local_path(tokens)
    is_folder = tokens.is_dir() or (url_of(tokens) is not None and not is_token_file(tokens))
    path = tokens / "train.json" if is_folder else tokens
    if not is_token_file(path):
        raise UsageError(f"{path} is not the manifest of token files, NAME.json; `tokens` shows those of a text")
    opened = Tokenizer.from_files(local_copy(path.parent)) if tokenizer is None else open_tokenizer(tokenizer)
    file = TokenFile.open_path(path, fingerprint=opened.fingerprint)
    for document in documents_of_file(file, opened, start, documents, most_tokens):
        print_document(document)
    manifest = file.manifest
    counted = "all: there is no mask" if not manifest.has_mask else f"{manifest.counted:,}"
    sizes = f"{manifest.documents:,}", f"{manifest.count:,}"
    logger.info("%s: %s documents, %s tokens, of which the loss counts %s", display_path(path), *sizes, counted)
