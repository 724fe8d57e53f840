"""A second tokenizer in the page: our encoder in JavaScript, against ours in Python and Hugging Face's tokenizers."""

import json
import random
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from playwright.sync_api import Browser, Page, Request, expect

from shared.bpe import PATTERNS, Tokenizer, TokenSpan, train_bpe
from tests.browser.conftest import check_layout, service

LETTERS = [
    *"  \n\r\t'aAbsStTlLvVeErRdDmM09½Ⅷ,.!/<>|_", "\u00a0", "\u3000", "\u0085", "\ufeff", "\u200b", "\u0301", "\u0323",
    "\u0345", "ſ", "\u212a", "ǅ", "é", "ß", "中", "日", "한", "\u1112", "\u1161", "\u11ab", "\u0915", "\u093f",
    "\U0001f600", "\u02b0", "\u0660", "\u200d", "\u0f73", "<s>", "<l>", "<r>", "<b>", " x", "e\u0301", "<|endoftext|>",
    "'ll", "'RE",
]  # fmt: skip
TEXTS = [
    "", " ",
    "It's 12'S o'clock'LL 'ſ", "\u0085x\ufeff y\u2028\r\n\r\n  z", "<s>x<l> y  <l>  <r>  x <b>  <s><s> e\u0301",
    "a" * 3000, "^" * 3000, "   \n \n\t x  ", "\U0001f468\u200d\U0001f469 \0\u202e",
]  # fmt: skip
# Of the columns: ids, first and last characters, whether it is an added token, and its bytes in hexadecimal.
ENCODE = """async ([content, texts, all]) => {
  const load = (name) => import(new URL(`assets/${name}`, document.baseURI));
  const [{ readVocabulary }, { Encoder }] = await Promise.all([load("bpe-file.js"), load("bpe.js")]);
  const encoder = new Encoder(readVocabulary(JSON.parse(content)));
  const encode = (options) => texts.map((text) => {
    const { ids, starts, ends, byteEnds, special, bytes } = encoder.encode(text, options);
    const hex = (index) => Array.from(bytes.slice(index ? byteEnds[index - 1] : 0, byteEnds[index]),
      (byte) => byte.toString(16).padStart(2, "0")).join("");
    return Array.from(ids, (id, index) => [id, hex(index), starts[index], ends[index], special[index] === 1]);
  });
  return JSON.stringify(all.map(encode));
}"""
REFUSE = """async (content) => {
  const { readVocabulary } = await import(new URL("assets/bpe-file.js", document.baseURI));
  try {
    readVocabulary(JSON.parse(content));
    return "not refused";
  } catch (error) {
    return error.message;
  }
}"""


def random_texts(seed: int, count: int = 120) -> list[str]:
    """Characters that patterns and NFC treat in different ways, and any that Python's Unicode has."""
    random_ = random.Random(seed)
    texts = ["".join(random_.choices(LETTERS, k=random_.randint(1, 60))) for _ in range(count)]
    known = [code for code in range(0x20000) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
    return texts + ["".join(map(chr, random_.choices(known, k=40))) for _ in range(count)]


def with_flags(content: dict[str, Any]) -> dict[str, Any]:
    """Added tokens of every kind, NFC, a space before the text, and a template."""
    kinds = {
        "<s>": ["special"], " x": ["normalized"], "<l>": ["special", "lstrip"], "<r>": ["rstrip"],
        "<b>": ["lstrip", "rstrip", "normalized"], "<s><s>": ["special", "normalized"], "e\u0301": ["normalized"],
    }  # fmt: skip
    for token_id, (text, flags) in enumerate(kinds.items(), start=1000):
        names = ("special", "lstrip", "rstrip", "normalized", "single_word")
        content["added_tokens"].append({"id": token_id, "content": text, **{name: name in flags for name in names}})
        content["model"]["vocab"][text] = token_id
    content["normalizer"] = {"type": "NFC"}
    content["pre_tokenizer"]["add_prefix_space"] = True
    parts = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("<s>", "<l>")]
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [parts[0], {"Sequence": {"id": "A", "type_id": 0}}, parts[1]],
        "pair": [],
        "special_tokens": {n: {"id": n, "ids": [i], "tokens": [n]} for n, i in (("<s>", 1000), ("<l>", 1002))},
    }
    return content


def trained(folder: Path, pattern: str) -> dict[str, Any]:
    """A small tokenizer with this pattern, trained on what the texts hold; the JSON of its file."""
    text = " ".join(random_texts(1)) + " it's they'll we're I've don't " * 50
    train_bpe([text], 700, pattern=pattern, special_tokens=["<|endoftext|>"]).tokenizer.save(folder)
    content: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    return content


