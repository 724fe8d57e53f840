"""The tokenizer service in this process."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from services.tokenizer.app import create_app
from services.tokenizer.settings import TokenizerSettings


@pytest.fixture(scope="module")
def client(model_dir: Path) -> Iterator[TestClient]:
    """A client of a service whose batches have at most five items."""
    with TestClient(
        create_app(TokenizerSettings(model_dir=model_dir, max_batch_items=5)), base_url="http://localhost"
    ) as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        yield client
