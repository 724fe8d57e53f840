"""Object stores for tests: one in memory, S3's protocol over HTTP, and stand-ins for Google's and Hugging Face's.

A stand-in keeps its files in memory, and describes them as gcsfs and huggingface_hub describe theirs.
"""

import base64
import hashlib
from abc import abstractmethod
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

STORES = ["memory", "gs", "hf", pytest.param("s3", marks=pytest.mark.ray)]


class _StandIn(DirFileSystem):
    """Keys without a slash at the beginning; of a file, its size and what changes with its content."""

    def __init__(self, **options: Any) -> None:
        super().__init__(f"/{self.protocol}", MemoryFileSystem(), **options)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        info: dict[str, Any] = super().info(path, **options)
        if info["type"] == "directory":
            return info
        return {key: info[key] for key in ("name", "size", "type")} | self.version(self.cat_file(path))

    @abstractmethod
    def version(self, content: bytes) -> dict[str, Any]:
        """What the store reports of a file's content."""


class _GoogleStorage(_StandIn):
    protocol = "gs"

    def version(self, content: bytes) -> dict[str, Any]:
        digest = base64.b64encode(hashlib.md5(content).digest()).decode()
        return {"kind": "storage#object", "md5Hash": digest, "etag": f"C{digest}"}


class _HuggingFace(_StandIn):
    protocol = "hf"

    def version(self, content: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return {"blob_id": blob, "lfs": None, "last_commit": None}


def bucket_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a bucket in one of `STORES`, that of the fixture's parameter."""
    if request.param == "s3":
        bucket: str = request.getfixturevalue("s3")
        return bucket
    for stand_in in (_GoogleStorage, _HuggingFace):
        monkeypatch.setitem(_registry, stand_in.protocol, stand_in)
    return {"memory": "memory://bucket", "gs": "gs://bucket", "hf": "hf://bucket/texts"}[request.param]
