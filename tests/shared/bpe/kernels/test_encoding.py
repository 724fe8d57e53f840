"""The compiled encoder against the plain core: every pretoken by scanning, the lowest rank first."""

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bpe import PATTERNS, Tokenizer, train_bpe
from shared.bpe.encoding.decoder import Decoder
from shared.bpe.encoding.encoder import Encoder
from shared.bpe.encoding.merging import merge_by_scanning
from shared.bpe.errors import SurrogateError
from shared.bpe.kernels.decoding import SLACK as DECODING_SLACK
from shared.bpe.kernels.decoding import copy_tokens, measure
from shared.bpe.kernels.encoding import SLACK, encode_pretokens
from shared.bpe.kernels.pretoken_cache import ENTRY, KEPT_BYTES, is_full, move_pretokens, new_cache, new_table
from shared.bpe.kernels.pretoken_merging import SCRATCH, SHORT, merge_long, merge_short
from shared.bpe.kernels.tables import (
    NO_RANK,
    build_tables,
    fill_pairs,
    fill_whole_tokens,
    hash_bytes,
    pack_pair,
    rank_of_pair,
    whole_token,
)
from shared.bpe.patterns.named import split
from shared.bpe.vocabulary import Vocabulary

SAMPLE = "the cat's hat, aaaa aaaaaaaa  abab ababab\n\n  ---- 12345 été 日本語日本語 the then there " * 3
TEXTS = st.text(st.sampled_from("ab t'he-s 1\n\u00e9日本 "), max_size=200)
PIECES = st.binary(min_size=1, max_size=150) | st.text(st.sampled_from("ab-"), min_size=1, max_size=300).map(str.encode)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe([SAMPLE], 330).tokenizer


def merge_slowly(vocabulary: Vocabulary, pretoken: bytes) -> list[int]:
    if vocabulary.ignore_merges and pretoken in vocabulary.ids:
        return [vocabulary.ids[pretoken]]
    merges = {
        pair: (rank, vocabulary.ids[vocabulary.tokens[pair[0]] + vocabulary.tokens[pair[1]]])
        for rank, pair in enumerate(vocabulary.merges)
    }
    return merge_by_scanning([vocabulary.ids[bytes([byte])] for byte in pretoken], merges)


def encode_slowly(vocabulary: Vocabulary, text: str) -> list[int]:
    return [i for pretoken in split(vocabulary.pattern, text) for i in merge_slowly(vocabulary, pretoken.encode())]


def tables_of(vocabulary: Vocabulary, *, whole_tokens_first: bool = False):
    return build_tables(replace(vocabulary, ignore_merges=whole_tokens_first))


@settings(max_examples=300, deadline=None)
@given(pretoken=PIECES)
def test_both_ways_of_merging_equal_the_plain_one(tokenizer: Tokenizer, pretoken: bytes) -> None:
    tables, data = tables_of(tokenizer.vocabulary), np.frombuffer(pretoken, np.uint8)
    expected = merge_slowly(tokenizer.vocabulary, pretoken)
    out = np.empty(len(pretoken), np.uint32)
    assert out[: merge_long(tables, data, 0, len(pretoken), out, 0)].tolist() == expected
    if len(pretoken) <= SHORT:
        scratch = np.empty((2, SCRATCH), np.uint32)
        filled = merge_short(tables, data, 0, len(pretoken), scratch[0], scratch[1], out, 0)
        assert out[:filled].tolist() == expected


def test_short_pretokens_of_every_length(tokenizer: Tokenizer) -> None:
    tables, random = tables_of(tokenizer.vocabulary), np.random.default_rng(3)
    scratch, out = np.empty((2, SCRATCH), np.uint32), np.empty(SHORT, np.uint32)
    sample = np.frombuffer(SAMPLE.encode(), np.uint8)
    for length in range(1, SHORT + 1):
        for _ in range(12):
            places = random.integers(0, 90, (length, 1)) + np.arange(2)  # pairs of bytes that may have been merged
            data = np.ascontiguousarray(sample[places].ravel()[:length])
            filled = merge_short(tables, data, 0, length, *scratch, out, 0)
            assert out[:filled].tolist() == merge_slowly(tokenizer.vocabulary, data.tobytes())