@pytest.fixture
def encode(page: Page, tokenizer_url: str) -> Callable[..., Any]:
    page.goto(tokenizer_url)
    return lambda content, texts, options: json.loads(page.evaluate(ENCODE, [content, texts, options]))


def columns(text: str, spans: list[TokenSpan]) -> list[list[Any]]:
    """What the encoder must give for these; its characters are those of the text as it is encoded."""
    joined = b"".join(span.bytes for span in spans)
    if joined == text.encode():
        return [[s.id, s.bytes.hex(), s.start, s.end, s.special] for s in spans]
    starts = [sum(byte & 0xC0 != 0x80 for byte in joined[:at]) for at in range(len(joined) + 1)]
    rows, at = [], 0
    for span in spans:
        end = at + len(span.bytes)
        rows.append([span.id, span.bytes.hex(), starts[at + 1] - 1, starts[end], span.special])
        at = end
    return rows


def check(encode: Callable[..., Any], file: Path, texts: list[str]) -> None:
    """The encoder of the page gives what ours gives, with every option, and the ids of Hugging Face's."""
    ours = Tokenizer.from_files(file)
    theirs = tokenizers.Tokenizer.from_file(str(file))
    options = [{}, {"special": True, "template": True}, {"special": True}]
    plain, wrapped, control = encode(file.read_text(), texts, options)
    for text, tokens, others in zip(texts, plain, wrapped, strict=True):
        spans = ours.encode_with_offsets(text)
        assert tokens == columns(text, spans), repr(text)
        spans = ours.encode_with_offsets(text, allowed_special="all", add_special_tokens=True)
        assert others == columns(text, spans), repr(text)
    different = [
        text
        for text, tokens in zip(texts, control, strict=True)
        if theirs.encode(text, add_special_tokens=False).ids != [token[0] for token in tokens]
    ]
    # Characters whose class or decomposition differs between the versions of Unicode.
    assert len(different) <= len(texts) // 100, different[:3]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_named_pattern(encode: Callable[..., Any], tmp_path: Path, pattern: str) -> None:
    trained(tmp_path, pattern)
    check(encode, tmp_path / "tokenizer.json", TEXTS + random_texts(2))


@pytest.mark.parametrize("kind", ["flags", "digits", "each digit", "whole", "ignore merges", "pairs as text"])
def test_every_kind_of_file(encode: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    content = trained(tmp_path, "gpt2")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True, "trim_offsets": False}
    if kind == "flags":
        content = with_flags(content)
    elif kind.endswith(("digits", "digit")):
        digits = {"type": "Digits", "individual_digits": kind == "each digit"}
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, byte_level]}
    elif kind == "whole":
        content["pre_tokenizer"] = byte_level | {"use_regex": False}
    elif kind == "ignore merges":
        content["model"]["ignore_merges"] = True
        content["model"]["merges"] = content["model"]["merges"][::2]
        content["model"]["merges"] = [m for m in content["model"]["merges"] if "".join(m) in content["model"]["vocab"]]
    else:
        content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content))
    check(encode, file, TEXTS + random_texts(3, 60))


@pytest.mark.parametrize("name", ["gpt2", pytest.param("qwen", marks=pytest.mark.slow)])
def test_published_tokenizers(encode: Callable[..., Any], data_dir: Path, tmp_path: Path, name: str) -> None:
    file = data_dir / "tokenizers" / "qwen" / "qwen3_tokenizer.json"
    if name == "gpt2":
        Tokenizer.from_files(data_dir / "tokenizers" / "gpt2").save(tmp_path)
        file = tmp_path / "tokenizer.json"
    real = [path.read_text()[5_000:7_000] for path in sorted((data_dir / "lang").glob("*.txt"))]
    check(encode, file, [*real, *random_texts(4, 40)])


def changed(content: dict[str, Any], path: str, value: object) -> str:
    """The JSON with another value at a path such as `model.type`."""
    *parents, last = path.split(".")
    node: Any = content
    for name in parents:
        node = node[int(name)] if name.isdigit() else node[name]
    node[int(last) if last.isdigit() else last] = value
    return json.dumps(content)


def split_by(pattern: str, behavior: str = "Isolated") -> dict[str, Any]:
    return {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": False},
        ],
    }


