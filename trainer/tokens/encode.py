"""Text to token files: in one pass and in bounded memory. An interrupted run keeps the inputs that it has finished."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from shared.bpe import Tokenizer
from shared.chat import write_templates
from shared.system.cpu_count import available_processors
from shared.system.files import write_text
from shared.system.stages import Stage, no_stage
from shared.system.thread_pool import WorkPool
from trainer.console.signals import StopRequest, stop_on_signals
from trainer.conversations.messages import FIELDS
from trainer.conversations.template import ChosenTemplate
from trainer.errors import InterruptedRunError, TrainerError, UsageError
from trainer.settings.encode import EncodeSettings
from trainer.text.memory import EncodingMemory
from trainer.text.sources import open_inputs, open_records
from trainer.tokens.conversation_encoder import ConversationEncoder, LengthLimit
from trainer.tokens.encoding_pass import EncodingPass
from trainer.tokens.encoding_state import EncodingState, Finished
from trainer.tokens.parallel_encoder import EncodedChunk, EndOfInput, Findings, ParallelEncoder
from trainer.tokens.token_file import Manifest, TokenFileError, refuse_existing
from trainer.tokens.writer import TokenFileWriter, WriteError, Written

_DEFAULTS = EncodeSettings()


@dataclass(frozen=True)
class EncodingReport:
    """What was written.

    Attributes:
        manifests: By the name of the split.
        bytes_read: Bytes of text.
        replaced: Characters U+FFFD put in place of bytes that are not UTF-8.
        end_is_held_out: Whether the end of the text is for validation, since there were too few documents.
        findings: Of conversations: what was wrong with some of them, how many, and where the first was.
    """

    manifests: Mapping[str, Manifest]
    bytes_read: int
    replaced: int
    end_is_held_out: bool = False
    findings: Findings = field(default_factory=dict)


def encode_files(
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    output: Path,
    settings: EncodeSettings = _DEFAULTS,
    *,
    template: ChosenTemplate | None = None,
    stage: Stage = no_stage,
    progress: Callable[[int], None] | None = None,
) -> EncodingReport:
    """Encode text into OUTPUT/SPLIT.bin and OUTPUT/SPLIT.json, with the tokenizer saved beside them.

    A document of a text is what lies between two separators, or between a separator and an edge of its file; after the
    last separator of a file there is none, unless text other than white space follows. A record of JSON lines or
    parquet is a document, and nothing in it is special. Each is followed by exactly one end-of-text id; white space
    after the last separator of a file is kept, without such an id. So decoding gives text files back byte for byte,
    one after the other, with a separator added where a file, or what is left of it for training, ends in a document.

    The result is the same whatever the number of threads, and however often the run was interrupted. SIGINT, SIGTERM, a
    full disk and a killed process leave the directory OUTPUT/encode-state-SPLIT, from which `resume` continues after
    the last input that was finished when the state was saved, every few seconds. Standard input and pipes can be read
    only once, so that nothing is kept where they are among the inputs.

    Args:
        paths: As in `open_inputs`; read in order, and never as a whole.
        tokenizer: The tokenizer.
        output: The directory to write to; made if missing.
        settings: What is written, and how text is read.
        template: The chat template; of conversations only.
        stage: Called for each stage of the work, from any thread.
        progress: Called with the bytes of text read so far.

    Raises:
        UsageError: If the settings do not fit the tokenizer or the inputs.
        CorpusError: If an input cannot be read as UTF-8, or a part of it does not fit into the memory.
        TokenFileError: If a token file exists already, or one that is asked for would be empty.
        StateError: If there is nothing to resume, or it is of another run.
        InterruptedRunError: If a signal stopped it.
    """
    ends = end_of_text_id(tokenizer, settings.document_separator)
    inputs = open_inputs(paths, text_field=settings.text_field) if template is None else open_records(paths, FIELDS)
    threads = settings.threads or available_processors()
    with stage("load tokenizer"):
        tokenizer.warm_up()  # so that what the encoder takes is counted
    memory = EncodingMemory(settings.memory_bytes, threads)
    encoder: ParallelEncoder | ConversationEncoder
    if template is None:
        encoder = ParallelEncoder(tokenizer, settings.document_separator, ends, settings.errors, memory, threads, stage)
    else:
        limit = LengthLimit(settings.context_length, cut=settings.too_long == "cut")
        encoder = ConversationEncoder(
            tokenizer, template.file, ends, limit, memory=memory, threads=threads, stage=stage
        )
    chat_template = None if template is None else template.sha256
    state = EncodingState(output, inputs, tokenizer, settings, chat_template)
    finished, written = _begin(state, tokenizer, output, settings)
    with ExitStack() as stack:
        pool = stack.enter_context(WorkPool(2))
        files = pool.submit(partial(_files_of, tokenizer), at_once=True)
        stop = stack.enter_context(stop_on_signals())
        stack.enter_context(state.folder.locked())
        stack.enter_context(_kept_for_resume(state))
        if not settings.resume:
            state.clear()
        writers = [
            TokenFileWriter(
                output / f"{name}.bin",
                tokenizer,
                ends,
                partial=state.partial(name),
                written=before,
                chat_template=chat_template,
            )
            for name, before in zip(settings.splits, written, strict=True)
        ]
        for writer in writers:
            stack.enter_context(writer)
        work = EncodingPass(inputs, writers, tokenizer, settings, state, finished=finished, stage=stage)
        with closing(encoder.encode(inputs[len(finished.sources) :])) as chunks:
            _take_all(work, chunks, stop, progress)
        work.finish()
        _check_not_empty(writers, finished)
        with stage("save"):
            for name, content in pool.result(files).items():
                write_text(output / name, content)
            if template is not None:
                write_templates(output, template.file.templates)
        manifests = dict(zip(settings.splits, work.commit(), strict=True))
        state.remove()
    return EncodingReport(
        manifests, finished.bytes_read, finished.replaced, finished.end_is_held_out, finished.findings
    )


def _files_of(tokenizer: Tokenizer) -> Mapping[str, str]:
    """What is saved of a tokenizer, which keeps its fingerprint too: Python works a while, but beside encoding."""
    assert tokenizer.fingerprint
    return tokenizer.files()


def _begin(
    state: EncodingState, tokenizer: Tokenizer, output: Path, settings: EncodeSettings
) -> tuple[Finished, Sequence[Written | None]]:
    """What a run that is resumed has done; nothing for a new one, if no other files are in its way."""
    finished = Finished()
    written: Sequence[Written | None] = [None] * len(settings.splits)
    if settings.resume:
        if not state.is_repeatable:
            raise UsageError(
                "standard input and pipes can be read only once: there is nothing to resume; write the text to a file"
            )
        finished, written = state.load()
    elif state.exists and not settings.overwrite:
        raise TokenFileError(
            f"{state.folder.path} contains the work of an interrupted run; continue it with --resume, or start again "
            "with --overwrite"
        )
    if not settings.overwrite:
        refuse_existing(output, settings.splits)
        refuse_other_tokenizer(tokenizer, output)
    return finished, written


def _take_all(
    work: EncodingPass,
    chunks: Iterator[EncodedChunk | EndOfInput],
    stop: StopRequest,
    progress: Callable[[int], None] | None,
) -> None:
    for item in chunks:
        if stop.signal_number is not None:
            raise InterruptedRunError(f"stopped after {work.finished.bytes_read:,} bytes of text", stop.signal_number)
        work.take(item)
        if progress is not None:
            progress(work.finished.bytes_read)


@contextmanager
def _kept_for_resume(state: EncodingState) -> Iterator[None]:
    """Keep finished inputs after an interruption and on a full disk, and say so; delete everything after an error."""
    try:
        yield
    except InterruptedRunError as error:
        raise InterruptedRunError(f"{error}; {_what_is_kept(state)}", error.signal_number) from None
    except WriteError as error:
        raise WriteError(f"{error}; {_what_is_kept(state)}") from None
    except Exception:
        state.remove()
        raise


def _what_is_kept(state: EncodingState) -> str:
    """How to continue; deletes what cannot be continued."""
    if state.exists:
        finished, _ = state.load()
        return (
            f"{len(finished.sources)} of {state.num_inputs} inputs are finished and kept in {state.folder.path}: "
            "continue with the same command and --resume"
        )
    state.remove()
    if not state.is_repeatable:
        return "nothing is kept, since standard input and pipes can be read only once"
    return "no input was finished: run the same command again"


def end_of_text_id(tokenizer: Tokenizer, separator: str | None) -> int:
    """The id after each document.

    Raises:
        UsageError: The tokenizer has none, or not the one that is asked for.
    """
    known = ", ".join(map(repr, tokenizer.special_tokens)) or "none"
    if separator is None:
        if tokenizer.end_of_text_id is None:
            raise UsageError(
                f"the tokenizer has no end-of-text token to put after each file; its special tokens: {known}"
            )
        return tokenizer.end_of_text_id
    if separator not in tokenizer.special_tokens:
        raise UsageError(
            f"the separator {separator!r} is not a special token of the tokenizer (it has: {known}); train a tokenizer "
            "with it, or encode with --no-separator"
        )
    return tokenizer.special_tokens[separator]


def refuse_other_tokenizer(tokenizer: Tokenizer, output: Path) -> None:
    """Raise a TokenFileError if a directory contains another tokenizer."""
    if not (output / "tokenizer.json").exists():
        return
    other = Tokenizer.from_files(output).fingerprint
    if other != tokenizer.fingerprint:
        raise TokenFileError(
            f"{output} contains another tokenizer, with fingerprint {other}; the given one has "
            f"{tokenizer.fingerprint}; choose another --output, or replace it with --overwrite"
        )


def _check_not_empty(writers: Sequence[TokenFileWriter], finished: Finished) -> None:
    if not sum(writer.documents for writer in writers):
        if finished.findings:
            found = "; ".join(f"{count:,}: {kind} ({first})" for kind, (count, first) in finished.findings.items())
            raise TrainerError(f"no conversation can be trained on: {found}")
        raise TrainerError("the files contain no text: there is nothing to encode")
    for writer in writers:
        if not writer.documents:
            raise TrainerError(
                f"the text is too short to hold out a part of it: {writer.path.name} would be empty; give more text, "
                "or encode a validation text of its own with --split val instead of --val-fraction"
            )
