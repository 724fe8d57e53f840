"""The components of a tokenizer.json (normalizer, pre-tokenizer, decoder, post-processor) as lists of steps."""

from collections.abc import Sequence
from typing import Any

from shared.bpe.errors import TokenizerError

Step = dict[str, Any]
"""One of them; `type` says which."""


def steps_of(component: Any, name: str, members: str) -> list[Step]:
    """A component as the list of its steps: a Sequence is flattened, null is empty.

    Args:
        component: What the file has.
        name: The component in error messages.
        members: The key of the steps in a Sequence of this kind.

    Raises:
        TokenizerError: It is not an object with a type.
    """
    if component is None:
        return []
    if isinstance(component, dict) and component.get("type") == "Sequence":
        parts = component.get(members)
        return [step for part in parts for step in steps_of(part, name, members)] if isinstance(parts, list) else []
    if not isinstance(component, dict) or not isinstance(component.get("type"), str):
        raise TokenizerError(f"{name} must be an object with a type")
    return [component]


def names_of(steps: Sequence[Step]) -> str:
    """The types of steps, for error messages."""
    return ", ".join(step["type"] for step in steps) or "missing"
