"""The configurations of published tokenizers, trained here on the reference text: ids equal Hugging Face's."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, Split
from transformers import PreTrainedTokenizerFast

from shared.bpe import PATTERNS, StreamDecoder, Tokenizer, TokenizerError

pytestmark = [pytest.mark.extended, pytest.mark.case("D34")]

END = "<|endoftext|>"
SPLIT_BYTES = {"add_prefix_space": False, "use_regex": False}


def smollm2() -> HuggingFaceTokenizer:
    """SmolLM2 and StarCoder: single digits, then GPT-2's pattern."""
    theirs = HuggingFaceTokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    return theirs


def digit_runs() -> HuggingFaceTokenizer:
    theirs = HuggingFaceTokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.Sequence([Digits(), ByteLevel(add_prefix_space=False)])
    return theirs


def olmo2() -> HuggingFaceTokenizer:
    """OLMo 2 (dolma2) and the conversions of GPT-3.5 and GPT-4: what the pattern matches is kept."""
    theirs = HuggingFaceTokenizer(models.BPE())
    cut = Split(Regex(PATTERNS["llama3"]), "removed", invert=True)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([cut, ByteLevel(**SPLIT_BYTES)])
    return theirs


def gpt4o() -> HuggingFaceTokenizer:
    """The conversion of GPT-4o: the same with another pattern."""
    theirs = HuggingFaceTokenizer(models.BPE())
    cut = Split(Regex(PATTERNS["o200k"]), "removed", invert=True)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([cut, ByteLevel(**SPLIT_BYTES)])
    return theirs


def neox() -> HuggingFaceTokenizer:
    """GPT-NeoX, Pythia and OLMo: NFC, and runs of spaces as added tokens that are matched in the normalized text."""
    theirs = HuggingFaceTokenizer(models.BPE())
    theirs.normalizer = normalizers.NFC()
    theirs.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return theirs


def tutorial() -> HuggingFaceTokenizer:
    """What the defaults of `tokenizers` give: a space before the text."""
    theirs = HuggingFaceTokenizer(models.BPE(unk_token="<unk>"))
    theirs.pre_tokenizer = ByteLevel()
    return theirs


UNITS = (
    END, "<unk>", "the", "I", "e\u0301!", "!x", " ", "  ", "\n", "\t", "  1", "23", "\u0661\u00bd", "'s", "'", "<|",
)  # fmt: skip


def train(make: Callable[[], HuggingFaceTokenizer], texts: list[str], *, all_bytes: bool) -> HuggingFaceTokenizer:
    theirs = make()
    theirs.decoder = decoders.ByteLevel()
    alphabet = ByteLevel.alphabet() if all_bytes else []
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=[END, "<unk>"], initial_alphabet=alphabet, show_progress=False
    )
    theirs.train_from_iterator(texts, trainer)
    theirs.add_tokens([AddedToken(" " * n, normalized=True) for n in range(8, 1, -1)])
    # In the vocabulary already, where it keeps its id; and one that the other kind goes before.
    theirs.add_tokens(["the", "I", AddedToken("e\u0301!", normalized=True), AddedToken("!x", normalized=False)])
    return theirs


def texts_of(real: dict[str, str], length: int) -> dict[str, str]:
    code = Path(__file__).read_text("utf-8")
    emoji = " ".join(map(chr, range(0x1F300, 0x1FB00)))
    return {**{name: text[:length] for name, text in real.items()}, "code": code, "emoji": emoji}


def random_texts(texts: dict[str, str], count: int) -> list[str]:
    random_ = random.Random(7)
    real = "".join(texts.values())
    found = []
    for _ in range(count):
        start, length = random_.randrange(len(real)), random_.randrange(1, 80)
        mixed = "".join(random_.choices([*UNITS, *real[start : start + 20]], k=random_.randrange(1, 25)))
        found.append(real[start : start + length] if random_.random() < 0.4 else mixed)
    return found


@pytest.mark.parametrize("all_bytes", [True, False])
@pytest.mark.parametrize("make", [smollm2, digit_runs, olmo2, gpt4o, neox, tutorial])
def test_ids_equal_hugging_face(
    make: Callable[[], HuggingFaceTokenizer], all_bytes: bool, tmp_path: Path, real_texts: dict[str, str]
) -> None:
    check(make, tmp_path, real_texts, all_bytes=all_bytes, length=5000, strings=500)


