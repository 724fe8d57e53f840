"""Text to token files: in one pass, in bounded memory, and going on after an interruption."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.bpe import Tokenizer
from shared.bpe.training import Errors
from shared.system.cpu_count import available_processors
from trainer.console.signals import StopRequest, stop_on_signals
from trainer.errors import InterruptedRunError, TrainerError, UsageError
from trainer.text.memory import EncodingMemory
from trainer.text.sources import Input, open_inputs
from trainer.tokens.encoding_pass import EncodingRun
from trainer.tokens.encoding_state import EncodingState, Position, identity_of
from trainer.tokens.encoding_units import EndOfSource, Unit, UnitEncoder
from trainer.tokens.token_file import Manifest, TokenFileError, refuse_existing
from trainer.tokens.writer import NoRoomError, TokenFileWriter, Written

TRAIN, VALIDATION = "train", "val"


@dataclass(frozen=True)
class EncodingReport:
    """What was written.

    Attributes:
        manifests: By the name of the split.
        bytes_read: Of text.
        replaced: Characters U+FFFD put in place of bytes that are not UTF-8.
        end_is_held_out: Whether the end of the text is for validation, since there were too few documents.
    """

    manifests: Mapping[str, Manifest]
    bytes_read: int
    replaced: int
    end_is_held_out: bool = False


def encode_files(
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    output: Path,
    *,
    separator: str | None = "<|endoftext|>",
    split: str = TRAIN,
    val_fraction: float | None = None,
    seed: int = 0,
    text_field: str = "text",
    errors: Errors = "strict",
    threads: int | None = None,
    memory_limit: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[int], None] | None = None,
) -> EncodingReport:
    """Encode text into OUTPUT/SPLIT.bin and OUTPUT/SPLIT.json, with the tokenizer saved beside them.

    A document of a text is what lies between two separators, or between a separator and an edge of its file; after the
    last separator of a file there is none, unless text other than white space follows. A record of JSON lines or
    parquet is a document, and nothing in it is special. Each is followed by exactly one end-of-text id; white space
    behind the last separator of a file is kept, without such an id. So decoding gives text files back byte for byte,
    one after the other, with a separator added where a file, or what is left of it for training, ends in a document.

    The result is the same whatever the number of threads, and however often the run was interrupted: SIGINT, SIGTERM
    and a full disk leave the folder OUTPUT/encode-state-SPLIT, from which `resume` goes on, and so does a process that
    is killed. Standard input and pipes can be read only once, so nothing goes on with them.

    Args:
        paths: As in `open_inputs`; read in order, and never as a whole.
        tokenizer: The tokenizer.
        output: The folder to write to; made if missing.
        separator: A special token of the tokenizer. With None every text is one document, and nothing in it is special.
        split: The name of the token file.
        val_fraction: Between 0 and 1: send about this share of the documents to OUTPUT/val, the rest to OUTPUT/train.
            Which ones depends on their number and the seed alone; the first is always for training. Where none falls
            to OUTPUT/val, since there are few, the end of the text goes there: see `place_to_cut`.
        seed: For the choice of validation documents.
        text_field: Of JSON lines and parquet files.
        errors: Whether bytes that are not UTF-8 are an error or become U+FFFD.
        threads: As many as there are processors by default.
        memory_limit: Bytes of memory that the process may hold; half of the machine's by default. Text that can be cut
            nowhere, and records, may have about a hundredth of it: see `EncodingMemory`.
        overwrite: Replace token files that exist, and what an interrupted run left.
        resume: Go on from what an interrupted run left.
        progress: Called with the bytes of text read so far.

    Raises:
        UsageError: If the settings do not fit together; raised before any file is read.
        CorpusError: If an input cannot be read as UTF-8, or a part of it does not fit into the memory.
        TokenFileError: If a token file is in the way, or one that is asked for would be empty.
        StateError: If there is nothing to resume, or it is of another run.
        InterruptedRunError: If a signal stopped it.
    """
    names = (split,) if val_fraction is None else (TRAIN, VALIDATION)
    _check_settings(split, val_fraction, threads)
    end_of_text_id = _end_of_text_id(tokenizer, separator)
    inputs = open_inputs(paths, text_field=text_field)
    threads = threads or available_processors()
    # Here the encoder is made once, and not by every thread, and before what it takes is counted.
    tokenizer.warm_up()
    memory = EncodingMemory(memory_limit, threads)
    validation = (val_fraction or 0.0, seed)
    identity = identity_of(
        inputs, tokenizer, separator=separator, validation=[*validation], text_field=text_field, errors=errors
    )
    state = EncodingState(output, names[0], identity)
    position = Position()
    written: Sequence[Written | None] = [None] * len(names)
    if resume:
        _check_repeatable(inputs)
        position, written, overwrite = state.load(inputs)
    else:
        _refuse_unfinished(state, overwrite=overwrite)
        refuse_existing(output, names, overwrite=overwrite)
    _refuse_other_tokenizer(tokenizer, output, overwrite=overwrite)
    with ExitStack() as stack:
        stop = stack.enter_context(stop_on_signals())
        stack.enter_context(state.folder.locked())
        stack.enter_context(_left_to_go_on(state))
        if not resume:
            state.clear()
        writers = [
            stack.enter_context(TokenFileWriter(path, tokenizer, end_of_text_id, partial=partial, written=before))
            for path, partial, before in zip(
                (output / f"{name}.bin" for name in names), map(state.partial, names), written, strict=True
            )
        ]
        run = EncodingRun(
            inputs, writers, tokenizer, end_of_text_id, validation, position=position, state=state, overwrite=overwrite
        )
        units = UnitEncoder(tokenizer, separator, end_of_text_id, errors, memory).units(
            inputs, threads, position.source, position.offset
        )
        with closing(units):
            _encode(run, units, stop, progress)
        run.finish()
        _check_not_empty(writers)
        tokenizer.save(output)
        manifests = dict(zip(names, run.commit(), strict=True))
        state.remove()
    return EncodingReport(
        manifests, run.position.bytes_read, run.position.replaced, end_is_held_out=run.position.end_is_held_out
    )


def _encode(
    run: EncodingRun,
    units: Iterator[Unit | EndOfSource],
    stop: StopRequest,
    progress: Callable[[int], None] | None,
) -> None:
    run.save()
    for item in units:
        if stop:
            break
        run.take(item)
        if progress is not None:
            progress(run.position.bytes_read)
    if stop.signal_number is not None:
        can_go_on = run.save()
        raise InterruptedRunError(
            f"stopped after {run.position.bytes_read:,} bytes of text; "
            + (
                "go on with the same command and --resume"
                if can_go_on
                else "nothing is left of it, since standard input and pipes can be read only once"
            ),
            stop.signal_number,
        )


@contextmanager
def _left_to_go_on(state: EncodingState) -> Iterator[None]:
    """Delete what is there but for when it is worth something: after an interruption, and on a full disk."""
    try:
        yield
    except InterruptedRunError:
        if not state.folder.manifest.exists():
            state.remove()
        raise
    except NoRoomError as error:
        if not state.folder.manifest.exists():
            state.remove()
            raise
        raise NoRoomError(
            f"{error}; make room and go on with the same command and --resume ({state.folder.path} keeps what was done)"
        ) from None
    except Exception:
        state.remove()
        raise


def _check_settings(split: str, val_fraction: float | None, threads: int | None) -> None:
    if threads is not None and threads < 1:
        raise UsageError(f"the number of threads is {threads}; it must be 1 or more")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", split):
        raise UsageError(f"the split must be a name of letters, digits, - and _, such as {TRAIN!r}, not {split!r}")
    if val_fraction is None:
        return
    if not 0.0 < val_fraction < 1.0:
        raise UsageError(f"the validation fraction must lie between 0 and 1, not {val_fraction}")
    if split != TRAIN:
        raise UsageError(f"a validation fraction writes {TRAIN!r} and {VALIDATION!r}; it goes with no split {split!r}")


def _end_of_text_id(tokenizer: Tokenizer, separator: str | None) -> int:
    known = ", ".join(map(repr, tokenizer.special_tokens)) or "none"
    if separator is None:
        if tokenizer.end_of_text_id is None:
            raise UsageError(
                f"the tokenizer has no end-of-text token to put after each file; its special tokens: {known}"
            )
        return tokenizer.end_of_text_id
    if separator not in tokenizer.special_tokens:
        raise UsageError(
            f"the separator {separator!r} is no special token of the tokenizer, which has: {known}; learn a vocabulary "
            "with it, or encode without a separator"
        )
    return tokenizer.special_tokens[separator]


def _check_repeatable(inputs: Sequence[Input]) -> None:
    for given in inputs:
        if given.content.version is None:
            raise UsageError(f"{given.content.name} can be read only once: nothing can be resumed; write it to a file")


def _refuse_unfinished(state: EncodingState, *, overwrite: bool) -> None:
    if state.folder.manifest.exists() and not overwrite:
        raise TokenFileError(
            f"{state.folder.path} holds what an interrupted run left; go on from there with --resume, or start anew "
            "with --overwrite"
        )


def _refuse_other_tokenizer(tokenizer: Tokenizer, output: Path, *, overwrite: bool) -> None:
    if overwrite or not (output / "tokenizer.json").exists():
        return
    other = Tokenizer.from_files(output).fingerprint
    if other != tokenizer.fingerprint:
        raise TokenFileError(
            f"{output} holds another tokenizer, with the fingerprint {other}; that of the one given is "
            f"{tokenizer.fingerprint}; choose another --output, or replace it with --overwrite"
        )


def _check_not_empty(writers: Sequence[TokenFileWriter]) -> None:
    if not sum(writer.documents for writer in writers):
        raise TrainerError("the files hold no text: there is nothing to encode")
    for writer in writers:
        if not writer.documents:
            raise TrainerError(
                f"the text is too short to hold out a part of it: nothing is left for {writer.path.name}; give more "
                "text, or encode a validation text of its own with --split val instead of --val-fraction"
            )
