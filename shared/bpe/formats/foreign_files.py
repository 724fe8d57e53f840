"""Recognizing files that are not a tokenizer, by their first bytes, with advice for each."""

import re

_FIRST = 1 << 10
_NO_TEXT = (
    (
        rb"\x80[\x02-\x05]",
        "is a Python pickle, which may run code and is never opened; pass its content to Tokenizer.from_vocab",
    ),
    (rb"\x1f\x8b|\x28\xb5\x2f\xfd|\xfd7zXZ|BZh", "is compressed; decompress it first"),
    (rb"PK\x03\x04", "is a zip archive, such as PyTorch writes, and not a tokenizer"),
    (rb"GGUF", "is a GGUF file, which is not supported; use the tokenizer.json of the model that it was made from"),
    (rb"\xff\xfe|\xfe\xff", "is UTF-16; write it as UTF-8"),
    (rb"\xef\xbb\xbf", "begins with a byte-order mark; write it as UTF-8 without one"),
    (
        rb"version https://git-lfs",
        "is a Git LFS pointer (see line 1); fetch the file itself with `git lfs pull`",
    ),
    (rb"\s*<(?i:!doctype|html)", "is a web page (see line 1): the download failed"),
)
_NO_JSON = (
    (rb"\s*\Z", "is empty"),
    (
        rb"[A-Za-z0-9+/]+=* \d+\r?\n",
        "is a tiktoken rank file, which holds no pattern: open it with Tokenizer.from_tiktoken, or on a command line "
        "with a file name that names the pattern, such as llama3.tiktoken",
    ),
    (
        rb"#version|(?![\[{\"])\S+ \S+\r?\n",
        "is a list of merges; pass the vocabulary first and this file second: Tokenizer.from_files(vocab, merges)",
    ),
)


def known_kind(data: bytes, *, expects_json: bool = False) -> str | None:
    """What a file is instead of a tokenizer, as the rest of a sentence that begins with its name; None if unknown.

    Args:
        data: The file, or its first kilobyte.
        expects_json: Whether the file should be JSON, so that lists of ranks or merges are reported too.
    """
    kinds = (*_NO_TEXT, *_NO_JSON) if expects_json else _NO_TEXT
    first = data[:_FIRST]
    return next((kind for start, kind in kinds if re.match(start, first, re.DOTALL)), None)
