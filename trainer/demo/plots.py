"""The plots of the stories, from the data file beside this module."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from trainer.demo.cast import EntityFactory, entity_factory
from trainer.demo.grammar import Template, parse


@dataclass(frozen=True)
class Plot:
    """A kind of story.

    Attributes:
        roles: Who and what is in it.
        templates: The whole story, once for each variant.
    """

    roles: Mapping[str, EntityFactory]
    templates: tuple[Template, ...]


def load_plots() -> list[Plot]:
    """Read the plots of the data file, in its order.

    Raises:
        TemplateError: a template in it cannot be parsed.
    """
    data = tomllib.loads((resources.files("trainer.demo") / "stories.toml").read_text(encoding="utf-8"))
    phrases = {name: f"({'|'.join(options)})" for name, options in data["phrases"].items()}
    plots = []
    for plot in data["plots"].values():
        roles = {role: entity_factory(kind, data["words"]) for role, kind in plot["roles"].items()}
        text, variants = _template_text(plot["story"]), plot.get("variants", [{}])
        plots.append(Plot(roles, tuple(parse(text, phrases | variant, roles) for variant in variants)))
    return plots


def _template_text(story: str) -> str:
    """A plot's story as one template: each step a choice of its wordings."""
    paragraphs = []
    for paragraph in story.strip().split("\n\n"):
        steps = [re.split(r"(?m)^\| ", step) for step in re.split(r"(?m)^- ", paragraph)[1:]]
        paragraphs.append(" ".join(f"({'|'.join(' '.join(wording.split()) for wording in step)})" for step in steps))
    return "\n\n".join(paragraphs)