@settings(max_examples=100, deadline=None)
@given(pretoken=PIECES)
def test_ids_need_not_follow_the_order_of_merges(tokenizer: Tokenizer, pretoken: bytes) -> None:
    given_ = tokenizer.vocabulary
    new = {old: place for place, old in enumerate(sorted(given_.tokens, key=lambda old: (old * 7919) % 1009))}
    vocabulary = Vocabulary(
        {new[old]: token for old, token in given_.tokens.items()},
        tuple((new[left], new[right]) for left, right in given_.merges), (), given_.pattern,
    )  # fmt: skip
    data, out, scratch = (
        np.frombuffer(pretoken, np.uint8),
        np.empty(len(pretoken), np.uint32),
        np.empty((2, SCRATCH), np.uint32),
    )
    tables, expected = tables_of(vocabulary), merge_slowly(vocabulary, pretoken)
    assert tables.merged.size == len(vocabulary.merges)
    assert out[: merge_long(tables, data, 0, len(pretoken), out, 0)].tolist() == expected
    if len(pretoken) <= SHORT:
        assert out[: merge_short(tables, data, 0, len(pretoken), *scratch, out, 0)].tolist() == expected


@settings(max_examples=150, deadline=None)
@given(pretokens=st.lists(PIECES, max_size=60), groups=st.sampled_from([1, 2, 64]))
def test_a_cache_of_any_size_changes_nothing(tokenizer: Tokenizer, pretokens: list[bytes], groups: int) -> None:
    pretokens = pretokens * 3
    data = np.frombuffer(b"".join(pretokens) or b"\0", np.uint8)
    ends = np.cumsum([len(pretoken) for pretoken in pretokens], dtype=np.int64)
    out = np.empty(len(data) + SLACK, np.uint32)
    cache = new_cache(new_table(8 * groups, 128 * groups), new_table(8, 0))
    expected = [i for pretoken in pretokens for i in merge_slowly(tokenizer.vocabulary, pretoken)]
    for _ in range(2):
        filled = encode_pretokens(tables_of(tokenizer.vocabulary), cache, data, 0, ends, len(ends), out, 0)
        assert out[:filled].tolist() == expected


@settings(max_examples=100, deadline=None)
@given(pretokens=st.lists(PIECES, max_size=60))
def test_a_larger_cache_takes_over_what_a_smaller_one_knows(tokenizer: Tokenizer, pretokens: list[bytes]) -> None:
    pretokens = list(dict.fromkeys(pretoken for pretoken in pretokens if len(pretoken) <= KEPT_BYTES))
    data = np.frombuffer(b"".join(pretokens) or b"\0", np.uint8)
    ends = np.cumsum([len(pretoken) for pretoken in pretokens], dtype=np.int64)
    out = np.empty(len(data) + SLACK, np.uint32)
    nothing, small, large = new_table(8, 0), new_table(1 << 10, 1 << 14), new_table(1 << 12, 1 << 14)
    tables = tables_of(tokenizer.vocabulary)
    expected = [i for pretoken in pretokens for i in merge_slowly(tokenizer.vocabulary, pretoken)]
    encode_pretokens(tables, new_cache(small, nothing), data, 0, ends, len(ends), out, 0)
    move_pretokens(small, large)
    assert large.counters[0] == small.counters[0] == len(pretokens)
    # One that begins empty takes over what is used again.
    for table, older in ((large, nothing), (new_table(1 << 10, 1 << 14), small)):
        for _ in range(2):
            filled = encode_pretokens(tables, new_cache(table, older), data, 0, ends, len(ends), out, 0)
            assert out[:filled].tolist() == expected
            assert table.counters[0] == len(pretokens)


@pytest.mark.extended
def test_threads_that_write_one_table_at_once_do_not_disturb_each_other(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.bpe.encoding.pretoken_memory._SIZES", ((8, 128), (64, 1 << 10), (1 << 10, 1 << 12)))
    words = [f" {'été' * (number % 9)}{number * 7919 % 3001:b}" for number in range(3000)]
    encoder, expected = Encoder(tokenizer.vocabulary), [encode_slowly(tokenizer.vocabulary, word) for word in words]

    def encode(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(len(words))
        ends = np.cumsum([len(words[place].encode()) for place in order])
        data = "".join(words[place] for place in order).encode()
        ids, _ = encoder.encode_parts(data, np.array([0, *ends[:-1]]), ends)
        return bool(ids.tolist() == [i for place in order for i in expected[place]])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(encode, range(40)))


def test_tables_that_were_followed_are_freed_without_a_search_for_garbage(tokenizer: Tokenizer) -> None:
    """Tens of megabytes each; a job that makes few Python objects would keep a dozen of them."""
    encoder = Encoder(tokenizer.vocabulary)
    first = weakref.ref(encoder._memory.tables[0].entries.base)
    data = "".join(f" {number:x}" for number in range(20_000)).encode()
    gc.disable()
    try:
        for _ in range(2):
            encoder.encode_parts(data, np.array([0]), np.array([len(data)]))
        assert first() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, max_size=6))
