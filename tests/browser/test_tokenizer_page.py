"""The page of the tokenizer service, against the service and the tokenizer that it serves."""

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

import httpx
import pytest
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

from shared.bpe import Tokenizer
from tests.browser.conftest import Watched, check_accessibility, check_layout, service

TEXT = "Once upon a fox, été \U0001f600\n\tend <|endoftext|>."
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "abc\u202edef\u202c \u2066ghi\u2069 \u200b\u200d\ufeff",
    "a\0b\x07c\x1b[31m\x7f\x85",
    "x" * 100_000,
    "e" + "\u0301" * 500,
    "שלום العربية \u0915\u094d\u0937",
    "'\"`${1}\\u0000 %3Cb%3E &lt;b&gt;",
]


def ids_on(page: Page) -> list[int]:
    """The ids that the page shows, from its view of ids."""
    page.locator("#view").select_option("ids")
    shown = page.locator("#first p.mono").text_content()
    page.locator("#view").select_option("pieces")
    return [int(token_id) for token_id in (shown or "").split(",") if token_id.strip()]


def pieces(page: Page) -> Locator:
    return page.locator("#first").get_by_role("option")


def enter(page: Page, text: str, count: int) -> None:
    """Enter a text, and wait until so many tokens are counted."""
    page.locator("#text").fill(text)
    expect(page.locator("#first .counts b").first).to_have_text(f"{count:,}")


@pytest.fixture
def tokens(page: Page, tokenizer_url: str, tokenizer: Tokenizer) -> Page:
    page.goto(tokenizer_url)
    expect(page.locator("#served")).to_contain_text(f"{tokenizer.vocab_size} tokens")
    return page


def test_the_page_is_small(page: Page, tokenizer_url: str) -> None:
    """All that it loads, before compression; what reads another tokenizer is loaded with the first file."""
    loaded = [httpx.get(tokenizer_url)]
    page.on("request", lambda request: loaded.append(httpx.get(request.url)) if "/assets/" in request.url else None)
    page.goto(tokenizer_url)
    expect(page.locator("#served")).not_to_be_empty()
    assert len(loaded) > 10
    assert sum(len(response.content) for response in loaded) < 60_000


def test_tokens_appear_as_one_types(tokens: Page, tokenizer: Tokenizer) -> None:
    tokens.locator("#text").press_sequentially("Once upon a fox")
    expect(pieces(tokens)).to_have_text(["Once", "·upon", "·a", "·fox"])
    enter(tokens, TEXT, len(tokenizer.encode(TEXT)))
    assert ids_on(tokens) == tokenizer.encode(TEXT)
    counts = tokens.locator("#first .counts")
    size = len(TEXT.encode())
    expect(counts).to_contain_text(f"{len(TEXT)} characters")
    expect(counts).to_contain_text(f"{size} bytes")
    expect(counts).to_contain_text(f"{size / len(tokenizer.encode(TEXT)):.2f} bytes per token")
    tokens.locator("#text").fill("")
    expect(pieces(tokens)).to_have_count(0)


def test_special_tokens_are_text_or_control(tokens: Page, tokenizer: Tokenizer) -> None:
    enter(tokens, TEXT, len(tokenizer.encode(TEXT)))
    expect(tokens.locator("#first .piece.special")).to_have_count(0)
    tokens.get_by_label("Parse special tokens").check()
    expect(tokens.locator("#first .piece.special")).to_have_text("<|endoftext|>")
    assert ids_on(tokens) == tokenizer.encode(TEXT, allowed_special="all")


def test_ids_bytes_and_offsets(tokens: Page, tokenizer: Tokenizer) -> None:
    spans = tokenizer.encode_with_offsets(TEXT)
    enter(tokens, TEXT, len(spans))
    tokens.locator("#view").select_option("table")
    rows = [row.split("\t") for row in tokens.locator("#first tbody").inner_text().split("\n") if "\t" in row]
    cells = tokens.locator("#first tbody td").all_text_contents()
    assert len(rows) >= len(spans)
    place = 0
    for index, span in enumerate(spans):
        number, token_id, text, data, characters, offsets = cells[6 * index : 6 * index + 6]
        assert (int(number), int(token_id)) == (index + 1, span.id)
        assert bytes.fromhex(data) == span.bytes
        assert characters == f"{span.start}–{span.end}"
        assert offsets == f"{place}–{place + len(span.bytes)}"
        assert "\ufffd" not in text
        place += len(span.bytes)


