import contextlib
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFaceTokenizer
from transformers import PreTrainedTokenizerFast

from shared.bpe import PATTERNS, Tokenizer, TokenizerError, train_bpe
from shared.bpe.byte_alphabet import BYTE_TO_CHARACTER

END = "<|endoftext|>"


def added(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": content, **plain, **flags}


def content_of(*tokens: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A tokenizer.json of the bytes alone, with changes at the top level."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocab = {character: byte for byte, character in enumerate(BYTE_TO_CHARACTER)}
    return {
        "version": "1.0",
        "added_tokens": list(tokens),
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        **changes,
    }


def write(folder: Path, content: dict[str, Any], config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.extended
@pytest.mark.parametrize("name", ["gpt2", "cl100k", "qwen"])
def test_saved_tokenizer_gives_the_same_ids_in_hugging_face(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, real_texts: dict[str, str], sample: str
) -> None:
    ours: Tokenizer = request.getfixturevalue(name)
    ours.save(tmp_path)
    theirs = HuggingFaceTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for language, text in {**real_texts, "sample": f"{sample}{END}"}.items():
        assert ours.encode(text[:20_000], allowed_special="all") == theirs.encode(text[:20_000]).ids, language


def test_places_of_tokens_equal_hugging_face(gpt2: Tokenizer, tmp_path: Path, sample: str) -> None:
    gpt2.save(tmp_path)
    theirs = HuggingFaceTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = f"{sample}{END}{sample}"
    pieces = gpt2.encode_with_offsets(text, allowed_special="all")
    assert [(piece.start, piece.end) for piece in pieces] == theirs.encode(text).offsets


@pytest.mark.parametrize("pattern", [*sorted(PATTERNS), r"\w+|\W"])
def test_learnt_tokenizer_opens_in_hugging_face_and_transformers(
    pattern: str, tmp_path: Path, real_texts: dict[str, str]
) -> None:
    texts = [text[:10_000] for text in real_texts.values()]
    ours = train_bpe(texts, 700, special_tokens=[END, "<|user|>"], pattern=pattern).tokenizer
    ours.save(tmp_path)
    theirs = HuggingFaceTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    transformers = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert transformers.eos_token_id == ours.end_of_text_id == ours.special_tokens[END]
    for text in (*texts, f"a{END} b<|user|>c"):
        ids = ours.encode(text, allowed_special="all")
        assert ids == theirs.encode(text).ids == transformers.encode(text)
        assert theirs.decode(ids, skip_special_tokens=False) == transformers.decode(ids) == text


@pytest.mark.parametrize("name", ["small", "gpt2"])
def test_B14_saving_again_gives_the_same_bytes_and_fingerprint(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    first: Tokenizer = request.getfixturevalue(name)
    first.save(tmp_path / "a")
    second = Tokenizer.from_files(tmp_path / "a")
    second.save(tmp_path / "b")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert second.tokens == first.tokens
    assert second.fingerprint == first.fingerprint
    assert second.end_of_text_id == first.end_of_text_id


def test_B14_tokens_that_are_no_text_survive(tmp_path: Path) -> None:
    tokenizer = train_bpe(["\n\n  a \U0001f600\U0001f601 a\n\n"] * 9, 280).tokenizer
    trained = set(tokenizer.tokens.values())
    assert {b"\n\n", b" a", b"\xf0\x9f"} <= trained
    tokenizer.save(tmp_path)
    assert set(Tokenizer.from_files(tmp_path).tokens.values()) == trained


def test_saved_files_are_readable_by_others_and_nothing_else_is_left(small: Tokenizer, tmp_path: Path) -> None:
    small.save(tmp_path)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "tokenizer.json": 0o644,
        "tokenizer_config.json": 0o644,
    }


def test_B96_flags_of_added_tokens(tmp_path: Path) -> None:
    # Expected ids and texts computed with tokenizers 0.23.3.
    tokens = [
        added(256, "<s>"),
        added(257, "<m>", lstrip=True, rstrip=True),
        added(258, "<u>", special=False, normalized=True),
    ]
    tokenizer = Tokenizer.from_files(write(tmp_path / "in", content_of(*tokens)))
    ids = tokenizer.encode("x <m> y<u><s>", allowed_special="all")
    assert ids == [120, 257, 121, 258, 256]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "xy<u>"
    assert tokenizer.decode(ids) == "x<m>y<u><s>"
    assert tokenizer.encode("<s><u>") == [*b"<s>", 258]
    tokenizer.save(tmp_path / "out")
    assert json.loads((tmp_path / "out/tokenizer.json").read_text(encoding="utf-8"))["added_tokens"] == tokens


@pytest.mark.case("D34")
@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()])
def test_added_tokens_equal_hugging_face_on_random_texts(
    normalizer: normalizers.Normalizer | None, tmp_path: Path
) -> None:
    theirs = HuggingFaceTokenizer(models.BPE(vocab={c: b for b, c in enumerate(BYTE_TO_CHARACTER)}, merges=[]))
    theirs.normalizer = normalizer
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    theirs.add_special_tokens([AddedToken("<s>"), AddedToken("<m>", lstrip=True, rstrip=True), AddedToken("<s><m>")])
    theirs.add_tokens([AddedToken("s>", normalized=False), AddedToken("xm", lstrip=True, normalized=False)])
    # Looked for after the others, in the normalized text; of white space, which others strip; of a single byte.
    theirs.add_tokens(["m>x", "e\u0301s", "\u00e9m", "  ", AddedToken("> x", rstrip=True), "x"])
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_files(tmp_path)
    random_ = random.Random(1)
    units = ["<s>", "<m>", "<", "s", ">", "m", " ", "\n", "\x1c", "\u2003", "x", "e\u0301", "\u00e9", "\u0323"]
    for _ in range(3000):
        text = "".join(random_.choices(units, k=12))
        assert ours.encode(text, allowed_special="all") == theirs.encode(text).ids, text


def test_B97_holes_stay_holes(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_files(write(tmp_path / "in", content_of(added(300, "<gap>"))))
    assert tokenizer.encode("<gap>", allowed_special="all") == [300]
    assert (tokenizer.vocab_size, len(tokenizer)) == (301, 257)
    with pytest.raises(TokenizerError, match="token 0 is 256, but no token has that id"):
        tokenizer.decode([256])
    tokenizer.save(tmp_path / "out")
    assert Tokenizer.from_files(tmp_path / "out").special_tokens == {"<gap>": 300}
    # Hugging Face renumbers an added token that is not in the vocabulary; ours is in both places.
    assert HuggingFaceTokenizer.from_file(str(tmp_path / "out/tokenizer.json")).encode("<gap>").ids == [300]


def bos_template() -> dict[str, Any]:
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    specials = {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}
    template = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": specials}
    return {"type": "Sequence", "processors": [{"type": "ByteLevel", "trim_offsets": False}, template]}


def test_B27_the_begin_of_text_id_never_doubles(tmp_path: Path) -> None:
    content = content_of(added(256, "<s>"), post_processor=bos_template())
    tokenizer = Tokenizer.from_files(write(tmp_path / "in", content, {"bos_token": {"content": "<s>"}}))
    assert tokenizer.bos_id == 256
    hi = [256, *b"hi"]
    assert tokenizer.encode("hi") == hi[1:]
    assert tokenizer.encode("hi", add_special_tokens=True) == hi
    assert tokenizer.encode("<s>hi", allowed_special=["<s>"], add_special_tokens=True) == hi
    # A text that only spells it has none, so it gets one.
    assert tokenizer.encode("<s>hi", add_special_tokens=True) == [256, *b"<s>hi"]
    assert [p.id for p in tokenizer.encode_with_offsets("hi", add_special_tokens=True)] == hi
    tokenizer.save(tmp_path / "out")
    saved = Tokenizer.from_files(tmp_path / "out")
    assert (saved.bos_id, saved.encode("hi", add_special_tokens=True)) == (256, hi)
    assert HuggingFaceTokenizer.from_file(str(tmp_path / "out/tokenizer.json")).encode("hi").ids == hi


def test_end_of_text_is_the_configured_token_before_the_usual_one(tmp_path: Path) -> None:
    content = content_of(added(256, END), added(257, "<|im_end|>"))
    assert Tokenizer.from_files(write(tmp_path, content)).end_of_text_id == 256
    assert Tokenizer.from_files(write(tmp_path, content, {"eos_token": "<|im_end|>"})).end_of_text_id == 257
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.from_files(write(tmp_path, content_of())).end_of_text_id is None


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": r"\w+|\W"}, "behavior": "Isolated", "invert": False}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


@pytest.mark.case("D28")
@pytest.mark.parametrize("expression", ["gpt2", r"\p{N}{1,3}+|\s++$|.", r"\w+|\W"])
def test_a_split_is_the_expression_that_it_spells(tmp_path: Path, expression: str) -> None:
    byte_level = {**BYTE_LEVEL, "trim_offsets": False}
    content = content_of(pre_tokenizer=sequence({**SPLIT, "pattern": {"Regex": expression}}, byte_level))
    content["model"]["vocab"] |= {"bĠ": 256, "bĠa": 257, "ab": 258}
    content["model"]["merges"] = [["b", "Ġ"], ["bĠ", "a"], ["a", "b"]]
    path = write(tmp_path, content) / "tokenizer.json"
    theirs = HuggingFaceTokenizer.from_file(str(path))
    for text in ("ab gpt2 ab", "ab 12345 ab\u200dab  "):
        assert Tokenizer.from_files(path).encode(text) == theirs.encode(text).ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "NFKC"}}, "NFKC"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}}, "Lowercase"),
        ({"pre_tokenizer": None}, "pre_tokenizer is missing"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "Metaspace"),
        ({"pre_tokenizer": sequence(SPLIT, {**BYTE_LEVEL, "add_prefix_space": True})}, "before every pretoken"),
        ({"pre_tokenizer": sequence({"type": "Digits"}, {"type": "ByteLevel"})}, "before every pretoken"),
        ({"pre_tokenizer": sequence(SPLIT, {**BYTE_LEVEL, "use_regex": True})}, "Split, ByteLevel with use_regex True"),
        ({"pre_tokenizer": sequence({"type": "Digits"}, BYTE_LEVEL)}, "Digits, ByteLevel with use_regex False"),
        ({"pre_tokenizer": sequence({"type": "Digits"}, SPLIT, BYTE_LEVEL)}, "Digits, Split, ByteLevel"),
        ({"pre_tokenizer": sequence(SPLIT, SPLIT, BYTE_LEVEL)}, "Split, Split"),
        ({"pre_tokenizer": sequence({**SPLIT, "behavior": "Removed"}, BYTE_LEVEL)}, "Removed"),
        ({"pre_tokenizer": sequence({**SPLIT, "behavior": "Removed", "invert": True}, BYTE_LEVEL)}, "every character"),
        ({"pre_tokenizer": sequence({**SPLIT, "behavior": "Contiguous"}, BYTE_LEVEL)}, "Contiguous"),
        ({"pre_tokenizer": sequence({**SPLIT, "pattern": {"String": " "}}, BYTE_LEVEL)}, "String"),
        ({"pre_tokenizer": sequence({**SPLIT, "pattern": {"Regex": "("}}, BYTE_LEVEL)}, "regular expression"),
        ({"decoder": {"type": "WordPiece"}}, "decoder is WordPiece"),
        ({"post_processor": {"type": "BertProcessing"}}, "BertProcessing"),
        ({"post_processor": {"type": "TemplateProcessing", "single": [{}]}}, "damaged"),
        ({"post_processor": bos_template()}, "256"),
        ({"added_tokens": [added(256, "<s>", single_word=True)]}, "single_word"),
        ({"added_tokens": [added(97, "<s>")]}, "97"),
        ({"added_tokens": [added(256, "<s>"), added(257, "<s>")]}, "twice"),
        ({"added_tokens": [added(256, "")]}, "empty"),
        ({"added_tokens": [added(-1, "<s>")]}, "-1"),
        ({"added_tokens": [added(True, "<s>")]}, "True"),
        ({"added_tokens": [added(97, "b")]}, "98 in the vocabulary"),
        ({"added_tokens": [added(0xE9, "é")]}, "the spelling of an ordinary token"),
        ({"added_tokens": {}, "model": 3}, "model"),
    ],
)
def test_what_would_not_be_matched_exactly_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, content_of(**change)) / "tokenizer.json"
    with pytest.raises(TokenizerError) as error:
        Tokenizer.from_files(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "WordPiece"}, "WordPiece"),
        ({"byte_fallback": True}, "byte_fallback"),
        ({"dropout": 0.1}, "dropout"),
        ({"end_of_word_suffix": "</w>"}, "end_of_word_suffix"),
        ({"merges": None}, "merges"),
        ({"merges": ["a b"]}, "merge 0, 'a b', needs the token 'ab'"),
        ({"merges": [["a", "b", "c"]]}, "merge 0 must be two tokens"),
        ({"vocab": {}}, "the vocabulary has no tokens"),
        ({"vocab": {"a": 0, "b": 0}}, "id 0"),
        ({"vocab": {"a": -1}}, "-1"),
        ({"vocab": {"a": True}}, "True"),
        ({"vocab": {"a": "0"}}, "'0'"),
        ({"vocab": {"\u4e2d": 0}}, "byte-level"),
        ({"vocab": []}, "vocabulary"),
    ],
)
def test_a_model_of_another_kind_is_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    content = copy.deepcopy(content_of())
    content["model"].update(change)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_files(write(tmp_path, content))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"\xff", b'{"a": 1, "a": 2}', b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]
)
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.from_files(tmp_path)


