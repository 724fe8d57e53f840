"""How a text is divided among the processors of a cluster. Runs on one: test_train_on_ray.py."""

import json
from pathlib import Path

import pytest

from shared.bpe.training import Specials
from trainer.text.sources import open_sources
from trainer.tokenizer.cluster_counting import _parts, part_size
from trainer.tokenizer.held_out import RemainingSource


@pytest.mark.parametrize("processors", [2, 16, 512])
@pytest.mark.parametrize("total", [300 << 20, 1100 << 20, 10**10, 10**12])
def test_each_processor_has_as_many_tasks(total: int, processors: int) -> None:
    size = part_size(total, processors)
    tasks = -(-total // size)
    if size == 4 << 20:  # too little text for that
        assert tasks < 2 * processors
    else:
        assert -tasks % processors <= processors // 50, "few processors are idle in the last round of tasks"
        assert size <= 256 << 20


@pytest.mark.parametrize("separator", ["<|endoftext|>", None])
@pytest.mark.parametrize("size", [100, 5000, 10**6])
def test_parts_of_records_are_the_whole(tmp_path: Path, separator: str | None, size: int) -> None:
    """Also where the beginning is held out, unless that is more than the first part."""
    texts = [f"text {n} " * (n % 7) for n in range(500)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    [whole] = open_sources([tmp_path / "a.jsonl"], text_field="text", separator=separator)
    remaining = RemainingSource(whole, 1, Specials())
    for source in (whole, remaining):
        parts = [*_parts(source, separator, size, at_any_pretoken=True)]
        is_divided = size < 10**6 and (source is whole or separator is None)
        assert (len(parts) > 1) == is_divided
        data = [b"".join(chunk.read().tobytes() for chunk in each.chunks(Specials(), 0)) for each in (source, *parts)]
        assert data[0] == b"".join(data[1:])
