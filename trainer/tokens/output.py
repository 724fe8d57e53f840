"""The folder that `encode` writes: token files, and what an unfinished run leaves of them."""

import json
import logging
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from shared.bpe import Tokenizer
from shared.system.files import to_json
from trainer.settings.encode import TRAIN, VALIDATION
from trainer.storage.folder import Folder, StorageError
from trainer.tokens.manifest import Manifest, Shard, TokenFileError, read_manifest
from trainer.tokens.part_record import PartRecord
from trainer.tokens.shard_writer import remove_shards
from trainer.tokens.token_file import mask_file

logger = logging.getLogger(__name__)

_VERSION = 1
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
Records = dict[int, PartRecord]


@dataclass(frozen=True)
class Output:
    """Token files of some splits in a folder, and the records of an unfinished run.

    These are in the folder `encode-state-SPLIT` beside them: job.json with the identity of the run, and a file for each
    part that is finished.

    Attributes:
        folder: The folder.
        splits: The names of the splits.
    """

    folder: Folder
    splits: Sequence[str]

    @property
    def state(self) -> str:
        """The folder of the records, below this one."""
        return f"encode-state-{self.splits[0]}"

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for what is not complete; see `LocalFolder.scratch`."""
        with self.folder.scratch(self.state) as path:
            self.folder.claim(self.state)
            yield path

    def manifest(self, name: str) -> Manifest | None:
        """The manifest of a split, if it is there and can be read."""
        try:
            with self._local(f"{name}.json") as path:
                return read_manifest(path)
        except (TokenFileError, StorageError):
            return None

    def unfinished(self) -> Mapping[str, Any] | None:
        """The identity of the unfinished run that is there; None if there is none."""
        if not self.folder.exists(f"{self.state}/job.json"):
            return None
        try:
            content = json.loads(self.folder.read(f"{self.state}/job.json"))
            if content["version"] == _VERSION:
                return dict(content["identity"])
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        return {}

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Save the identity of the run that the records will belong to."""
        self.folder.write(f"{self.state}/job.json", to_json({"version": _VERSION, "identity": identity}).encode())

    def save(self, number: int, record: PartRecord) -> None:
        """Save what became of a part."""
        self.folder.write(f"{self.state}/part-{number:05}.json", to_json(record.to_dict()).encode())

    def load(self) -> Records:
        """What was saved, of parts whose shards are what was written."""
        records = {}
        for name in self.folder.names(self.state):
            number = name.removeprefix("part-").removesuffix(".json")
            if number != name and number.isdigit():
                try:
                    record = PartRecord.from_dict(json.loads(self.folder.read(f"{self.state}/{name}")))
                except _DAMAGED:
                    continue
                records[int(number)] = record
        return {number: record for number, record in records.items() if self.are_intact(record.all_shards)}

    def from_manifests(self, manifests: Sequence[Manifest]) -> Records:
        """The same of a finished run."""
        records = {}
        for number, content in enumerate(manifests[0].parts):
            shards = {
                name: [shard for shard in manifest.shards if shard.part == number]
                for name, manifest in zip(self.splits, manifests, strict=True)
            }
            try:
                records[number] = PartRecord.from_dict(content, shards)
            except _DAMAGED:
                continue
        return {number: record for number, record in records.items() if self.are_intact(record.all_shards)}

    def are_intact(self, shards: Sequence[Shard]) -> bool:
        """Whether shards are what was written."""
        return all(self._has(shard.file, shard.hash) for shard in shards) and all(
            self._has(mask_file(shard.file), shard.mask_hash) for shard in shards if shard.mask_hash is not None
        )

    def commit(self, manifests: Mapping[str, Manifest]) -> None:
        """Write the manifests, without which shards cannot be opened; the first split's last."""
        for name in reversed(self.splits):
            self.folder.write(f"{name}.json", to_json(manifests[name].to_dict()).encode())
        # What an unfinished run of other inputs left.
        listed = {shard.file for manifest in manifests.values() for shard in manifest.shards}
        for name, _ in self._shard_files():
            if f"{name.rpartition('.')[0]}.bin" not in listed:
                self.folder.remove(name)

    def forget(self) -> None:
        """Delete the records."""
        for name in sorted(self.folder.names(self.state), key=lambda name: name == "job.json"):
            self.folder.remove(f"{self.state}/{name}")

    def drop(self, keep: Sequence[Shard] = ()) -> None:
        """Delete manifests, and the shards that they list except those to be kept.

        Validation data goes with the training data that it was held out of, whose place its documents may take now.
        """
        kept = {shard.file for shard in keep}
        manifests = {name: self.manifest(name) for name in self.splits}
        train, held_out = manifests.get(TRAIN), self.manifest(VALIDATION)
        if train is not None and held_out is not None and train.sources and held_out.sources == train.sources:
            if VALIDATION not in manifests:
                logger.info(
                    "%s is deleted: it was held out of the text that is encoded anew", self.folder.path("val.json")
                )
            manifests = {VALIDATION: held_out, **manifests}  # first, since without the other it would not be found
        for name, manifest in manifests.items():
            # An old manifest must never stand beside new shards.
            self.folder.remove(f"{name}.json")
            if manifest is not None:
                remove_shards(self.folder, (shard for shard in manifest.shards if shard.file not in kept))

    def remove_parts(self, count: int) -> None:
        """Delete all shards of the first parts, those of parts that are not finished too."""
        for name, part in self._shard_files():
            if part < count:
                self.folder.remove(name)

    def refuse_existing(self, *, manifests_only: bool = False) -> None:
        """Raise a TokenFileError if there are token files that nothing says were left by an unfinished run."""
        names = set(self.folder.names(""))
        for split in self.splits:
            there = [f"{split}.json"] if manifests_only else [f"{split}.bin", f"{split}.json", f"{split}-00000.bin"]
            for name in there:
                if name in names:
                    raise TokenFileError(
                        f"{self.folder.path(name)} exists; choose another --output, or replace it with --overwrite"
                    )

    def refuse_other_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise a TokenFileError if there is another tokenizer."""
        if not self.folder.exists("tokenizer.json"):
            return
        with self._local("tokenizer.json") as path:
            other = Tokenizer.from_files(path).fingerprint
        if other != tokenizer.fingerprint:
            raise TokenFileError(
                f"{self.folder} contains another tokenizer, with fingerprint {other}; the given one has "
                f"{tokenizer.fingerprint}; choose another --output, or replace it with --overwrite"
            )

    def _shard_files(self) -> list[tuple[str, int]]:
        """Shards and masks in the folder, those of other runs too, with the number of the part."""
        splits = "|".join(map(re.escape, self.splits))
        ours = re.compile(rf"(?:{splits})-(\d{{5,}})(?:_\d{{4,}})?(?:\.bin|\.mask)")
        found = ((name, ours.fullmatch(name)) for name in self.folder.names(""))
        return [(name, int(match[1])) for name, match in found if match]

    @contextmanager
    def _local(self, name: str) -> Iterator[Path]:
        """A copy of a file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.write_bytes(self.folder.read(name))
            yield path

    def _has(self, name: str, digest: str) -> bool:
        found = xxhash.xxh3_128()
        try:
            for block in self.folder.blocks(name):
                found.update(block)
        except StorageError:
            return False
        return found.hexdigest() == digest