@pytest.mark.parametrize("name", ["nothing", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(TokenizerError, match=f"{name} cannot be read: No such file"):
        Tokenizer.from_files(tmp_path / name)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="has neither"):
        Tokenizer.from_files(tmp_path)


def places_in(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The keys that lead to every value within a JSON value, apart from the entries of a vocabulary."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [] if place == () else [place]
    for key, child in children:
        if place != ("model", "vocab"):
            found += places_in(child, (*place, key))
    return found


STRANGE = [None, 0, -1, 1.5, True, "x", "\ud800", [], {}, [1], [[]], [{}], {"type": 3}, {"type": "Sequence"}, 10**30]


@pytest.mark.extended
def test_a_strange_value_anywhere_is_refused_or_harmless(tmp_path: Path) -> None:
    content = content_of(
        added(256, "<s>"),
        normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]},
        pre_tokenizer=sequence(SPLIT, BYTE_LEVEL),
        post_processor=bos_template(),
    )
    content["model"]["vocab"]["ab"] = 257
    content["model"]["merges"] = [["a", "b"]]
    for *way, last in places_in(content):
        for strange in STRANGE:
            changed = copy.deepcopy(content)
            holder = changed
            for key in way:
                holder = holder[key]
            holder[last] = strange
            with contextlib.suppress(TokenizerError):
                tokenizer = Tokenizer.from_files(write(tmp_path, changed))
                assert tokenizer.decode(tokenizer.encode("abc", add_special_tokens=True)).endswith("abc")