def test_white_space_is_shown_or_not(tokens: Page) -> None:
    enter(tokens, "a \tb\n", 5)
    expect(pieces(tokens)).to_have_text(["a", "·", "⇥", "b", "⏎\n"], use_inner_text=False)
    tokens.get_by_label("Show white space").uncheck()
    assert pieces(tokens).all_text_contents() == ["a", " ", "\t", "b", "\n"]


def test_a_token_has_its_bytes_and_its_merges(tokens: Page, tokenizer: Tokenizer) -> None:
    enter(tokens, "é fox", 3)
    pieces(tokens).nth(2).click()
    panel = tokens.locator("#token")
    [fox] = tokenizer.encode(" fox")
    expect(panel.locator("dl")).to_contain_text(f"Id{fox}Its bytes20 66 6f 78Token3 of the textCharacters1–5Bytes2–6")
    nodes = tokenizer.merge_tree(fox)
    expect(panel.locator(".tree li")).to_have_count(len(nodes))
    for item, node in zip(panel.locator(".tree li").all_text_contents(), nodes, strict=True):
        assert item.startswith(f"level {node.depth + 1} ")
        assert item.endswith(f"{node.id}, {'a byte' if node.rank is None else f'merge {node.rank}'}")
    panel.locator(".tree li button").nth(1).click()
    expect(panel.locator("dl dd").first).to_have_text(str(nodes[1].id))
    pieces(tokens).nth(2).click()
    enter(tokens, "é fox.", 4)
    expect(panel.locator("dl")).to_have_text(f"Id{fox}Its bytes20 66 6f 78")  # its place was that in another text
    pieces(tokens).nth(0).click()
    expect(panel).to_contain_text("Not text by itself: bytes of a part of a character")


def test_a_megabyte_is_pasted(tokens: Page, tokenizer: Tokenizer) -> None:
    text = ("The fox. " * 120_000)[: 1 << 20]
    ids = tokenizer.encode(text)
    tokens.evaluate("text => navigator.clipboard.writeText(text)", text)
    tokens.locator("#text").focus()
    tokens.keyboard.press("Control+V")
    expect(tokens.locator("#first .counts b").first).to_have_text(f"{len(ids):,}")
    expect(tokens.locator("#held")).to_contain_text("A text of 1,048,576 characters")
    expect(pieces(tokens)).to_have_count(500)
    tokens.get_by_label("Go to token, Tokens", exact=True).fill(str(len(ids)))
    tokens.keyboard.press("Enter")
    expect(tokens.locator("#first .window")).to_contain_text(f"to {len(ids):,} of {len(ids):,}")
    expect(pieces(tokens).last).to_be_focused()
    expect(tokens.locator("#token")).to_contain_text(f"{len(ids):,} of the text")
    expect(tokens.locator("#token")).to_contain_text(f"–{1 << 20}Bytes")
    tokens.get_by_role("button", name="Clear").click()
    expect(tokens.locator("#text")).to_be_focused()
    expect(pieces(tokens)).to_have_count(0)


def test_an_older_answer_is_dropped(tokens: Page) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if not held:
            held.append(route)
        else:
            route.continue_()

    tokens.route("**/encode?*", hold)
    tokens.locator("#text").fill("a fox a fox")
    with tokens.expect_request("**/encode?*"):
        pass
    enter(tokens, "The", 1)
    assert len(held) == 1
    aborted = held[0].request.failure
    assert aborted is not None
    assert "ABORTED" in aborted
    expect(pieces(tokens)).to_have_text(["The"])


def test_ids_become_text_and_errors_are_named(tokens: Page, tokenizer: Tokenizer, watched: Watched) -> None:
    watched.expected.append("400")
    field, status, text = (
        tokens.get_by_label("Ids to text"),
        tokens.locator("#decode-status"),
        tokens.locator("#decoded"),
    )
    field.fill(json.dumps(tokenizer.encode("Once upon a\u202e fox", allowed_special="all")))
    expect(text).to_have_text("Once·upon·aU+202E·fox")
    field.fill("72, x7")
    expect(status).to_have_text('Item 2, "x7", is not an id.')
    expect(text).to_be_hidden()
    field.fill("72 100000")
    expect(status).to_contain_text(f"token 1 is 100000, but ids are 0 to {tokenizer.vocab_size - 1}")
    field.fill("72 195")
    expect(text).to_have_text("H\ufffd")
    expect(status).to_contain_text("U+FFFD stands where the bytes are not UTF-8")
    field.fill("99999999999999999999")
    expect(status).to_contain_text("is not an id")
    field.fill("")
    expect(status).to_be_hidden()


