"""Moving the end of a text to the validation split, where the text has too few documents to hold out whole ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from trainer.tokens.assembly import manifest_of
from trainer.tokens.job import EncodingJob
from trainer.tokens.manifest import Manifest, Shard
from trainer.tokens.shard_writer import ShardWriter, Target, remove_shards
from trainer.tokens.splitting import place_to_cut
from trainer.tokens.token_file import Ids, TokenFile

_IDS_AT_ONCE = 1 << 20


def hold_out_end(job: EncodingJob, manifests: Mapping[str, Manifest], target: Target) -> dict[str, Manifest]:
    """Move the end of the training tokens to the validation split, which has no document.

    Shards that it cuts, or that are behind the cut, are written again. An interruption meanwhile loses no more than
    their parts, which the next run finds changed and encodes again.

    Returns:
        The manifests; the same where the text is too short.
    """
    (train_name, train), (val_name, validation) = manifests.items()
    old = [*train.shards, *validation.shards]
    with target.folder.local([shard.file for shard in old]) as folder:
        ids = _Text(TokenFile(folder, train_name, train), TokenFile(folder, val_name, validation))
        place = place_to_cut(ids, job.settings.val_fraction or 0.0, job.tokenizer, job.end_of_text_id)
        if place is None:
            return dict(manifests)
        first, begin = ids.tokens.shard_at(place)
        end_of_text = np.array([job.end_of_text_id], target.dtype)
        ends = [] if ids[place - 1 : place] == end_of_text else [end_of_text]
        shard = train.shards[first]
        kept = _written(ShardWriter(target, shard.file.removesuffix(".bin"), shard.part), ids, begin, place, ends)
        moved = _written(ShardWriter(target, f"{val_name}-00000"), ids, place, len(ids))
    new = {train_name: [*train.shards[:first], *kept], val_name: moved}
    files = {shard.file for shards in new.values() for shard in shards}
    remove_shards(target.folder, [shard for shard in old if shard.file not in files])
    made = {name: manifest_of(job, shards, train.sources, train.parts) for name, shards in new.items()}
    return {name: replace(manifest, end_is_held_out=True) for name, manifest in made.items()}


class _Text:
    """The ids of all text: what is in the validation split stands behind the last separator of a file."""

    def __init__(self, tokens: TokenFile, white_space: TokenFile) -> None:
        self.tokens = tokens
        self._white_space = white_space.tokens

    def __len__(self) -> int:
        return len(self.tokens) + len(self._white_space)

    def __getitem__(self, places: slice) -> Ids:
        begin, end, _ = places.indices(len(self))
        size = len(self.tokens)
        ids = self.tokens.read(min(begin, size), min(end, size))
        return ids if end <= size else np.concatenate([ids, self._white_space[max(0, begin - size) : end - size]])

    def blocks(self, begin: int, end: int) -> Iterator[Ids]:
        """A stretch of them, about a million at a time."""
        for start in range(begin, end, _IDS_AT_ONCE):
            yield self[start : min(start + _IDS_AT_ONCE, end)]


def _written(writer: ShardWriter, text: _Text, begin: int, end: int, more: Sequence[Ids] = ()) -> list[Shard]:
    try:
        for ids in (*text.blocks(begin, end), *more):
            writer.write(ids)
        return writer.finish()
    except BaseException:
        writer.close()
        raise
