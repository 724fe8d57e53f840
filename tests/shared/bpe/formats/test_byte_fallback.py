"""SentencePiece's BPE in tokenizer.json, in both published forms: ids and text of Hugging Face's tokenizers."""

import json
import random
from collections.abc import Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import models, normalizers, trainers
from transformers import AutoTokenizer

from shared.bpe import StreamDecoder, Tokenizer, TokenizerError
from shared.bpe.vocabulary import Vocabulary

MARK = "\u2581"
CONTROL = ["<unk>", "<s>", "</s>"]
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
PREPEND = {"type": "Prepend", "prepend": MARK}
DECODERS = [
    {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]
METASPACE = {"type": "Metaspace", "replacement": MARK}
# Llama 2 and TinyLlama; Mistral since its third version; the other schemes of Metaspace.
FORMS: dict[str, tuple[Any, Any]] = {
    "normalizer": ({"type": "Sequence", "normalizers": [PREPEND, REPLACE]}, None),
    **{
        f"{scheme}, {split=}": (
            None,
            {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split},
        )
        for scheme in ("first", "always", "never")
        for split in (False, True)
    },
}
UNITS = [
    *CONTROL, "x y", "<0x0A>", " ", "  ", "     ", "\n", "\t", "\0", MARK, MARK * 2, "<", "é", "🦊", "中", "ü", "the",
]  # fmt: skip


def added(token: int, content: str, **flags: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token, "content": content, **plain, **flags}


@pytest.fixture(scope="module")
def trained(real_texts: dict[str, str]) -> dict[str, Any]:
    """A tokenizer.json of 2,500 tokens, trained by Hugging Face; with characters of all lengths, and some without."""
    theirs = HuggingFaceTokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    theirs.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    names = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=2500, special_tokens=names, limit_alphabet=900, initial_alphabet=["🦊", "é"], show_progress=False
    )
    words = (word for text in real_texts.values() for word in text[:20_000].split(" "))
    # Spaces before words, or alone.
    theirs.train_from_iterator((part for word in words for part in (word, " " * (len(word) % 9))), trainer)
    content: dict[str, Any] = json.loads(theirs.to_str())
    content["added_tokens"] = [added(number, name) for number, name in enumerate(CONTROL)]
    content["decoder"] = {"type": "Sequence", "decoders": DECODERS}
    return content


def variant(trained: Mapping[str, Any], form: str) -> dict[str, Any]:
    normalizer, pre_tokenizer = FORMS[form]
    return {**trained, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}


def both(content: Mapping[str, Any], folder: Path) -> tuple[Tokenizer, HuggingFaceTokenizer]:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content))
    return Tokenizer.from_files(path), HuggingFaceTokenizer.from_file(str(path))


def random_texts(real: Mapping[str, str], count: int) -> list[str]:
    draw, text = random.Random(7), "".join(real.values())
    made = ["", " ", "  a", "a  "]
    while len(made) < count:
        start = draw.randrange(len(text))
        kind = draw.random()
        if kind < 0.4:
            made.append(text[start : start + draw.randrange(1, 150)])
        elif kind < 0.8:
            made.append("".join(draw.choices([*UNITS, *text[start : start + 20]], k=draw.randrange(1, 25))))
        else:
            made.append("".join(draw.choice("- =a") * draw.randrange(1, 40) for _ in range(4)))
    return made


