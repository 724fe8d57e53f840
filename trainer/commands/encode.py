"""`encode`: text to token files."""

import logging
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shared.system.stages import no_stage
from trainer.errors import UsageError
from trainer.settings.encode import EncodeSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.bpe import Tokenizer
    from trainer.tokens.token_file import Manifest

logger = logging.getLogger(__name__)

_DEFAULTS = EncodeSettings()


def encode(
    files: list[Path] | None = None,
    *,
    tokenizer: Path,
    extend_tokens: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    output: Path | None = None,
    manifest_for: Path | None = None,
    dtype: str | None = None,
    settings: EncodeSettings = _DEFAULTS,
    profile: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Encode text files into the token files that `train` reads.

    The tokenizer is saved beside them, so that the output directory is all that `train` needs. If the command is
    interrupted, the same command continues: what is finished is checked and kept.

    Args:
        files: UTF-8 text files, plain or compressed as .gz or .zst; .jsonl and .parquet files, each record of which is
            a document; directories of these; globs in quotes; or - for standard input. Read in order.
        tokenizer: Directory that `vocab` wrote, a model folder, or a tokenizer.json from elsewhere.
        extend_tokens: A special token to add to it, with the id after its last, for `train --init` with the same
            option; repeat it for more.
        output: Directory for the token files.
        manifest_for: Instead of text: an array of token ids that another program wrote, as .npy (np.save) or flat .bin
            (np.memmap, tofile). Its ids are checked against the tokenizer, and its documents counted by their
            end-of-text id. Without --output the manifest is written beside the file, which then must be named SPLIT.bin
            and have our type; with it the ids are written to OUTPUT/SPLIT.bin.
        dtype: Type of the numbers in a flat array: uint16, uint32, int32, int64; >u2 and so on with swapped bytes.
        settings: What is written, and how text is read. The separator must be a special token of the tokenizer. With
            --chat the files are conversations: .jsonl or .parquet.
        profile: Write where time and memory went to profile.txt and profile.json in the output directory.
    """
    from trainer.components.extension import open_tokenizer
    from trainer.storage.cache import local_copy
    from trainer.storage.remote import url_of

    tokenizer = local_copy(tokenizer)
    load = partial(open_tokenizer, tokenizer, extend_tokens)
    if manifest_for is not None:
        if settings.chat:
            raise UsageError("--manifest-for takes ids as they are; --chat is for files of conversations")
        if files:
            raise UsageError("--manifest-for takes an array instead of text files; give one or the other")
        _adopt(manifest_for, dtype, load, output, settings, profile=profile)
        return
    if dtype is not None:
        raise UsageError("--dtype is for an array of token ids that is named with --manifest-for")
    if output is None:
        raise UsageError("name the directory for the token files with --output")
    if profile and url_of(output) is not None:
        raise UsageError("--profile writes beside the token files, which must be on this machine then")
    _encode(files or [], tokenizer, load, output, settings, profile=profile)


def _encode(
    files: list[Path],
    tokenizer: Path,
    load: "Callable[[], Tokenizer]",
    output: Path,
    settings: EncodeSettings,
    *,
    profile: bool,
) -> None:
    from trainer.console.progress import progress
    from trainer.conversations.template import choose_template
    from trainer.runs.profile import Profile
    from trainer.storage.remote import display_path
    from trainer.text.sources import total_size
    from trainer.tokens.encode import encode_files

    begin = time.monotonic()
    measured = Profile("encode", "bytes") if profile else None
    stage = measured.stage if measured else no_stage
    with progress() as new_bar:
        bar = new_bar("encoding", total_size(files))
        with stage("load tokenizer"):
            opened = load()
        template = choose_template(settings.chat_template, tokenizer, opened) if settings.chat else None
        if template is not None:
            logger.info("chat template: %s", template.source)
        report = encode_files(files, opened, output, settings, template=template, stage=stage, progress=bar)
    if measured:
        logger.info("%s", measured.write(output, report.bytes_read))
    if report.parts_kept:
        logger.info("%s parts of the text were encoded by an earlier run: checked and kept", f"{report.parts_kept:,}")
    for name, manifest in report.manifests.items():
        _log(display_path(output / f"{name}.json"), manifest)
    if report.end_is_held_out:
        logger.info(
            "too few documents to hold out whole ones (choose differently with --seed): %s is the end of the text, cut "
            "at a line break where there is one nearby",
            display_path(output / "val.json"),
        )
    for kind, (count, first) in report.findings.items():
        logger.warning("conversations: %s: %s (the first: %s)", f"{count:,}", kind, first)
    if report.replaced:
        logger.warning("%s U+FFFD characters replace bytes that are not UTF-8", f"{report.replaced:,}")
    logger.info("%s bytes in %.1f s", f"{report.bytes_read:,}", time.monotonic() - begin)


def _adopt(
    path: Path,
    dtype: str | None,
    load: "Callable[[], Tokenizer]",
    output: Path | None,
    settings: EncodeSettings,
    *,
    profile: bool,
) -> None:
    from trainer.console.progress import progress
    from trainer.runs.profile import Profile
    from trainer.storage.remote import display_path
    from trainer.tokens.adoption import adopt_array
    from trainer.tokens.token_array import TokenArray

    measured = Profile("encode --manifest-for", "bytes") if profile else None
    stage = measured.stage if measured else no_stage
    array = TokenArray.open(path, dtype)
    with progress() as new_bar:
        bar = new_bar("checking", array.count)
        with stage("load tokenizer"):
            opened = load()
        manifest = adopt_array(array, opened, output, settings, stage=stage, progress=bar)
    folder = path.parent if output is None else output
    if measured:
        logger.info("%s", measured.write(folder, array.count * array.dtype.itemsize))
    _log(display_path(folder / f"{settings.split}.json"), manifest)
    if not manifest.documents:
        logger.warning("no id is the end-of-text id %s: all of it counts as one open document", manifest.end_of_text_id)


def _log(path: str, manifest: "Manifest") -> None:
    logger.info(
        "%s: %s tokens in %s documents%s, %.2f bytes per token",
        path,
        f"{manifest.count:,}",
        f"{manifest.documents:,}",
        f" and {len(manifest.shards):,} shards" if len(manifest.shards) > 1 else "",
        manifest.bytes / manifest.count,
    )
    if manifest.has_mask:
        share = 100 * manifest.counted / manifest.count
        logger.info("the loss counts %s of them, %.1f%%: the answers", f"{manifest.counted:,}", share)
