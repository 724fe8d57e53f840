"""Text to token files, in one pass and in bounded memory. The same command continues an interrupted one."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from shared.bpe import Tokenizer
from shared.chat import write_templates
from shared.system.stages import Stage, no_stage
from trainer.cluster.ray_cluster import check_ray
from trainer.console.signals import stop_on_signals
from trainer.conversations.template import ChosenTemplate
from trainer.errors import InterruptedRunError
from trainer.settings.encode import VALIDATION, EncodeSettings
from trainer.storage.folder import StorageError
from trainer.storage.remote_folder import open_folder
from trainer.tokens.assembly import assemble, check_not_empty
from trainer.tokens.cluster_encoder import encode_parts_on_cluster
from trainer.tokens.encoded_chunk import Findings
from trainer.tokens.job import EncodingJob
from trainer.tokens.manifest import Manifest, TokenFileError
from trainer.tokens.output import Output, Records
from trainer.tokens.part_encoder import EncodingCallbacks, encode_parts
from trainer.tokens.part_writer import add_findings
from trainer.tokens.shard_writer import Target
from trainer.tokens.validation_end import hold_out_end

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
        parts_kept: Parts of the text that an earlier run had encoded.
    """

    manifests: Mapping[str, Manifest]
    bytes_read: int
    replaced: int
    end_is_held_out: bool = False
    findings: Findings = field(default_factory=dict)
    parts_kept: int = 0


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
    """Encode text into shards OUTPUT/SPLIT-00000.bin, ... and OUTPUT/SPLIT.json, with the tokenizer saved beside them.

    A document of a text is what lies between two separators, or between a separator and an edge of its file; after the
    last separator of a file there is none, unless text other than white space follows. A record of JSON lines or
    parquet is a document, and nothing in it is special. Each is followed by exactly one end-of-text id; white space
    after the last separator of a file is kept, without such an id. So decoding gives text files back byte for byte,
    one after the other, with a separator added where a file, or what is left of it for training, ends in a document.

    The result is the same for any number of threads, and however often the run was interrupted. The text is
    encoded in parts, and what SIGINT, SIGTERM, a full disk, an error or a killed process leaves of finished ones is
    compared with its hashes and kept by the same call. Standard input and pipes can be read only once, so that nothing
    is kept where they are among the inputs.

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
        TokenFileError: If other token files exist already, or one that is asked for would be empty.
        StorageError: If the output cannot be written.
        InterruptedRunError: If a signal stopped it.
    """
    if settings.ray is not None:
        check_ray()
    job = EncodingJob.open(paths, tokenizer, settings, template)
    out = Output(open_folder(output), settings.splits)
    with stage("load tokenizer"):
        tokenizer.warm_up()  # so that what the encoder takes is counted
    run = _Run(job, out, EncodingCallbacks(stage, progress or (lambda _: None)))
    if (finished := run.finished_before()) is not None:
        return finished
    with stop_on_signals() as run.callbacks.stop, out.scratch() as scratch:
        files = run.begin()  # if this fails, what is in the folder stays as it is
        with run.errors_name_what_is_kept():
            return run.encode(job.target(out.folder, scratch), files)