def check(ours: Tokenizer, theirs: HuggingFaceTokenizer, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [encoding.ids for encoding in theirs.encode_batch(texts, add_special_tokens=False)]
    assert ours.encode_batch(texts, allowed_special="all") == expected
    for text, ids in zip(texts, expected, strict=True):
        assert ours.encode(text, allowed_special="all") == ids, text
        chunks = ours.chunker(allowed_special="all")
        chunks._chunk_characters = 1  # so that every boundary is one
        assert "".join(chunks.chunks([text])) == text
        monkeypatch.setattr(ours, "chunker", lambda chunks=chunks, **_: chunks)
        assert [*ours.encode_iterable([*text], allowed_special="all")] == ids, text
        monkeypatch.undo()
        spans = ours.encode_with_offsets(text, allowed_special="all")
        assert [span.id for span in spans] == ids
        for skip in (False, True):
            decoded = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == decoded, text
            decoder = StreamDecoder(ours, skip_special_tokens=skip)
            assert "".join(map(decoder.feed, ids)) + decoder.finish() == decoded


@pytest.mark.parametrize("form", FORMS)
def test_ids_and_text_equal_hugging_face(
    form: str, trained: dict[str, Any], tmp_path: Path, real_texts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(*both(variant(trained, form), tmp_path), random_texts(real_texts, 250), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_ids_and_text_of_many_strings_equal_hugging_face(
    form: str, trained: dict[str, Any], tmp_path: Path, real_texts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(*both(variant(trained, form), tmp_path), random_texts(real_texts, 10_000), monkeypatch)


def test_added_tokens_in_the_normalized_text(
    trained: dict[str, Any], tmp_path: Path, real_texts: dict[str, str]
) -> None:
    """As the first conversions of Llama have them: there, `<s>` is found only behind a space."""
    content = variant(trained, "normalizer")
    content["added_tokens"] = [added(number, name, normalized=True) for number, name in enumerate(CONTROL)]
    content["added_tokens"].append(added(2500, "x y", special=False, lstrip=True, rstrip=True))
    ours, theirs = both(content, tmp_path)
    for text in random_texts(real_texts, 400):
        assert ours.encode(text, allowed_special="all") == theirs.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("form", FORMS)
def test_what_is_saved_is_the_same_tokenizer(form: str, trained: dict[str, Any], tmp_path: Path) -> None:
    ours, theirs = both(variant(trained, form), tmp_path)
    ours.save(tmp_path / "saved")
    again, peer = Tokenizer.from_files(tmp_path / "saved"), AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again.fingerprint == ours.fingerprint
    for text in ("Hello  wörld", " a\n</s>b", "🦊"):
        ids = theirs.encode(text).ids
        assert peer.encode(text, add_special_tokens=False) == ids == again.encode(text, allowed_special="all")
        assert peer.decode(ids) == again.decode(ids)


@pytest.mark.parametrize("form", ["normalizer", "first, split=False"])
def test_long_texts_are_divided_where_nothing_is_merged(
    form: str, trained: dict[str, Any], tmp_path: Path, real_texts: dict[str, str]
) -> None:
    ours, theirs = both(variant(trained, form), tmp_path)
    text = "".join(real_texts.values())[:900_000]
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
    assert [*ours.encode_iterable([text])] == ours.encode(text)


@pytest.fixture(scope="module")
def tiny(trained: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return both(variant(trained, "normalizer"), tmp_path_factory.mktemp("tiny"))[0]


def reference(text: str, vocabulary: Vocabulary) -> list[int]:
    """The definition: characters or the tokens of their bytes, then always the pair of lowest rank, the leftmost."""
    ids: list[int] = []
    for character in f" {text.replace(MARK, ' ')}".encode().decode() if text else "":
        token = vocabulary.ids.get(character.encode())
        ids += [vocabulary.byte_tokens[byte] for byte in character.encode()] if token is None else [token]
    ranks = {pair: rank for rank, pair in enumerate(vocabulary.merges)}
    while found := [(ranks[pair], at) for at, pair in enumerate(pairwise(ids)) if pair in ranks]:
        rank, at = min(found)
        ids[at : at + 2] = [vocabulary.merged[rank]]
    return ids


@given(st.text(st.characters(codec="utf-8"), max_size=40) | st.text("ab ▁é🦊the\n中", max_size=60))
def test_ids_are_those_of_the_definition(tiny: Tokenizer, text: str) -> None:
    ids = tiny.encode(text)
    assert ids == reference(text, tiny.vocabulary)
    assert tiny.decode(ids) == text.replace(MARK, " ")


def test_every_byte_has_its_token(tiny: Tokenizer) -> None:
    """Bytes that are not UTF-8 become U+FFFD as in all our tokenizers: one for what could have been a character."""
    assert [tiny.token_bytes(token) for token in tiny.vocabulary.byte_tokens] == [bytes([byte]) for byte in range(256)]
    tokens = tiny.vocabulary.byte_tokens
    assert tiny.decode([tokens[byte] for byte in "é🦊".encode()[:-1]]) == "é\ufffd"
    assert tiny.decode_bytes([tokens[0xFF]]) == b"\xff"


def test_decoding_what_follows_other_text_keeps_its_space(tiny: Tokenizer) -> None:
    ids = tiny.encode("one two")
    half = tiny.encode("one")
    rest = ids[len(half) :]
    assert tiny.decode(half) + tiny.decode(rest, continues=True) == "one two"
    assert tiny.decode_bytes(ids) == b"one two"
    decoder = StreamDecoder(tiny, continues=True)
    assert "".join(map(decoder.feed, rest)) == " two"
    assert (tiny.have_text([1, 2]), tiny.have_text([1, *half])) == (False, True)


def test_merge_trees_begin_with_characters(tiny: Tokenizer) -> None:
    token = next(token for token in tiny.tokens.values() if len(token.decode(errors="ignore")) == 2 < len(token))
    root, left, *_ = tiny.merge_tree(tiny.vocabulary.ids[token])
    assert (root.start, root.end, left.end) == (0, len(token), len(token.decode()[0].encode()))
    single = tiny.merge_tree(tiny.vocabulary.ids["é".encode()])
    assert [(node.start, node.end, node.rank) for node in single] == [(0, 2, None)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder": {"type": "ByteLevel"}}, "decoder is .*ByteFallback, Fuse"),
        ({"normalizer": {"type": "NFC"}}, "normalizer is .*NFC"),
        ({"pre_tokenizer": {"type": "ByteLevel"}}, "pre_tokenizer .*ByteLevel"),
        ({"pre_tokenizer": FORMS["first, split=True"][1]}, "or Metaspace without a normalizer"),
        ({"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "_"}}, "only U\\+2581"),
    ],
)
def test_what_would_give_other_ids_is_refused(
    change: dict[str, Any], message: str, trained: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(TokenizerError, match=message):
        both({**trained, **change}, tmp_path)


def test_damaged_vocabularies_are_refused(trained: dict[str, Any], tmp_path: Path) -> None:
    def refuse(message: str, **change: Any) -> None:
        with pytest.raises(TokenizerError, match=message):
            both({**trained, "model": {**trained["model"], **change}}, tmp_path)

    vocab = trained["model"]["vocab"]
    refuse("<0x41> is missing", vocab={text: token for text, token in vocab.items() if text != "<0x41>"})
    refuse("same token b' '", vocab={**vocab, " ": 9999})
    refuse("ignore_merges", ignore_merges=True)
    refuse("half of a UTF-16 pair", vocab={**vocab, "\ud800": 9999})
    refuse("ids up to 2064381", vocab={**vocab, "zz": (1 << 21) - 3})
    byte_merge = {"vocab": {**vocab, "<0x0A>a": 9999}, "merges": [*trained["model"]["merges"], ["<0x0A>", "a"]]}
    refuse("joins the ids 13 and .*, of which one is not an ordinary token", **byte_merge)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_documents_are_encoded_each_by_itself(
    form: str, normalized: bool, trained: dict[str, Any], tmp_path: Path
) -> None:
    """As `tokenizers` encodes a list of them; a document that is cut continues without another space.

    So does one behind an added token that is not the separator, if spaces are put before the first text only.
    """
    content = variant(trained, form)
    marker = added(2500, "<m>", special=False, normalized=normalized)
    ours, theirs = both({**content, "added_tokens": [*content["added_tokens"], marker]}, tmp_path)
    documents = ["One day", " a\n", "", "é  the<m>end<m> of<m>", "<m>one", "<m><m>", "day"]
    expected = [encoding.ids for encoding in theirs.encode_batch(documents, add_special_tokens=False)]
    joined = [*chain.from_iterable([*ids, 2] for ids in expected)][:-1]
    text = "</s>".join(documents)
    assert ours.encode_documents(text.encode(), "</s>").tolist() == joined
    chunker = ours.chunker(allowed_special=["</s>"], separator="</s>")
    chunker._chunk_characters = 1
    parts = [
        ours.encode_documents(part.encode(), "</s>", continues=continues).tolist()
        for part, continues in chunker.parts([*text])
    ]
    assert len(parts) > 4
    assert [*chain.from_iterable(parts)] == joined
