"""Templates in the styles of published models, written anew."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shared.chat import ChatRenderer, TemplateFile
from tests.shared.chat.templates import CHATML

__all__ = ["CHATML"]


@pytest.fixture
def renderer() -> Iterator[Callable[..., ChatRenderer]]:
    """Make a renderer: `renderer("{{ messages }}", bos_token="<s>")`."""
    made: list[ChatRenderer] = []

    def make(template: str, **variables: Any) -> ChatRenderer:
        made.append(ChatRenderer(TemplateFile({"default": template}, variables)))
        return made[-1]

    yield make
    for each in made:
        each.close()
