"""Training from files: exact whatever the threads, chunks, memory, order and interruptions."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import pytest

from shared.bpe import PATTERNS, TokenizerError, TrainingResult, TrainingStoppedError, train_bpe, train_bpe_from_sources
from shared.bpe.kernels.pretoken_table import Pretokens
from shared.bpe.training import Blocks, Chunk, Source, Specials, TextFile, memory
from shared.bpe.training import train as training_module
from shared.bpe.training.memory import MemoryBudget
from shared.bpe.training.merges import MergeTrainer, TrainedMerges
from shared.bpe.training.pretoken_counts import PretokenCounts
from shared.bpe.training.pretokenizers import count_pretokens
from shared.system.cpu_count import available_processors
from tests.shared.bpe.training.counted import counted

END = "<|endoftext|>"
MIB = 1 << 20


def make_text(seed: int, words: int = 4_000) -> str:
    """Words of a small vocabulary in many contexts, with specials, numbers, contractions and other scripts."""
    generator = random.Random(seed)
    vocabulary = ["".join(generator.choices("etaoins", k=generator.randrange(1, 9))) for _ in range(300)]
    vocabulary += ["don't", "WE'LL", "naïve", "中文字", "слово", "12345", "x" * 40, "…", "—word", "\u0301e"]
    ends = [" ", " ", " ", "\n", "\n\n", "  ", "\t", ". ", ", ", "!\n", "\r\n", END, f"\n{END}\n", "\u3000", " 7"]
    return "".join(generator.choice(vocabulary) + generator.choice(ends) for _ in range(words))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("corpus")
    paths = [folder / f"{seed}.txt" for seed in range(3)]
    for seed, path in enumerate(paths):
        path.write_bytes(make_text(seed).encode())
    (folder / "empty.txt").touch()
    return [*paths, folder / "empty.txt"]


def learn_merges(counts: Mapping[bytes, int], num_merges: int) -> TrainedMerges:
    table = counted(counts)
    return MergeTrainer(lambda: iter([table]), num_merges).train()


def expected(files: Iterable[Path], name: str) -> list[bytes]:
    """What the `regex` package cuts, trained on by the same merges."""
    texts = [path.read_bytes().decode() for path in files]
    return learn_merges(count_pretokens(texts, special_tokens=[END], pattern=PATTERNS[name]), 199).tokens


def train(sources: list[Source], name: str = "gpt2", **options: object) -> TrainingResult:
    return train_bpe_from_sources(sources, 456, special_tokens=[END], pattern=name, **options)  # type: ignore[arg-type]


def trained(result: TrainingResult) -> list[bytes]:
    return list(result.tokenizer.vocabulary.tokens.values())


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize(("threads", "chunk_bytes"), [(1, 1 << 22), (2, 1), (3, 100), (8, 1000)])
def test_threads_chunks_and_order_do_not_matter(name: str, threads: int, chunk_bytes: int, files: list[Path]) -> None:
    shuffled = random.Random(threads).sample(files, len(files))
    result = train([TextFile(path, chunk_bytes) for path in shuffled], name, threads=threads)
    assert trained(result) == expected(files, name)
    assert result.report.bytes_counted == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("block_bytes", [1, 7, 4096, 1 << 20])
@pytest.mark.parametrize("chunk_bytes", [1, 300, 1 << 22])
def test_a_stream_is_counted_like_a_file(files: list[Path], block_bytes: int, chunk_bytes: int) -> None:
    data = files[0].read_bytes()[:20_000]
    data = data[: data.rindex(b" ")]
    blocks = [data[start : start + block_bytes] for start in range(0, len(data), block_bytes)]
    result = train([Blocks("a stream", lambda: blocks, chunk_bytes)], threads=2)
    assert result.tokenizer.fingerprint == train_bpe([data.decode()], 456, special_tokens=[END]).tokenizer.fingerprint


@pytest.mark.parametrize(
    "specials", [["a b", "b c", "ab"], ["t\n", "e o", "\n\n"], ["<|", "<|x|>", END], ["s", "ss "][1:]]
)
@pytest.mark.parametrize("name", PATTERNS)
def test_specials_that_hold_places_to_cut_are_never_cut(name: str, specials: list[str], tmp_path: Path) -> None:
    generator = random.Random(5)
    text = "".join(
        generator.choices(["a b", "b c", "ab", " ", "\n", "\n\n", "t\n", "e o", "ss ", "<|", "x|>", "c!", END], k=3000)
    )
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    counts = count_pretokens([text], special_tokens=specials, pattern=PATTERNS[name])
    result = train_bpe_from_sources(
        [TextFile(path, 5)], 300 + len(specials), special_tokens=specials, pattern=name, threads=2
    )
    assert result.report.words == counts.total()
    assert result.report.distinct_words == len(counts)
    assert trained(result) == learn_merges(counts, 44).tokens


def test_a_custom_pattern_gives_the_same_from_files(files: list[Path]) -> None:
    pattern = r"\w+|\W"
    texts = [path.read_bytes().decode() for path in files]
    counts = count_pretokens(texts, special_tokens=[END], pattern=pattern)
    assert trained(train([TextFile(path) for path in files], pattern)) == learn_merges(counts, 199).tokens


def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave so little memory for tables that a few thousand words must go through the disk."""

    class SmallBudget(MemoryBudget):
        def __init__(self, limit: int | None):
            super().__init__(limit)
            self.tables = 6 * MIB

    monkeypatch.setattr(training_module, "MemoryBudget", SmallBudget)