REFUSED = [
    ("model", None, "model must have a vocab"),
    ("model.type", "WordPiece", "model.type is WordPiece"),
    ("model.type", "Unigram", "only byte-level BPE is supported"),
    ("model.dropout", 0.1, "model.dropout is 0.1"),
    ("model.byte_fallback", True, "model.byte_fallback is true"),
    ("model.end_of_word_suffix", "</w>", 'model.end_of_word_suffix is "</w>"'),
    ("model.vocab", {"a": 0, "b": 0}, 'the id 0 is given to both "a" and "b"'),
    ("model.vocab", {"a": -1}, "no whole number"),
    ("model.vocab", {"▁a": 0}, "needs the token"),
    ("model.merges.0", ["a"], "merge 0 must be two tokens"),
    ("model.merges.0", ["a", "zzz"], 'needs the token "zzz"'),
    ("decoder", {"type": "WordPiece"}, "decoder is WordPiece"),
    ("decoder", None, "decoder is missing"),
    ("normalizer", {"type": "Lowercase"}, "normalizer is Lowercase"),
    ("normalizer", {"type": "NFKC"}, "normalizer is NFKC"),
    ("pre_tokenizer", {"type": "Metaspace"}, "pre_tokenizer is Metaspace"),
    ("pre_tokenizer", None, "pre_tokenizer is missing"),
    ("pre_tokenizer", split_by("a", "Removed"), 'the behavior "Removed"'),
    ("pre_tokenizer", split_by("a.b"), 'the pattern has ".b" at character 1'),
    ("pre_tokenizer", split_by(r"\p{Han}+"), r"the pattern has "),
    ("pre_tokenizer", split_by("[a-z]+"), "the pattern has "),
    ("pre_tokenizer", split_by("^a|$"), "the pattern has "),
    ("pre_tokenizer", split_by("a+?"), "the pattern has "),
    ("pre_tokenizer", split_by("a{1,3}+"), "the pattern has "),
    ("pre_tokenizer", split_by("(?<=a)b"), "the pattern has "),
    ("pre_tokenizer", split_by("(?i:ass)"), "the pattern has ss in any case"),
    ("pre_tokenizer", split_by("(?i:ß)"), "the pattern has ß in any case"),
    ("pre_tokenizer", split_by(r"(?i:\p{Lu})"), r"the pattern has \p{Lu} in any case"),
    ("pre_tokenizer", split_by("(?i:[^s])"), "the pattern has [^ in any case"),
    ("pre_tokenizer", split_by("a*"), "a match of the empty string"),
    ("pre_tokenizer", split_by("(a"), "no end"),
    ("pre_tokenizer", split_by("a)"), "a ) without a ("),
    ("post_processor", {"type": "BertProcessing"}, "post_processor is BertProcessing"),
    ("added_tokens.0.single_word", True, "is single_word"),
    ("added_tokens.0.id", 5, "has another id in the vocabulary"),
    ("added_tokens", [{"id": 5, "content": "<x>"}], 'the id 5 is given to both "ą" and "<x>"'),
    (
        "added_tokens",
        [{"id": 900, "content": "<x>"}, {"id": 900, "content": "<y>"}],
        'the id 900 is given to both "<x>" and "<y>"',
    ),
    ("added_tokens", [{"id": 900, "content": "<x>"}] * 2, "is empty or given twice"),
    ("added_tokens", [{"id": 32, "content": "Ġ"}], "is spelled like another"),
    ("added_tokens", [{"id": 900, "content": ""}], "is empty or given twice"),
    ("model.vocab.", 900, "empty token"),
]