@pytest.mark.slow
@pytest.mark.parametrize("make", [smollm2, digit_runs, olmo2, gpt4o, neox, tutorial])
def test_ids_of_much_text_equal_hugging_face(
    make: Callable[[], HuggingFaceTokenizer], tmp_path: Path, real_texts: dict[str, str]
) -> None:
    check(make, tmp_path, real_texts, all_bytes=True, length=100_000, strings=3000)


def check(
    make: Callable[[], HuggingFaceTokenizer],
    folder: Path,
    real: dict[str, str],
    *,
    all_bytes: bool,
    length: int,
    strings: int,
) -> None:
    texts = texts_of(real, length)
    theirs = train(make, [*texts.values(), *UNITS], all_bytes=all_bytes)
    theirs.save(str(folder / "tokenizer.json"))
    ours = Tokenizer.from_files(folder)
    assert bool(ours.vocabulary.missing_bytes) != all_bytes
    many = [*texts.values(), *random_texts(texts, strings)]
    found = ours.encode_batch(many, allowed_special="all")
    ours.save(folder / "saved")
    saved = HuggingFaceTokenizer.from_file(str(folder / "saved/tokenizer.json"))
    for text, ids, expected, again in zip(
        many, found, theirs.encode_batch(many), saved.encode_batch(many), strict=True
    ):
        assert ids == expected.ids == again.ids, text
    assert Tokenizer.from_files(folder / "saved").fingerprint == ours.fingerprint
    for text, ids in zip(many[-300:], found[-300:], strict=True):
        assert [piece.id for piece in ours.encode_with_offsets(text, allowed_special="all")] == ids
        chunker = ours.chunker(allowed_special="all")
        chunker._chunk_characters = 5
        blocks = chunker.chunks([text])
        assert [i for block in blocks for i in ours.encode(block, allowed_special="all")] == ids


def test_places_of_tokens_behind_a_space_that_is_not_in_the_text(tmp_path: Path) -> None:
    theirs = train(tutorial, ["hello there"] * 9, all_bytes=True)
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_files(tmp_path)
    for text in ("hello", " hello", f"a{END}b{END} c", "é", "\n", ""):
        encoding = theirs.encode(text)
        pieces = ours.encode_with_offsets(text, allowed_special="all")
        assert [(piece.id, piece.start, piece.end) for piece in pieces] == [
            (token_id, *place) for token_id, place in zip(encoding.ids, encoding.offsets, strict=True)
        ]
    assert ours.decode(ours.encode("hello")) == theirs.decode(theirs.encode("hello").ids) == " hello"


def test_transformers_puts_the_space_before_the_text_too(tmp_path: Path) -> None:
    train(tutorial, ["hello there"] * 9, all_bytes=True).save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_files(tmp_path)
    ours.save(tmp_path / "saved")
    transformers = PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved")
    assert transformers.encode("hello there") == ours.encode("hello there")


def test_a_byte_without_a_token_is_refused_where_a_text_has_it(tmp_path: Path) -> None:
    train(smollm2, ["plain text"] * 9, all_bytes=False).save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_files(tmp_path)
    assert ours.decode(ours.encode("plain text")) == "plain text"
    message = "the text holds 'é', but the vocabulary has no token for its byte 0xc3"
    for encode in (
        ours.encode,
        ours.encode_with_offsets,
        lambda text: ours.encode_documents(text.encode(), END),
        lambda text: ours.encode_to_numpy(text * (1 << 20)),
        lambda text: [*ours.encode_iterable(text)],
    ):
        with pytest.raises(TokenizerError, match=message):
            encode("plain té")
    with pytest.raises(TokenizerError, match=f"text 1: {message}"):
        ours.encode_batch(["plain", "té"])


def test_streams_of_a_vocabulary_with_few_bytes_decode(tmp_path: Path) -> None:
    train(neox, ["naïve text"] * 9, all_bytes=False).save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_files(tmp_path)
    decoder = StreamDecoder(ours)
    parts = [decoder.feed(token_id) for token_id in ours.encode("naïve")]
    assert "".join(parts) + decoder.finish() == "naïve"