def test_the_vocabulary_is_searched(tokens: Page, tokenizer: Tokenizer, watched: Watched) -> None:
    watched.expected += ["400", "422"]
    query, found, rows = tokens.locator("#query"), tokens.locator("#found"), tokens.locator("#entries tbody tr")
    query.fill("n")
    want = sorted((len(token), number) for number, token in tokenizer.tokens.items() if b"n" in token)
    expect(found).to_have_text(f"{len(want)} tokens with “n”, the shortest first")
    assert [int(row.split("\t")[0]) for row in rows.all_inner_texts()] == [number for _, number in want]
    tokens.locator("#by").select_option("bytes")
    query.fill("20 66")
    expect(rows.first).to_contain_text("·f")
    expect(found).to_contain_text("with “20 66”")
    query.fill("zz")
    expect(found).to_contain_text("Bytes: must be bytes of two hexadecimal digits each")
    tokens.locator("#by").select_option("id")
    query.fill("290")
    expect(rows.first).to_contain_text("290")
    tokens.get_by_role("button", name="More", exact=True).click()
    expect(rows).to_have_count(tokenizer.vocab_size - 290)
    expect(tokens.get_by_role("button", name="More", exact=True)).to_be_hidden()
    rows.last.get_by_role("button").click()
    expect(tokens.locator("#token")).to_contain_text("It is found in the text as a whole; no merge makes it.")
    query.fill("5000")
    expect(found).to_contain_text(f"5000 is beyond the ids 0 to {tokenizer.vocab_size - 1}")
    query.fill("seven")
    expect(found).to_have_text("An id is a whole number.")


