"""Counting pretokens on a Ray cluster."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from shared.bpe.training import PartCounts, Source, Specials, TextFile, TrainingConfig, count_part
from shared.system.cpu_count import available_processors
from shared.system.memory import total_memory
from trainer.cluster.ray_cluster import RayCluster
from trainer.errors import UsageError
from trainer.text.sections import TextSection, divide, open_section, size_of_input
from trainer.text.sources import Input, Records, RecordTexts
from trainer.tokenizer.held_out import RemainingSource

# About the text of a task; compressed files are taken as a whole. Pretokens that several tasks have found are sent and
# added by each of them, so tasks are large, but each processor should have some.
_PART_BYTES = range(4 << 20, 256 << 20)
_TASKS_PER_PROCESSOR = 2


def count_on_cluster(cluster: RayCluster, sources: Sequence[Source], config: TrainingConfig) -> Iterator[PartCounts]:
    """The counts of the parts of a corpus, as they are ready.

    Args:
        cluster: Whose nodes can all read the files.
        sources: The corpus.
        config: The settings.

    Raises:
        UsageError: If a source can be read only once.
        SourceError: If a source cannot be read, or is not UTF-8 and must be.
    """
    for source in sources:
        if source.version is None:
            raise UsageError(
                f"--ray reads text on all nodes, and {source.name} is a stream of this one: write it to a file"
            )
    size = part_size(sum(map(_size, sources)), cluster.processors)
    separator = next(iter(config.special_tokens), None)
    parts = [
        part
        for source in sources
        for part in _parts(source, separator, size, at_any_pretoken=config.pattern_name is not None)
    ]
    for _, counts in cluster.run(_count, config, parts):
        yield counts


def part_size(total: int, processors: int) -> int:
    """Bytes of a task's text, such that each processor has as many tasks as the others."""
    rounds = max(_TASKS_PER_PROCESSOR, -(-total // (processors * _PART_BYTES.stop)))
    return max(_PART_BYTES.start, -(-total // (processors * rounds)))


def _parts(source: Source, separator: str | None, size: int, *, at_any_pretoken: bool) -> Iterator[Source]:
    text, begin = source, 0
    if isinstance(source, RemainingSource):
        text, begin = source.source, len(source.beginning)
    if isinstance(text, RecordTexts):
        yield from _parts_of_records(source, text, size)
        return
    if not isinstance(text, TextFile):
        yield source
        return
    given = Input(Path(text.name), text, is_plain=True)
    for [section] in divide([given], separator, size, at_any_pretoken=at_any_pretoken):
        if section.end is None or section.end > begin:
            yield TextSection(text, max(begin, section.begin), section.end)


def _parts_of_records(source: Source, texts: RecordTexts, size: int) -> list[Source]:
    given = Input(texts.records.path, texts.records)
    contents = [
        open_section(section, given).content for [section] in divide([given], None, size, at_any_pretoken=False)
    ]
    parts: list[Source] = [RecordTexts(each, texts.separator) for each in contents if isinstance(each, Records)]
    if isinstance(source, RemainingSource):
        rest = RemainingSource(parts[0], len(source.beginning), Specials())
        return [rest, *parts[1:]] if rest.beginning == source.beginning else [source]  # it may end in a later part
    return parts


def _size(source: Source) -> int:
    text = source.source if isinstance(source, RemainingSource) else source
    return size_of_input(Input(text.records.path, text.records)) if isinstance(text, RecordTexts) else source.size


def _count(config: TrainingConfig, source: Source) -> PartCounts:
    return count_part(source, config, total_memory() // 2 // available_processors())