def many_words(path: Path, number: int) -> None:
    generator = random.Random(1)
    path.write_text(" ".join(str(generator.getrandbits(64)) * generator.choice((1, 1, 2)) for _ in range(number)) + END)


def test_words_beyond_memory_go_through_the_disk_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "numbers.txt"
    many_words(path, 150_000)
    whole = train([TextFile(path, 1 << 16)], threads=2)
    assert whole.report.spilled_bytes == 0
    few_bytes(monkeypatch)
    spilled = train([TextFile(path, 1 << 16)], threads=2)
    assert spilled.report.spilled_bytes > 6 * MIB
    assert spilled.tokenizer.fingerprint == whole.tokenizer.fingerprint
    assert (spilled.report.distinct_words, spilled.report.words) == (whole.report.distinct_words, whole.report.words)


def test_rare_words_are_left_out_and_reported(files: list[Path]) -> None:
    counts = count_pretokens([files[0].read_bytes().decode()], special_tokens=[END], pattern=PATTERNS["gpt2"])
    result = train([TextFile(files[0])], min_count=3)
    frequent = Counter({word: count for word, count in counts.items() if count >= 3})
    assert trained(result) == learn_merges(frequent, 199).tokens
    assert result.report.words_left_out == counts.total() - frequent.total() > 0


def test_what_does_not_fit_stops_with_its_size_and_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_RESERVE_BYTES", 4 * MIB)
    monkeypatch.setattr(memory, "resident_memory", lambda: 300 * MIB)  # else memory that is held but unused counts
    path = tmp_path / "numbers.txt"
    many_words(path, 200_000)
    with pytest.raises(TokenizerError, match=r"200,\d\d\d distinct pretokens of .* bytes .*--min-count 2"):
        train([TextFile(path)], memory_limit=330 * MIB)
    with pytest.raises(TokenizerError, match="memory limit of 1,000 bytes is too low"):
        train([TextFile(path)], memory_limit=1000)


def test_one_piece_beyond_memory_stops_with_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "line.txt"
    path.write_bytes(b"x" * (20 * MIB))
    few_bytes(monkeypatch)
    with pytest.raises(TokenizerError, match="single pretoken"):
        train([TextFile(path)])


@pytest.mark.extended
@pytest.mark.parametrize("pattern", [r"\w+|\W", r"[^<]+|<"])
def test_a_custom_pattern_goes_through_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    path = tmp_path / "numbers.txt"
    draw = random.Random(4)
    path.write_text("".join(f"{draw.getrandbits(64)} {draw.getrandbits(64)}{END}" for _ in range(60_000)))
    whole = train([TextFile(path)], pattern)
    few_bytes(monkeypatch)
    spilled = train([TextFile(path)], pattern)
    assert spilled.report.spilled_bytes > whole.report.spilled_bytes == 0
    assert spilled.tokenizer.fingerprint == whole.tokenizer.fingerprint


