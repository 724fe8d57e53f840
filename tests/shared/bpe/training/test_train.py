import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bpe import PATTERNS, AddedToken, TokenizerError, train_bpe
from shared.bpe.byte_alphabet import to_printable
from shared.bpe.encoding.added_tokens import AddedTokenMatcher
from shared.bpe.encoding.chunks import Chunker
from shared.bpe.training.merges import MergeTrainer, TrainedMerges
from shared.bpe.training.pretokenizers import count_pretokens
from tests.shared.bpe.training.counted import counted

END = "<|endoftext|>"


Trained = tuple[list[bytes], list[tuple[bytes, bytes]], list[int]]


def train_slowly(counts: Mapping[bytes, int], num_merges: int) -> Trained:
    """The definition: count all pairs anew in every round. Returns tokens, merges, and the uses of the tokens."""
    words = [([bytes([b]) for b in piece], count) for piece, count in counts.items()]
    tokens = [bytes([b]) for b in range(256)]
    merges = []
    while len(tokens) < 256 + num_merges:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, count in words:
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        if b"".join(best) not in tokens:
            tokens.append(b"".join(best))
        for word, _ in words:
            place = 0
            while place < len(word) - 1:
                if (word[place], word[place + 1]) == best:
                    word[place : place + 2] = [b"".join(best)]
                place += 1
    uses: Counter[bytes] = Counter()
    for word, count in words:
        for token in word:
            uses[token] += count
    return tokens, merges, [uses[token] for token in tokens]


def learn_merges(counts: Mapping[bytes, int], num_merges: int, threads: int = 1) -> TrainedMerges:
    table = counted(counts)
    return MergeTrainer(lambda: iter([table]), num_merges, threads=threads).train()


def as_bytes(learned: TrainedMerges) -> Trained:
    tokens = learned.tokens
    return tokens, [(tokens[a], tokens[b]) for a, b in learned.merges], learned.uses.tolist()