def test_encoding_equals_the_plain_core_for_every_pattern(tokenizer: Tokenizer, pattern: str, texts: list[str]) -> None:
    given_ = tokenizer.vocabulary
    vocabulary = Vocabulary(given_.tokens, given_.merges, given_.added, PATTERNS[pattern])
    expected = [encode_slowly(vocabulary, text) for text in texts]
    assert Tokenizer(vocabulary).encode_batch(texts) == expected  # each by itself
    together = Tokenizer(vocabulary).encode_batch([*texts, "the cat " * 2100])  # in one buffer
    assert together[:-1] == expected


def test_a_custom_pattern_takes_the_regex_path(tokenizer: Tokenizer) -> None:
    given_ = tokenizer.vocabulary
    vocabulary = Vocabulary(given_.tokens, given_.merges, given_.added, r"\w+|\W")
    assert Tokenizer(vocabulary).encode_batch([SAMPLE, "", SAMPLE[:50]]) == [
        encode_slowly(vocabulary, text) for text in (SAMPLE, "", SAMPLE[:50])
    ]


def test_a_cache_that_fills_is_replaced_midway(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.bpe.encoding.pretoken_memory._SIZES", ((8, 128), (16, 128), (256, 512)))
    text = SAMPLE + " ".join(f"word{number}x" for number in range(500))
    fresh = Tokenizer(tokenizer.vocabulary)
    assert fresh.encode(text) == encode_slowly(tokenizer.vocabulary, text)


def test_short_texts_take_larger_caches_between_them(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.bpe.encoding.pretoken_memory._SIZES", ((8, 128), (16, 128), (256, 512)))
    fresh = Tokenizer(tokenizer.vocabulary)
    for number in range(300):
        text = f"word{number}x the cat's été {number * number} "
        assert fresh.encode(text) == encode_slowly(tokenizer.vocabulary, text)
    table, _ = fresh._text_encoder._encoder._memory.tables
    assert len(table.entries) == 256 * ENTRY


def test_empty_texts_do_not_wait_for_a_larger_cache(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.bpe.encoding.pretoken_memory._SIZES", ((8, 128), (16, 128)))
    fresh = Tokenizer(tokenizer.vocabulary)
    encoder = fresh._text_encoder._encoder
    fresh.encode("one two three four five")
    assert is_full(encoder._memory.tables[0])
    monkeypatch.setattr(encoder, "_take_workspace", pytest.fail)  # what a text needs that the small buffers cannot hold
    assert fresh.encode("") == []
    assert fresh.encode_batch(["", ""]) == [[], []]


def test_the_ids_of_a_short_text_are_an_array_of_their_own(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_to_numpy("the cat")
    assert (ids.dtype, ids.flags.owndata, ids.flags.writeable, sys.getrefcount(ids)) == (np.uint32, True, True, 2)
    tokenizer.encode_to_numpy("another text")
    assert ids.tolist() == encode_slowly(tokenizer.vocabulary, "the cat")
    assert tokenizer.encode_to_numpy("").shape == (0,)


def test_a_short_text_may_outgrow_its_cache_any_number_of_times(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.bpe.encoding.pretoken_memory._SIZES", ((8, 128),))
    fresh = Tokenizer(tokenizer.vocabulary)
    for number in range(1000):
        assert fresh.decode(fresh.encode(f"word{number} x{number}y")) == f"word{number} x{number}y"


def test_what_is_no_short_text_is_refused_and_changes_nothing(tokenizer: Tokenizer) -> None:
    for _ in range(3):
        with pytest.raises(SurrogateError, match="at character 2"):
            tokenizer.encode("ab\ud800")
        with pytest.raises(TypeError):
            tokenizer.encode(b"ab")  # type: ignore[arg-type]
        assert tokenizer.encode("the cat") == encode_slowly(tokenizer.vocabulary, "the cat")
    assert tokenizer.encode("") == []


def test_terminators_stand_after_every_text_but_the_last(tokenizer: Tokenizer) -> None:
    data = b"the cat|the hat|"
    starts, ends = np.array([0, 8, 16]), np.array([7, 15, 16])
    for vocabulary in (
        tokenizer.vocabulary,
        Vocabulary(tokenizer.vocabulary.tokens, tokenizer.vocabulary.merges, (), r"\w+| "),
    ):
        ids, id_ends = Encoder(vocabulary).encode_parts(data, starts, ends, terminator=999)
        cat, hat = (encode_slowly(vocabulary, text) for text in ("the cat", "the hat"))
        assert ids.tolist() == [*cat, 999, *hat, 999]
        assert id_ends.tolist() == [len(cat) + 1, len(ids), len(ids)]


@pytest.mark.parametrize("unit", ["a", "ab", " ", "xyzzy", "日本", "-"])
def test_a_piece_of_a_megabyte_takes_a_moment(tokenizer: Tokenizer, unit: str) -> None:
    text = unit * (1_000_000 // len(unit.encode()))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    short = unit * 100
    assert tokenizer.encode(short) == encode_slowly(tokenizer.vocabulary, short)


def test_tables_know_every_pair_and_no_other(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.vocabulary
    tables = tables_of(vocabulary)
    ranks = {pair: rank for rank, pair in enumerate(vocabulary.merges)}
    for left in vocabulary.tokens:
        for right in list(vocabulary.tokens)[::7]:
            assert rank_of_pair(tables.pair_slots, left, right) == ranks.get((left, right), NO_RANK)
    for pair, rank in ranks.items():
        assert rank_of_pair(tables.pair_slots, *pair) == rank


def test_of_a_pair_listed_twice_the_last_rank_counts() -> None:
    slots = np.full(8, 2**64 - 1, np.uint64)
    assert fill_pairs(slots, np.array([5, 6, 5], np.uint32), np.array([7, 7, 7], np.uint32))
    assert sorted(slots[slots != 2**64 - 1].tolist()) == sorted([pack_pair(5, 7) << 22 | 2, pack_pair(6, 7) << 22 | 1])


def test_pairs_that_find_no_place_need_a_larger_table() -> None:
    slots, ids = np.full(8, 2**64 - 1, np.uint64), np.arange(9, dtype=np.uint32)
    assert not fill_pairs(slots, ids, ids)
    vocabulary = {byte: bytes([byte]) for byte in range(256)}
    merges = [(left, right) for left in range(97, 123) for right in range(97, 123)]
    tokens = vocabulary | {256 + rank: bytes(pair) for rank, pair in enumerate(merges)}
    tables = build_tables(Vocabulary(tokens, tuple(merges), (), PATTERNS["gpt2"]))
    assert [rank_of_pair(tables.pair_slots, *pair) for pair in merges] == list(range(len(merges)))


def test_whole_tokens_are_found_by_their_bytes(tokenizer: Tokenizer) -> None:
    tables = tables_of(tokenizer.vocabulary, whole_tokens_first=True)
    for token_id, token in tokenizer.vocabulary.tokens.items():
        data = np.frombuffer(b"x" + token + b"y", np.uint8)
        assert whole_token(tables, data, 1, len(data) - 1) == token_id
        assert whole_token(tables, data, 0, len(data)) == -1
    assert whole_token(tables_of(tokenizer.vocabulary), data, 1, len(data) - 1) == -1


def test_tokens_whose_hashes_meet_are_told_apart() -> None:
    starts = np.arange(0, 9, dtype=np.int64)
    slots = np.zeros(16, np.uint32)
    fill_whole_tokens(slots, np.frombuffer(b"abcdefgh", np.uint8), starts, np.arange(8, dtype=np.uint32))
    assert sorted(slots[slots > 0].tolist()) == list(range(1, 9))
    assert hash_bytes(np.frombuffer(b"ab", np.uint8), 0, 1) != hash_bytes(np.frombuffer(b"ab", np.uint8), 1, 2)


@settings(deadline=None)  # the first call may compile
@given(ids=st.lists(st.integers(0, 329), max_size=50), skip=st.booleans())
def test_decoding_joins_the_bytes_of_tokens(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    tokens = dict(tokenizer.tokens)
    ids = [i for i in ids if i in tokens]
    control = [i for i in tokens if i % 5 == 0]
    joined = Decoder(tokens, control).join(ids, skip_control=skip, limit=1 << 30)
    assert joined is not None
    assert bytes(joined) == b"".join(tokens[i] for i in ids if not (skip and i in control))


def test_ids_that_are_no_token_are_noticed() -> None:
    starts, kinds = np.array([0, 1, 1, 3]), np.array([1, 0, 1], np.uint8)
    token_bytes = np.frombuffer(b"abc" + bytes(DECODING_SLACK), np.uint8)
    for wrong in ([1], [0, 3], [-1], [2**40]):
        assert measure(np.array(wrong), starts, kinds, False) == -1
    ids, out = np.array([2, 0, 2]), np.empty(5 + DECODING_SLACK, np.uint8)
    assert measure(ids, starts, kinds, False) == 5
    copy_tokens(ids, starts, kinds, False, token_bytes, out)
    assert out[:5].tobytes() == b"bcabc"