def test_a_document_too_long_for_a_custom_pattern_stops_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_RESERVE_BYTES", 4 * MIB)
    monkeypatch.setattr(memory, "resident_memory", lambda: 300 * MIB)
    path = tmp_path / "text.txt"
    path.write_text("some words and more\n" * 100_000)
    limit = 400 * MIB
    assert train([TextFile(path)], memory_limit=limit).report.words
    with pytest.raises(
        TokenizerError, match=r"without a place to split them \(a special token; this tokenizer may look anywhere\)"
    ):
        train([TextFile(path)], r"\w+|\W", memory_limit=limit)


def test_more_threads_than_are_of_use_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a table, of at least a quarter of a megabyte."""
    path = tmp_path / "small.txt"
    path.write_text("the cat sat on the mat")
    made = []

    def observed(size: int) -> PretokenCounts:
        made.append(size)
        return PretokenCounts(size)

    monkeypatch.setattr("shared.bpe.training.counter.PretokenCounts", observed)
    train([TextFile(path)], threads=100_000)
    assert len(made) <= max(16, 4 * available_processors())


@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_wrong_byte_is_named(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"fine text\n" * 100 + b"\xff and \xc3( more\n" + b"fine text\n" * 100)
    with pytest.raises(TokenizerError, match=r"text\.txt is not UTF-8: byte 0xff at offset 1000 .*--errors replace"):
        train([TextFile(path, 50)], threads=threads)


@pytest.mark.parametrize("chunk_bytes", [10, 1 << 20])
def test_wrong_bytes_may_be_replaced(tmp_path: Path, chunk_bytes: int) -> None:
    data = b"fine text \xff and \xc3( more \xef\xbf\xbd \xe2\x82 \xe2\x82" * 50
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    result = train([TextFile(path, chunk_bytes)], errors="replace")
    text = data.decode(errors="replace")
    assert result.tokenizer.fingerprint == train_bpe([text], 456, special_tokens=[END]).tokenizer.fingerprint
    assert result.report.replaced_bytes == 200


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("during", ["counting", "merging"])
def test_training_stops_when_asked_to(files: list[Path], threads: int, during: str) -> None:
    stages: list[str] = []
    with pytest.raises(TrainingStoppedError):
        train_bpe_from_sources(
            [TextFile(path, 3000) for path in files],
            900,
            threads=threads,
            bytes_progress=lambda _: stages.append("counting"),
            progress=lambda *_: stages.append("merging"),
            should_stop=lambda: during in stages,
        )
    assert stages[-1] == during


def test_an_interruption_while_a_source_is_read_ends_all_threads(files: list[Path]) -> None:
    class Interrupting(TextFile):
        def chunks(self, specials: Specials, begin: int, longest: int = 1 << 62) -> Iterator[Chunk]:
            yield from islice(super().chunks(specials, begin, longest), 5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train([Interrupting(path, 3000) for path in files], threads=3)


def test_a_stream_of_blocks_gives_the_same_as_the_file(files: list[Path]) -> None:
    data = files[0].read_bytes()
    blocks = [data[start : start + 500] for start in range(0, len(data), 500)]
    streamed = train([Blocks("gz", lambda: blocks, 1000)])
    assert streamed.tokenizer.fingerprint == train([TextFile(files[0])]).tokenizer.fingerprint


def test_tables_hold_what_was_put_into_them() -> None:
    generator = random.Random(2)
    counts = Counter(
        {
            bytes(generator.choices(b"ab\0", k=generator.randrange(1, 40))): generator.randrange(1, 2**40)
            for _ in range(60_000)
        }
    )
    table = counted(counts)
    assert dict(table.items()) == counts
    table.add(Pretokens(*(array.copy() for array in table.pretokens)))
    assert dict(table.items()) == {word: 2 * count for word, count in counts.items()}
