"""What a file is that is not what was asked for, by its first bytes, and what to do about it."""

import re

_FIRST = 1 << 10
_NO_TEXT = (
    (
        rb"\x80[\x02-\x05]",
        "is a Python pickle, which may run code and is never opened; give what it holds to Tokenizer.from_vocab",
    ),
    (rb"\x1f\x8b|\x28\xb5\x2f\xfd|\xfd7zXZ|BZh", "is compressed; unpack it first"),
    (rb"PK\x03\x04", "is a zip archive, such as PyTorch writes, and not a tokenizer"),
    (rb"GGUF", "is a GGUF file, whose tokenizer is not read; take the tokenizer.json of the model that it was made of"),
    (rb"\xff\xfe|\xfe\xff", "is UTF-16; write it as UTF-8"),
    (rb"\xef\xbb\xbf", "begins with a byte-order mark; write it as UTF-8 without one"),
    (
        rb"version https://git-lfs",
        "is by line 1 a Git LFS pointer; fetch the file itself with `git lfs pull`",
    ),
    (rb"\s*<(?i:!doctype|html)", "is by line 1 a web page: the download went wrong"),
    (rb"\n.{1,3}\n.{1,2}<(unk|pad|s)>", "is a SentencePiece model; only byte-level BPE is supported"),
)
_NO_JSON = (
    (rb"\s*\Z", "is empty"),
    (
        rb"[A-Za-z0-9+/]+=* \d+\r?\n",
        "is a tiktoken rank file, which holds no pattern: open it with Tokenizer.from_tiktoken, or on a command line "
        "under a name like llama3.tiktoken that says the pattern",
    ),
    (
        rb"#version|(?![\[{\"])\S+ \S+\r?\n",
        "is a list of merges; give the vocabulary first and this file second: Tokenizer.from_files(vocab, merges)",
    ),
)


def known_kind(data: bytes, *, expects_json: bool = False) -> str | None:
    """What is known of a file that is no text of a tokenizer's, or no JSON, as the end of a sentence.

    Args:
        data: The file, or its first kilobyte.
        expects_json: Whether JSON was asked for, so that lists of ranks or merges are strange too.
    """
    kinds = (*_NO_TEXT, *_NO_JSON) if expects_json else _NO_TEXT
    first = data[:_FIRST]
    return next((kind for start, kind in kinds if re.match(start, first, re.DOTALL)), None)