@pytest.mark.parametrize(("path", "value", "named"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_supported_is_refused_by_name(
    refuse: Callable[[str], str], small: dict[str, Any], path: str, value: object, named: str
) -> None:
    assert named in refuse(changed(json.loads(json.dumps(small)), path, value))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("small"), "gpt2")


@pytest.fixture(scope="module")
def refuse(chromium: Browser, tokenizer_url: str) -> Iterator[Callable[[str], str]]:
    page = chromium.new_page()
    page.goto(tokenizer_url)
    yield lambda content: str(page.evaluate(REFUSE, content))
    page.close()


def open_file(page: Page, name: str, content: bytes) -> None:
    page.locator("#file").set_input_files({"name": name, "mimeType": "application/json", "buffer": content})


def test_a_file_is_compared_and_sent_nowhere(
    page: Page, tokenizer_url: str, tokenizer: Tokenizer, small: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(small))
    second = Tokenizer.from_files(file)
    text = "Once upon a fox, it's été \U0001f600 <|endoftext|>"
    asked: list[Request] = []

    def note(request: Request) -> None:
        asked.append(request)

    page.goto(tokenizer_url)
    page.get_by_label("Parse special tokens").check()
    page.locator("#text").fill(text)
    ours, theirs = (one.encode(text, allowed_special="all") for one in (tokenizer, second))
    expect(page.locator("#first .counts b").first).to_have_text(str(len(ours)))
    page.on("request", note)
    open_file(page, f"</script><img onerror=x>\u202e{'n' * 200}.json", file.read_bytes())
    expect(page.locator("#second").get_by_role("option")).to_have_count(len(theirs))
    expect(page.locator("#second-title")).to_contain_text("Beside </script><img onerror=x>")
    check_layout(page)
    expect(page.locator("#difference")).to_contain_text(f"({len(theirs)}; the served one {len(ours)})")
    ends = [
        {sum(len(t.tokens[i]) for i in ids[: n + 1]) for n in range(len(ids))}
        for t, ids in ((tokenizer, ours), (second, theirs))
    ]
    expect(page.locator("#difference")).to_contain_text(
        f"{len(ends[0] & ends[1])} of its {len(theirs)} tokens end where"
    )
    page.locator("#text").fill(text + " fox")
    longer = second.encode(text + " fox", allowed_special="all")
    expect(page.locator("#second .counts b").first).to_have_text(str(len(longer)))
    page.locator("#second").get_by_role("option").last.click()
    expect(page.locator("#token")).to_contain_text(f"Id{longer[-1]}")
    expect(page.locator("#token")).to_contain_text("A token of the other tokenizer.")
    for request in asked:
        sent = request.post_data_buffer or b""
        assert request.method == "GET" or (
            request.url.startswith(f"{tokenizer_url}/encode?") and sent == (text + " fox").encode()
        )
    page.get_by_role("button", name="Close it").click()
    expect(page.locator("#second").get_by_role("option")).to_have_count(0)
    expect(page.locator("#difference")).to_be_hidden()


def test_offsets_of_a_text_that_is_changed(page: Page, tmp_path: Path) -> None:
    """A space before the text, and NFC: tokens cover characters of the text, but their bytes are others."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(with_flags(trained(tmp_path, "gpt2"))))
    tokenizer = Tokenizer.from_files(tmp_path)
    cells = page.locator("#first tbody td")
    with service("tokenizer", tmp_path) as process:
        page.goto(process.url)
        page.locator("#view").select_option("table")
        for text, is_changed in (("fox e\u0323\u0301 y", True), (" fox ü", False)):
            for template in (False, True):
                page.get_by_label("Add BOS/EOS").set_checked(template)
                page.locator("#text").fill(text)
                spans = tokenizer.encode_with_offsets(text, add_special_tokens=template)
                expect(cells).to_have_count(6 * len(spans))
                expect(page.locator("#first .soft").first).to_be_visible(visible=is_changed)
                place = 0
                for index, span in enumerate(spans):
                    end = place + len(span.bytes) * (span.start < span.end)
                    row = cells.all_text_contents()[6 * index : 6 * index + 6]
                    assert int(row[1]) == span.id
                    assert row[4] == (f"{span.start}–{span.end}" if span.start < span.end else "–")
                    assert row[5] == ("–" if is_changed or place == end else f"{place}–{end}")
                    place = end


def test_files_that_cannot_be_opened_are_named(page: Page, tokenizer_url: str, small: dict[str, Any]) -> None:
    page.goto(tokenizer_url)
    page.locator("#text").fill("fox é")
    status = page.locator("#second-status")
    open_file(page, "a.json", b"{")
    expect(status).to_contain_text("a.json cannot be compared: it is not JSON")
    open_file(page, "b.json", b"\xff\xfe\0")
    expect(status).to_contain_text("b.json cannot be compared: it is not JSON")
    open_file(page, f"{'n' * 200}.json", b"[]")
    check_layout(page)
    open_file(page, "c.json", b"[]")
    expect(status).to_contain_text("c.json cannot be compared: model must have a vocab")
    lacking = json.loads(json.dumps(small))
    merges = [merge for merge in lacking["model"]["merges"] if "Ã" not in "".join(merge)]
    lacking["model"]["merges"] = merges
    lacking["model"]["vocab"] = {text: i for text, i in lacking["model"]["vocab"].items() if "Ã" not in text}
    open_file(page, "d.json", json.dumps(lacking).encode())
    expect(status).to_contain_text("d.json: the vocabulary has no token for the byte 0xc3")
    page.locator("#text").fill("fox")
    expect(page.locator("#second").get_by_role("option").first).to_be_visible()
    expect(status).to_be_hidden()


def test_a_megabyte_is_compared(page: Page, tokenizer_url: str, small: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(small))
    text = ("The fox's 12 balls été. " * 50_000)[: 1 << 20]
    page.goto(tokenizer_url)
    open_file(page, "tokenizer.json", (tmp_path / "tokenizer.json").read_bytes())
    page.locator("#text").fill(text)
    ids = Tokenizer.from_files(tmp_path).encode(text)
    expect(page.locator("#second .counts b").first).to_have_text(f"{len(ids):,}")
    expect(page.locator("#difference")).to_contain_text("the served one")