class _Run:
    """One call: what is finished, and how far it has come."""

    def __init__(self, job: EncodingJob, out: Output, callbacks: EncodingCallbacks) -> None:
        self.callbacks = callbacks
        self._job = job
        self._out = out
        self._records: Records = {}
        self._kept: Records = {}

    def finished_before(self) -> EncodingReport | None:
        """The report of a run that finished, if this one would do the same; else notes what can be kept of another.

        Raises:
            TokenFileError: Token files of something else are in the way.
        """
        job, out = self._job, self._out
        if job.settings.overwrite:
            return None
        unfinished = out.unfinished()
        if unfinished is not None:
            self._check_same(unfinished)
        manifests = {name: found for name in out.splits if (found := out.manifest(name)) is not None}
        if len(manifests) == len(out.splits) and self._is_of_this_job(manifests[out.splits[0]]):
            self._kept = out.from_manifests([*manifests.values()])
            is_held_out = manifests[out.splits[0]].end_is_held_out
            shards = [shard for manifest in manifests.values() for shard in manifest.shards]
            if len(self._kept) == len(job.parts) and (not is_held_out or out.are_intact(shards)):
                self._records = self._kept
                with out.scratch():  # it was killed in its last moments
                    out.forget()
                return self._report(manifests)
            if is_held_out:  # shards that were divided again
                self._kept = {}
        elif unfinished is None:
            out.refuse_existing()
        if unfinished is not None:
            parts = len(job.parts)
            self._kept |= {n: r for n, r in out.load().items() if n < parts and r.key == job.key(n)}
        out.refuse_other_tokenizer(job.tokenizer)
        self._records = dict(self._kept)
        return None

    def begin(self) -> Mapping[str, bytes]:
        """Save the identity of the run, before any shard appears, and the records of kept parts again.

        Returns:
            What is saved of tokenizer and chat template, by the names of the files.

        Raises:
            TokenizerError: tokenizer.json has no form for the tokenizer.
            StorageError: The output cannot be written.
        """
        job, out = self._job, self._out
        files = {**job.tokenizer.files(), **template_files(job.template)}
        if job.settings.overwrite:
            out.forget()
        if job.is_repeatable:
            out.begin(job.identity)
            for number, record in self._kept.items():
                out.save(number, record)
        return files

    def encode(self, target: Target, files: Mapping[str, bytes]) -> EncodingReport:
        """Encode what is not finished, and write these files and the manifests."""
        job, out, stage = self._job, self._out, self.callbacks.stage
        encode = encode_parts if job.settings.ray is None else encode_parts_on_cluster
        out.drop(keep=[shard for record in self._kept.values() for shard in record.all_shards])
        # A part that is encoded again may have another number of documents, and so move those behind it.
        while missing := self._missing():
            for number, record in encode(job, missing, self._records, target, self.callbacks):
                self._records[number] = record
                if self._keeps:
                    out.save(number, record)
        with stage("save"):
            manifests = assemble(job, [self._records[number] for number in range(len(job.parts))])
            if len(manifests) == 2 and not manifests[VALIDATION].documents and job.template is None:
                with stage("hold out the end"):
                    manifests = hold_out_end(job, manifests, target)
            check_not_empty(manifests, self._report({}).findings)
            for name, content in files.items():
                out.folder.write(name, content)
            out.commit(manifests)
            out.forget()
        return self._report(manifests)

    @contextmanager
    def errors_name_what_is_kept(self) -> Iterator[None]:
        """Add to errors what is kept; where that is nothing, delete it."""
        try:
            yield
        except Exception as error:
            kept = len(self._records) if self._keeps else 0
            if not kept:
                with suppress(Exception):
                    self._out.remove_parts(len(self._job.parts))
                    self._out.forget()
            if isinstance(error, InterruptedRunError):
                raise InterruptedRunError(f"{error}; {self._what_is_kept(kept)}", error.signal_number) from None
            if isinstance(error, StorageError):
                raise StorageError(f"{error}; {self._what_is_kept(kept)}") from None
            raise

    @property
    def _keeps(self) -> bool:
        """Whether finished parts are saved."""
        return self._job.is_repeatable and len(self._job.parts) > 1

    def _missing(self) -> list[int]:
        """Parts that have not been encoded, or have been with another number of their first document."""
        missing: list[int] = []
        first: int | None = 0 if len(self._out.splits) > 1 else None
        for number in range(len(self._job.parts)):
            record = self._records.get(number)
            if record is None or (first is not None and record.first_document != first):
                missing.append(number)
                first = None  # until the part has been encoded
            elif first is not None:
                first += record.documents
        return missing

    def _is_of_this_job(self, manifest: Manifest) -> bool:
        if not self._job.is_repeatable or len(manifest.parts) != len(self._job.parts):
            return False
        return all(part.get("key") == self._job.key(number) for number, part in enumerate(manifest.parts))

    def _check_same(self, unfinished: Mapping[str, object]) -> None:
        now = self._job.identity
        for name in dict.fromkeys([*unfinished, *now]):
            if unfinished.get(name) != now.get(name):
                raise TokenFileError(
                    f"{self._out.folder.path(self._out.state)} contains the work of an interrupted run with other "
                    f"settings: {name}: {unfinished.get(name)} then, {now.get(name)} now; run it with those, or drop "
                    "it with --overwrite"
                )

    def _report(self, manifests: Mapping[str, Manifest]) -> EncodingReport:
        findings: Findings = {}
        for _, record in sorted(self._records.items()):
            add_findings(findings, record.findings)
        return EncodingReport(
            manifests,
            sum(record.bytes_read for record in self._records.values()),
            sum(record.replaced for record in self._records.values()),
            any(manifest.end_is_held_out for manifest in manifests.values()),
            findings,
            len(self._kept),
        )

    def _what_is_kept(self, kept: int) -> str:
        if kept:
            again = "the command without --overwrite" if self._job.settings.overwrite else "the same command again"
            return (
                f"{kept} of {len(self._job.parts)} parts of the text are finished and kept in {self._out.folder}: run "
                f"{again} to continue"
            )
        if not self._job.is_repeatable:
            return "nothing is kept, since standard input and pipes can be read only once"
        return "no part of the text was finished: run the same command again"


def template_files(template: ChosenTemplate | None) -> Mapping[str, bytes]:
    """What is saved of a chat template, by the names of the files."""
    if template is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        write_templates(Path(folder), template.file.templates)
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
