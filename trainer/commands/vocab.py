"""`vocab`: text to a tokenizer."""

import logging
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

logger = logging.getLogger(__name__)


def vocab(
    files: list[Path],
    *,
    vocab_size: int,
    output: Path,
    special_token: Annotated[tuple[str, ...], Parameter(negative="--no-special-token")] = ("<|endoftext|>",),
    pattern: str = "gpt2",
    overwrite: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Learn a byte-level BPE vocabulary from text files.

    Any text can be encoded with any vocabulary; a vocabulary learnt from text like yours needs fewer tokens for it.

    Args:
        files: UTF-8 text files.
        vocab_size: Tokens wanted, the 256 bytes and the special tokens included. 1,024 suits a toy language, 4,096 to
            8,192 a model of some million parameters on simple text, 32,768 one of 100 million on everything. More means
            fewer tokens a text, and a larger embedding.
        output: Folder for the tokenizer.
        special_token: A token with a meaning of its own, never part of a text; give the option once for each. Keep
            `<|endoftext|>`, which ends documents.
        pattern: How text is cut before pairs are counted: `gpt2`, `cl100k`, `o200k`, `llama3`, `qwen`, or a regular
            expression. `gpt2` is right for English; `o200k` keeps more languages and long numbers in good shape.
        overwrite: Replace a tokenizer that is in the output folder.
    """
    from trainer.corpus import total_bytes
    from trainer.progress import progress
    from trainer.vocabulary import learn_vocabulary

    begin = time.monotonic()
    with progress() as new_bar:
        reading = new_bar("reading", total_bytes(files))
        merging = new_bar("merging", max(0, vocab_size - 256 - len(special_token)))
        report = learn_vocabulary(
            files,
            output,
            vocab_size=vocab_size,
            special_tokens=special_token,
            pattern=pattern,
            overwrite=overwrite,
            progress=reading,
            merge_progress=lambda done, _: merging(done),
        )
    if report.reached_size < report.requested_size:
        logger.warning(
            "the text has too few pairs for %s tokens: stopped at %s",
            f"{report.requested_size:,}",
            f"{report.reached_size:,}",
        )
    logger.info(
        "%s: %s tokens, the longest %r, %.2f bytes for each token of this text; %.1f s",
        *(output, f"{report.reached_size:,}", report.longest_token.decode(errors="replace"), report.bytes_per_token),
        time.monotonic() - begin,
    )
