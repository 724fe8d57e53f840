"""The plots of the stories and the questions about them, from the data files beside this module."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from trainer.demo.cast import EntityFactory, entity_factory
from trainer.demo.grammar import Template, parse


@dataclass(frozen=True)
class Question:
    """A question that each story of a plot answers.

    Attributes:
        kind: What is asked for, such as "who".
        source: The question as it is in the data file.
        question: Its template.
        answer: The template of the answer; what has to be read in the story is in brackets.
    """

    kind: str
    source: str
    question: Template
    answer: Template


@dataclass(frozen=True)
class Plot:
    """A kind of story.

    Attributes:
        roles: Who and what is in it.
        templates: The whole story, once for each variant.
        questions: Those about it, for each variant.
    """

    roles: Mapping[str, EntityFactory]
    templates: tuple[Template, ...]
    questions: tuple[tuple[Question, ...], ...]


def load_plots() -> list[Plot]:
    """Read the plots of the data files, in their order.

    Raises:
        TemplateError: a template in it cannot be parsed.
    """
    data, questions = _read("stories.toml"), _read("questions.toml")
    phrases = {name: f"({'|'.join(options)})" for name, options in data["phrases"].items()}
    plots = []
    for name, plot in data["plots"].items():
        roles = {role: entity_factory(kind, data["words"]) for role, kind in plot["roles"].items()}
        text = _template_text(plot["story"])
        known = [phrases | variant for variant in plot.get("variants", [{}])]
        templates = tuple(parse(text, each, roles) for each in known)
        asked = tuple(
            tuple(
                Question(kind, question, parse(question, each, roles), parse(answer, each, roles))
                for kind, question, answer in questions[name]
            )
            for each in known
        )
        plots.append(Plot(roles, templates, asked))
    return plots


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("trainer.demo") / name).read_text(encoding="utf-8"))


def _template_text(story: str) -> str:
    """A plot's story as one template: each step a choice of its wordings."""
    paragraphs = []
    for paragraph in story.strip().split("\n\n"):
        steps = [re.split(r"(?m)^\| ", step) for step in re.split(r"(?m)^- ", paragraph)[1:]]
        paragraphs.append(" ".join(f"({'|'.join(' '.join(wording.split()) for wording in step)})" for step in steps))
    return "\n\n".join(paragraphs)