def test_without_a_regex_the_whole_text_is_one_piece(tmp_path: Path) -> None:
    content = content_of(pre_tokenizer=BYTE_LEVEL)
    content["model"]["vocab"]["aĠ"] = 256
    content["model"]["merges"] = ["a Ġ"]
    tokenizer = Tokenizer.from_files(write(tmp_path / "in", content))
    assert tokenizer.encode("a b") == [256, ord("b")]
    tokenizer.save(tmp_path / "out")
    assert HuggingFaceTokenizer.from_file(str(tmp_path / "out/tokenizer.json")).encode("a b").ids == [256, ord("b")]


@pytest.mark.case("D57")
def test_of_a_merge_that_is_listed_twice_the_last_counts_as_in_hugging_face(tmp_path: Path) -> None:
    content = content_of()
    content["model"] |= {"merges": ["a b", "b c", "a b"], "vocab": content["model"]["vocab"] | {"ab": 256, "bc": 257}}
    folder = write(tmp_path / "twice", content)
    theirs = HuggingFaceTokenizer.from_file(str(folder / "tokenizer.json"))
    assert Tokenizer.from_files(folder).encode("abc") == theirs.encode("abc").ids == [ord("a"), 257]


@pytest.mark.case("D57")
def test_truncation_and_padding_are_no_part_of_a_tokenizer_in_transformers_either(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "!",
    }  # fmt: skip
    folder = write(tmp_path / "shaped", content_of(truncation=truncation, padding=padding), {"tokenizer_class": "x"})
    assert Tokenizer.from_files(folder).encode("abcdefgh") == [*b"abcdefgh"]
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    assert theirs.encode("abcdefgh") == [*b"abcdefgh"]
