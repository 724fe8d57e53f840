"""Merge trees, against the merges of the vocabulary and the tokens that encoding gives."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from shared.bpe import Tokenizer, TreeNode, train_bpe
from tests.growth import growth

BYTES = {bytes([byte]): byte for byte in range(256)}


def children(nodes: list[TreeNode], index: int) -> list[TreeNode]:
    """The two parts of a node in preorder."""
    node = nodes[index]
    left = nodes[index + 1]
    right = next(other for other in nodes[index + 2 :] if other.start == left.end and other.depth == node.depth + 1)
    return [left, right]


def check(tokenizer: Tokenizer, token: bytes, nodes: list[TreeNode]) -> None:
    """Every node has the bytes of its id, and its two parts are the merge of its rank."""
    roots = [node for node in nodes if node.depth == 0]
    assert [roots[0].start, *(root.end for root in roots)] == [*(root.start for root in roots), len(token)]
    for index, node in enumerate(nodes):
        assert node.id is not None
        assert tokenizer.token_bytes(node.id) == token[node.start : node.end]
        if node.rank is None:
            assert node.end == node.start + 1
        else:
            left, right = children(nodes, index)
            assert tokenizer.vocabulary.merges[node.rank] == (left.id, right.id)
            assert (left.start, left.end, right.end) == (node.start, right.start, node.end)


def test_a_small_tree_in_preorder() -> None:
    vocab = BYTES | {b"lo": 256, b"low": 257, b"er": 258, b"lower": 259}
    merges = [(b"l", b"o"), (b"lo", b"w"), (b"e", b"r"), (b"low", b"er")]
    tokenizer = Tokenizer.from_vocab(vocab, merges)
    assert [(n.depth, n.id, n.start, n.end, n.rank) for n in tokenizer.merge_tree(259)] == [
        (0, 259, 0, 5, 3),
        (1, 257, 0, 3, 1),
        (2, 256, 0, 2, 0),
        (3, ord("l"), 0, 1, None),
        (3, ord("o"), 1, 2, None),
        (2, ord("w"), 2, 3, None),
        (1, 258, 3, 5, 2),
        (2, ord("e"), 3, 4, None),
        (2, ord("r"), 4, 5, None),
    ]
    assert tokenizer.merge_tree(ord("l")) == [TreeNode(0, ord("l"), 0, 1, None)]


def test_a_token_that_no_merge_reaches_has_several_roots() -> None:
    vocab = BYTES | {b"ab": 256, b"bc": 257, b"abc": 258, b"zz": 259}
    # "abc" needs a + bc, but ab comes first.
    tokenizer = Tokenizer.from_vocab(vocab, [(b"a", b"b"), (b"b", b"c"), (b"a", b"bc")])
    assert [n.id for n in tokenizer.merge_tree(258) if n.depth == 0] == [256, ord("c")] == tokenizer.encode("abc")
    assert [n.id for n in tokenizer.merge_tree(259)] == [ord("z"), ord("z")]


def test_a_byte_without_a_token_has_no_id() -> None:
    vocab = {token: token_id for token, token_id in BYTES.items() if token != b"<"}
    tokenizer = Tokenizer.from_vocab(vocab, [], special_tokens=["<e>"])
    assert [n.id for n in tokenizer.merge_tree(256)] == [None, ord("e"), ord(">")]


def test_every_token_of_a_trained_vocabulary() -> None:
    text = " ".join("".join(random.Random(seed).choices("abcde", k=9)) for seed in range(400))
    tokenizer = train_bpe([text], 900).tokenizer
    for token_id, token in tokenizer.tokens.items():
        nodes = tokenizer.merge_tree(token_id)
        check(tokenizer, token, nodes)
        assert [n.id for n in nodes if n.depth == 0] == [token_id]
        assert len(nodes) == 2 * len(token) - 1


@pytest.mark.parametrize("seed", range(5))
def test_roots_are_what_encoding_leaves(seed: int) -> None:
    """Merges in any order, so that many tokens are never reached; one pretoken of letters."""
    random_ = random.Random(seed)
    tokens = [bytes([byte]) for byte in b"abc"]
    merges = []
    while len(merges) < 80:
        pair = random_.choice(tokens), random_.choice(tokens)
        if sum(map(len, pair)) < 12 and b"".join(pair) not in tokens:
            merges.append(pair)
            tokens.append(b"".join(pair))
    random_.shuffle(merges)
    vocab = BYTES | {token: 256 + index for index, token in enumerate(tokens[3:])}
    tokenizer = Tokenizer.from_vocab(vocab, merges)
    unreached = 0
    for token_id, token in tokenizer.tokens.items():
        nodes = tokenizer.merge_tree(token_id)
        check(tokenizer, token, nodes)
        if token_id >= 256:
            roots = [n.id for n in nodes if n.depth == 0]
            assert roots == tokenizer.encode(token.decode())
            unreached += roots != [token_id]
    assert unreached


@pytest.mark.extended
def test_a_tree_as_deep_as_a_token_is_long() -> None:
    tokens = [b"a" * length for length in range(2, 5001)]
    vocab = BYTES | {token: 256 + index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer.from_vocab(vocab, [(left, b"a") for left, _ in pairwise([b"a", *tokens])])
    # aa is merged first, everywhere: this token is not reached, and a word that no merge repeats is.
    assert [n.id for n in tokenizer.merge_tree(255 + 4999) if n.depth == 0] == tokenizer.encode("a" * 5000)
    letters = [bytes([byte]) for byte in random.Random(0).choices(range(ord("a"), ord("z") + 1), k=5000)]
    letters[0] = b"A"
    word = b"".join(letters)
    merges = [(word[:length], letters[length]) for length in range(1, 5000)]
    deep = Tokenizer.from_vocab(BYTES | {word[: n + 1]: 255 + n for n in range(1, 5000)}, merges)
    nodes = deep.merge_tree(255 + 4999)
    assert len(nodes) == 9_999
    assert max(n.depth for n in nodes) == 4_999
    assert nodes[0] == TreeNode(0, 5254, 0, 5000, 4998)
    # Looking for the next merge among all pairs makes it some 80-fold.
    assert growth(lambda length: deep.merge_tree(254 + length), 500, 5000) < 35


def test_merges_of_a_published_vocabulary(data_dir: Path) -> None:
    tokenizer = Tokenizer.from_files(data_dir / "tokenizers" / "gpt2")
    for token_id in random.Random(1).sample(range(50_257), 500):
        nodes = tokenizer.merge_tree(token_id)
        check(tokenizer, tokenizer.token_bytes(token_id), nodes)
        assert [n.id for n in nodes if n.depth == 0] == [token_id]