@pytest.fixture(scope="module")
def odd_url(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A vocabulary with a token of 5,000 bytes, markup as a token, one that no merge reaches, and a hole."""
    folder = tmp_path_factory.mktemp("odd")
    word = bytes([ord("A"), *(97 + number * number % 26 for number in range(4_999))])
    vocab = {bytes([byte]): byte for byte in range(256)} | {word[: end + 1]: 255 + end for end in range(1, 5_000)}
    vocab[b"qqq"] = 5_300
    merges = [(word[:end], word[end : end + 1]) for end in range(1, 5_000)]
    special = ["<img src=x onerror=alert(1)>", "</script>\u202e\0"]
    Tokenizer.from_vocab(vocab, merges, special_tokens=special).save(folder)
    with service("tokenizer", folder) as process:
        yield process.url


def test_odd_tokens_are_explained(page: Page, odd_url: str) -> None:
    word = bytes([ord("A"), *(97 + number * number % 26 for number in range(4_999))]).decode()
    page.goto(odd_url)
    enter(page, word, 1)
    pieces(page).click()
    panel = page.locator("#token")
    expect(panel.locator(".tree li")).to_have_count(200)
    panel.get_by_role("button", name="More of the tree").click()
    expect(panel.locator(".tree li")).to_have_count(400)
    expect(panel.locator(".tree li").last).to_contain_text("level 400")
    check_layout(page)
    page.locator("#by").select_option("id")
    page.locator("#query").fill("5299")
    expect(page.locator("#found")).to_contain_text("No token has the id 5299.")
    page.locator("#entries").get_by_role("button", name="5300").click()
    expect(panel).to_contain_text("No merge reaches it: merging its bytes gives the tokens below.")
    expect(panel).to_contain_text("As plain text it is encoded to: 113, 113, 113.")
    page.locator("#entries").get_by_role("button", name="5301").click()
    expect(panel.locator(".shown")).to_have_text("<img·src=x·onerror=alert(1)>")
    page.locator("#entries").get_by_role("button", name="5302").click()
    expect(panel.locator(".shown")).to_have_text("</script>U+202E␀")
    check_layout(page)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_shown_and_moves_nothing(tokens: Page, tokenizer: Tokenizer, text: str) -> None:
    count = len(tokenizer.encode(text))
    tokens.on("dialog", lambda dialog: pytest.fail(dialog.message))
    enter(tokens, text, count)
    tokens.locator("#query").fill(text[:100])
    tokens.locator("#ids").fill(text)
    expect(tokens.locator("#decode-status")).to_contain_text("is not an id")
    tokens.locator("#ids").fill(json.dumps(tokenizer.encode(text)))
    expect(tokens.locator("#decoded")).not_to_be_empty()
    assert tokens.locator("img, script:not([src])").count() == 0
    shown = "".join(pieces(tokens).all_text_contents())
    for hidden in "\u202e\u2066\u200b\u200d\ufeff\0\x07\x1b":
        assert hidden not in shown
    check_layout(tokens)
    assert ids_on(tokens) == tokenizer.encode(text)[:500]


def test_an_example(tokens: Page, tokenizer: Tokenizer) -> None:
    tokens.get_by_role("button", name="Example").click()
    expect(pieces(tokens).first).to_have_text("Once")
    assert ids_on(tokens) == tokenizer.encode(tokens.locator("#text").input_value())


def test_a_text_that_is_refused_leaves_no_tokens_of_another(tokens: Page, watched: Watched) -> None:
    watched.expected.append("413")
    enter(tokens, "The fox", 2)
    tokens.locator("#text").fill("x" * (8 * 1024 * 1024 + 1))
    expect(tokens.locator("#status")).to_contain_text("The body of 8,388,609 bytes exceeds the limit of 8,388,608")
    expect(pieces(tokens)).to_have_count(0)
    tokens.locator("#held").get_by_role("button", name="Clear").click()
    enter(tokens, "The fox", 2)


def test_half_of_a_pair_is_named(tokens: Page) -> None:
    tokens.locator("#text").evaluate("field => { field.value = 'a\\ud800'; field.dispatchEvent(new Event('input')); }")
    expect(tokens.locator("#status")).to_contain_text("half of a UTF-16 pair")
    expect(pieces(tokens)).to_have_count(4)


def test_a_link_restores_the_page(
    tokens: Page, new_context: Callable[..., BrowserContext], tokenizer: Tokenizer
) -> None:
    enter(tokens, TEXT, len(tokenizer.encode(TEXT)))
    tokens.get_by_label("Parse special tokens").check()
    tokens.locator("#ids").fill("72 105")
    tokens.locator("#query").fill("fo")
    tokens.locator("#view").select_option("table")
    tokens.wait_for_url(lambda url: '"fo"' in unquote(url) and '"table"' in unquote(url))
    other = new_context().new_page()
    other.goto(tokens.url)
    expect(other.locator("#text")).to_have_value(TEXT)
    expect(other.locator("#decoded")).to_have_text("Hi")
    expect(other.locator("#entries tbody tr").first).to_be_visible()
    expect(other.locator("#first tbody tr")).to_have_count(len(tokenizer.encode(TEXT, allowed_special="all")))


@pytest.mark.parametrize("state", ["%", "null", "[]", '{"text": 5, "view": "draw", "special": "x", "by": {}}'])
def test_a_damaged_link_is_an_empty_page(page: Page, tokenizer_url: str, state: str) -> None:
    page.goto(f"{tokenizer_url}/#{quote(state)}" if state != "%" else f"{tokenizer_url}/#%")
    enter(page, "The", 1)
    expect(pieces(page)).to_have_text(["The"])


def test_requests_are_copied(tokens: Page, tokenizer: Tokenizer, tokenizer_url: str) -> None:
    text = 'it\'s "a" \\ fox\u202e\u2028\n\0é \U0001f600\U000e0041 <|e|> $HOME `x`'
    ids = tokenizer.encode(text, allowed_special="all")
    tokens.get_by_label("Parse special tokens").check()
    enter(tokens, text, len(ids))
    tokens.get_by_role("button", name="Copy as curl").click()
    expect(tokens.get_by_role("button", name="Copied")).to_be_visible()
    command = shlex.split(tokens.evaluate("navigator.clipboard.readText()"))
    assert [command[0], command[1], command[2], command[4]] == ["curl", f"{tokenizer_url}/encode", "-H", "-d"]
    answer = httpx.post(command[1], content=command[5], headers=dict([command[3].split(": ")]))
    assert answer.json()["tokens"] == ids
    tokens.get_by_role("button", name="Copy as Python").click()
    tokens.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('import')")
    program = tokens.evaluate("navigator.clipboard.readText()")
    assert "\U000e0041" not in program
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert str(ids) in printed


def test_a_key_is_asked_for(page: Page, model_dir: Path, watched: Watched) -> None:
    watched.expected.append("401")
    with service("tokenizer", model_dir, api_keys="correct-horse") as process:
        page.goto(process.url)
        dialog = page.get_by_role("dialog", name="API key")
        dialog.get_by_label("Key").fill("wrong")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("does not know this key")
        dialog.get_by_label("Key").fill("correct-horse")
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        enter(page, "The", 1)
        pieces(page).click()
        expect(page.locator("#token .tree li").first).to_be_visible()
        page.get_by_role("button", name="Copy as Python").click()
        expect(page.locator("#python")).to_have_text("Copied")
        program = page.evaluate("navigator.clipboard.readText()")
        assert "horse" not in page.url + program
        environment = {**os.environ, "KEY": "correct-horse"}
        command = [sys.executable, "-c", program]
        assert "tokens" in subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        page.get_by_role("button", name="Copy as curl").click()
        expect(page.locator("#curl")).to_have_text("Copied")
        program = page.evaluate("navigator.clipboard.readText()")
        assert "horse" not in program
        command = ["bash", "-c", program]
        assert "tokens" in subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0


def test_a_service_that_is_killed_and_started_again(page: Page, model_dir: Path, watched: Watched) -> None:
    watched.expected += ["ERR_CONNECTION", "503"]  # while it loads
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with service("tokenizer", model_dir, port=port) as process:
        page.goto(process.url)
        enter(page, "The", 1)
    page.locator("#text").fill("The fox")
    expect(page.locator("#status")).to_contain_text("No connection to the service.")
    page.locator("#query").fill("fo")
    expect(page.locator("#found")).to_contain_text("No connection to the service.")
    with service("tokenizer", model_dir, port=port):
        expect(pieces(page)).to_have_text(["The", "·fox"])
        expect(page.locator("#status")).to_be_hidden()
        expect(page.locator("#found")).to_contain_text("with “fo”")


def test_everything_by_keyboard(tokens: Page) -> None:
    tokens.keyboard.press("Tab")  # the link to the API
    tokens.keyboard.press("Tab")
    expect(tokens.get_by_label("Text", exact=True)).to_be_focused()
    tokens.keyboard.type("Once upon a fox")
    expect(pieces(tokens)).to_have_count(4)
    for _ in range(8):
        tokens.keyboard.press("Tab")
    expect(pieces(tokens).first).to_be_focused()
    expect(tokens.locator("#token .shown")).to_have_text("Once")
    tokens.keyboard.press("ArrowRight")
    tokens.keyboard.press("ArrowDown")
    expect(tokens.locator("#token .shown")).to_have_text("·a")
    tokens.keyboard.press("End")
    expect(tokens.locator("#token .shown")).to_have_text("·fox")
    tokens.keyboard.press("ArrowRight")
    expect(pieces(tokens).last).to_be_focused()
    tokens.keyboard.press("Home")
    expect(tokens.locator("#token .shown")).to_have_text("Once")
    expect(pieces(tokens).first).to_have_attribute("aria-selected", "true")
    expect(tokens.locator("#token .tree li").nth(1)).to_be_visible()
    tokens.keyboard.press("Tab")  # the file
    tokens.keyboard.press("Tab")  # the tree
    expect(tokens.locator("#token .tree button").first).to_be_focused()
    tokens.keyboard.press("Tab")
    tokens.keyboard.press("Enter")
    expect(tokens.locator("#token h3").first).to_be_focused()


def test_pages_of_a_long_text_by_keyboard(tokens: Page) -> None:
    enter(tokens, "The fox. " * 400, 1_201)
    pieces(tokens).first.focus()
    tokens.keyboard.press("PageDown")
    expect(tokens.locator("#first .window")).to_contain_text("tokens 501 to 1,000 of 1,201")
    expect(pieces(tokens).first).to_be_focused()
    tokens.keyboard.press("ArrowLeft")
    expect(tokens.locator("#first .window")).to_contain_text("tokens 1 to 500 of")
    expect(pieces(tokens).last).to_be_focused()


def test_accessible_in_both_themes_and_at_any_width(tokens: Page, tokenizer: Tokenizer) -> None:
    enter(tokens, TEXT, len(tokenizer.encode(TEXT)))
    tokens.get_by_label("Parse special tokens").check()
    tokens.locator("#query").fill("fo")
    tokens.locator("#ids").fill("72 105")
    pieces(tokens).nth(1).click()
    expect(tokens.locator("#token .tree li").first).to_be_visible()
    expect(tokens.locator("#decoded")).to_have_text("Hi")
    expect(tokens.locator("#entries tbody tr").first).to_be_visible()
    for view in ("ids", "table", "pieces"):
        tokens.locator("#view").select_option(view)
        check_layout(tokens)
        check_accessibility(tokens)
