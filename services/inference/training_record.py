"""`training.json` of the served folder, which may come from anywhere: used as a whole, or refused with the reason."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.inference.description import LARGEST_INT
from shared.lm.training_file import LARGEST_TRAINING_FILE, TRAINING_FILE
from shared.system.checksums import ChecksumError, Checksums
from shared.system.errors import display_name
from shared.system.regular_file import read_regular

Count = Annotated[int, Field(ge=0, le=LARGEST_INT)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Setting = bool | Annotated[int, Field(ge=-LARGEST_INT, le=LARGEST_INT)] | Number | str | None


class _Part(BaseModel):
    """Of the types that are documented; what is not known is ignored."""

    model_config = ConfigDict(strict=True)


class Curve(_Part):
    """A value over the steps; null where it was not finite."""

    steps: list[Count]
    values: list[Number | None]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.steps) != len(self.values):
            raise ValueError(f"{len(self.steps)} steps for {len(self.values)} values")
        if any(later <= step for step, later in pairwise(self.steps)):
            raise ValueError("the steps must increase")
        return self


class Curves(_Part):
    """At most 400 points each: the lowest and the highest value of each part of a longer curve."""

    loss: Curve | None = Field(None, description="Of the training batches, nats per token")
    validation_loss: Curve | None = Field(None, description="Nats per token")
    bits_per_byte: Curve | None = Field(None, description="Of the validation text")
    learning_rate: Curve | None = None
    grad_norm: Curve | None = Field(None, description="Before clipping")
    tokens_per_second: Curve | None = None


class SourceText(_Part):
    """A text file."""

    name: str
    bytes: Count
    documents: Count


class TokenData(_Part):
    """A file of tokens."""

    tokens: Count
    documents: Count
    bytes: Count = Field(description="Of text that the tokens stand for")
    sources: list[SourceText] = Field(description="The largest texts in it")
    num_sources: Count


class DataUsed(_Part):
    """What the model was trained on, and what it was tested with."""

    training: TokenData
    validation: TokenData | None = None


class Revision(_Part):
    """The code that trained it."""

    revision: str
    dirty: bool = Field(description="Whether it had changes that were not committed")


class Machine(_Part):
    """What the newest start of the run computed with."""

    device: str
    cpu: str
    cpus: Count | None
    processes: Count
    git: Revision | None


class StepText(_Part):
    """What was written at a step."""

    step: Count
    text: str


class StepValue(_Part):
    """A value, and the step where it was reached."""

    step: Count
    value: Number


class TrainingRecord(_Part):
    """How the served model was trained."""

    format_version: Literal[1]
    ownlm_version: str | None = None
    torch_version: str | None = None
    started: AwareDatetime | None = None
    saved: AwareDatetime
    seconds: Number = Field(ge=0, description="Of training, evaluations and samples included")
    starts: Count = Field(description="How often the run was started or resumed")
    machine: Machine | None = None
    tokenizer_fingerprint: str
    steps: Count
    tokens: Count = Field(description="Tokens seen, those seen again counted again")
    loss: Number | None = Field(None, description="Mean training loss of the last tenth of the run")
    validation_loss: Number | None = Field(None, description="The last one")
    bits_per_byte: Number | None = Field(None, description="The last one")
    best_validation_loss: StepValue | None = None
    data: DataUsed
    settings: dict[str, Setting | list[Setting]] = Field(description="Those that decide the result")
    sample_prompt: str = ""
    samples: list[StepText] = Field([], description="What the model wrote during training, from the prompt on")
    events: list[StepText] = Field([], description="What was done about steps that went wrong")
    num_events: Count = 0
    curves: Curves = Curves()


@dataclass(frozen=True)
class TrainingFile:
    """The file as it is served.

    Attributes:
        json: Its content, checked; empty where there is none.
        fault: Why there is none, in a sentence.
    """

    json: bytes = b""
    fault: str = f"the model folder has no {TRAINING_FILE}: ownlm writes one when it trains a model"


def read_training_file(folder: Path, fingerprint: str) -> TrainingFile:
    """Read a folder's `training.json`; `fingerprint` is that of the folder's tokenizer."""
    try:
        content = read_regular(folder / TRAINING_FILE, LARGEST_TRAINING_FILE)
        Checksums.read(folder).verify(TRAINING_FILE)
        record = TrainingRecord.model_validate_json(content)
    except FileNotFoundError:
        return TrainingFile()
    except OSError as error:
        return _refused(error.strerror or "it cannot be read")
    except ChecksumError as error:
        return _refused(str(error))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(display_name(str(part)) for part in first["loc"])
        return _refused(f"{place}: {first['msg']}" if place else first["msg"])
    if record.tokenizer_fingerprint != fingerprint:
        return _refused(f"it was written for the tokenizer {display_name(record.tokenizer_fingerprint)}")
    return TrainingFile(record.model_dump_json().encode(), "")


def _refused(reason: str) -> TrainingFile:
    return TrainingFile(fault=f"the model folder's {TRAINING_FILE} cannot be used: {reason}")