@given(
    st.dictionaries(st.text("ab\u00e9", min_size=1, max_size=14).map(str.encode), st.integers(1, 9), max_size=8),
    st.integers(0, 30),
)
@settings(max_examples=200, deadline=None)
def test_equals_counting_anew_in_every_round(counts: dict[bytes, int], num_merges: int) -> None:
    assert as_bytes(learn_merges(counts, num_merges)) == train_slowly(counts, num_merges)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_that_share_the_layout_make_no_difference(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr("shared.bpe.training.layout._WORTH_A_THREAD", 1)
    generator = random.Random(threads)
    counts = {
        bytes(generator.choices(b"aab\xc3", k=generator.choice([1, 2, 3, 5, 15, 16, 17, 40]))): generator.choice(
            [1, 1, 2, 65_534, 65_535, 65_536, 2**40]
        )
        for _ in range(200)
    }
    assert as_bytes(learn_merges(counts, 100, threads)) == train_slowly(counts, 100)


def test_equals_counting_anew_on_prose(data_dir: Path) -> None:
    text = (data_dir / "cs336/tinystories_sample.txt").read_text(encoding="utf-8")
    counts = count_pretokens([text], special_tokens=[END], pattern=PATTERNS["gpt2"])
    assert as_bytes(learn_merges(counts, 150)) == train_slowly(counts, 150)


def test_equals_the_cs336_reference(data_dir: Path) -> None:
    # Stanford CS336 assignment 1, tests/fixtures/train-bpe-reference-*; special tokens come first there, so ids differ.
    text = (data_dir / "cs336/corpus.en").read_bytes().decode()
    vocabulary = train_bpe([text], 500, special_tokens=[END]).tokenizer.vocabulary
    merges = [
        f"{to_printable(vocabulary.tokens[a])} {to_printable(vocabulary.tokens[b])}" for a, b in vocabulary.merges
    ]
    assert merges == (data_dir / "cs336/train-bpe-reference-merges.txt").read_text(encoding="utf-8").splitlines()
    reference = json.loads((data_dir / "cs336/train-bpe-reference-vocab.json").read_text(encoding="utf-8"))
    assert {to_printable(token) for token in vocabulary.tokens.values()} | {END} == set(reference)


def test_the_length_in_tokens_is_that_of_the_encoded_text() -> None:
    text = "the other then, there and these " * 5
    result = train_bpe([text], 280)
    assert result.bytes_per_token == pytest.approx(len(text) / len(result.tokenizer.encode(text)))


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_B01_no_text_gives_the_bytes_alone(texts: list[str]) -> None:
    assert train_bpe(texts, 300).reached_size == 256


def test_B02_too_few_pairs_stop_training_and_are_reported() -> None:
    result = train_bpe(["ab"], 1000, special_tokens=[END])
    assert (result.requested_size, result.reached_size) == (1000, 258)
    assert result.tokenizer.vocab_size == len(result.tokenizer) == 258
    assert result.tokenizer.encode("ab") == [256]


@pytest.mark.parametrize("size", [256, 255, 0, -1, "abc", 300.0, True, None])
def test_B03_impossible_sizes_are_refused_before_reading(size: object) -> None:
    def texts():
        raise AssertionError("was read")
        yield

    with pytest.raises(TokenizerError, match=r"257|whole number"):
        train_bpe(texts(), size, special_tokens=["<e>"])  # type: ignore[arg-type]


def test_B03_bytes_and_specials_alone_are_a_vocabulary() -> None:
    tokenizer = train_bpe(["abab"], 257, special_tokens=["<e>"]).tokenizer
    assert tokenizer.vocabulary.merges == ()
    assert tokenizer.encode("ab<e>", allowed_special="all") == [97, 98, 256]


def test_B04_specials_count_as_part_of_the_size() -> None:
    tokenizer = train_bpe([" ".join(f"{n:b} {n}" for n in range(2000))], 300, special_tokens=["<a>", "<b>"]).tokenizer
    assert sorted(tokenizer.tokens) == list(range(300))
    assert len(tokenizer.vocabulary.merges) == 42
    assert tokenizer.special_tokens == {"<a>": 298, "<b>": 299}


@pytest.mark.parametrize(
    ("specials", "message"),
    [
        (["<a>", "<a>", "<b>"], "twice"),
        (["<a>", ""], "special token 1 is empty"),
        (["a"], "'a'"),
        (["Ġ"], "a single-byte token"),
        ("<a>", "list"),
    ],
)
def test_B05_ambiguous_specials_are_refused(specials: list[str], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        train_bpe(["aaa"], 300, special_tokens=specials)


def test_B05_every_id_has_one_string_where_a_special_is_spelt_like_the_top_pair() -> None:
    # Special tokens are boundaries, so "ab" is never counted and cannot be merged as well.
    tokenizer = train_bpe(["ab ab ab abc xyz xyz"], 300, special_tokens=["ab"]).tokenizer
    assert len(set(tokenizer.tokens.values())) == len(tokenizer)
    assert tokenizer.encode("ab", allowed_special="all") == [tokenizer.special_tokens["ab"]]
    assert tokenizer.encode("ab") == [97, 98]


def test_B05_counts_that_teach_a_special_token_are_refused() -> None:
    # The printable form of b" t" is what tokenizer.json would hold for it.
    with pytest.raises(TokenizerError, match="special"):
        train_bpe([" t t t t"], 300, special_tokens=["Ġt"])


def test_B09_nul_is_a_byte_like_any_other() -> None:
    text = "a\x00b\x00\x00c\n" * 50
    tokenizer = train_bpe([text, "x<\x00>y"], 300, special_tokens=["<\x00>"]).tokenizer
    assert any(b"\x00" in token and len(token) > 1 for token in tokenizer.vocabulary.tokens.values())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<\x00>", allowed_special="all") == [tokenizer.special_tokens["<\x00>"]]


BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


@pytest.mark.parametrize("alphabet", ["ACGT", BASE64])
def test_B10_a_line_without_white_space_is_learnt_like_any_other(alphabet: str) -> None:
    line = "".join(random.Random(0).choices(alphabet, k=100_000))
    result = train_bpe([line], 400)
    assert result.reached_size == 400
    assert result.tokenizer.decode(result.tokenizer.encode(line)) == line


@pytest.mark.slow
@pytest.mark.parametrize("alphabet", ["ACGT", BASE64])
def test_B10_twenty_megabytes_without_white_space_take_less_than_ten_minutes(alphabet: str) -> None:
    start = time.process_time()
    assert train_bpe(["".join(random.Random(0).choices(alphabet, k=20_000_000))], 1000).reached_size == 1000
    assert time.process_time() - start < 600


def test_B12_counts_beyond_32_bits_are_exact() -> None:
    learned = learn_merges({b"the": 2**31 + 5, b"thx": 2**31 - 1, b"of": 3}, 3)
    assert [learned.tokens[a] + learned.tokens[b] for a, b in learned.merges][:2] == [b"th", b"the"]
    assert learned.uses.sum() == (2**31 + 5) + (2**31 - 1) + 2 * 3


def test_B13_no_token_crosses_what_encoding_cuts() -> None:
    text = "new york new york new york"
    tokenizer = train_bpe([text], 276).tokenizer
    assert not any(b" " in token[1:] for token in tokenizer.vocabulary.tokens.values())
    trained = [token for token_id, token in tokenizer.tokens.items() if token_id >= 256]
    assert trained
    for token in trained:
        assert tokenizer.encode(token.decode()) == [tokenizer.vocabulary.ids[token]]


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_B15_blocks_give_the_same_counts_as_the_whole(name: str) -> None:
    filler = "".join(f"word{n} " for n in range(460))
    text = ""
    for straddling in ("\U0001f600", "<|end|>", "x" * 40, "\r\n", "\n", "  ", "12345"):
        text += filler[: 4094 - len(text) % 4096] + straddling + " and\nmore text's end.\n"
    whole = count_pretokens([text], special_tokens=["<|end|>"], pattern=PATTERNS[name])
    for size in (1, 7, 4096):
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        blocks = list(Chunker(PATTERNS[name], AddedTokenMatcher([AddedToken(0, "<|end|>")])).chunks(chunks))
        assert count_pretokens(blocks, special_tokens=["<|end|>"], pattern=PATTERNS[name]) == whole
    assert whole[b"xxxx"] == 0


def test_specials_are_hard_boundaries() -> None:
    counts = count_pretokens(["ab<|end|>cd <|end|>"], special_tokens=["<|end|>", "<|"], pattern=PATTERNS["gpt2"])
    assert counts == {b"ab": 1, b"cd": 1, b" ": 1}


def test_order_of_the_texts_does_not_matter() -> None:
    texts = [f"{a}{b} {b}{a} " for a in "abcd" for b in "wxyz"]
    assert train_bpe(texts, 300).tokenizer.fingerprint == train_bpe(texts[::-1], 300).tokenizer.fingerprint


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(TokenizerError, match="surrogate"):
        train_bpe(["a\ud800"], 300)
