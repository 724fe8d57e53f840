"""Default sampling parameters of a model, and their form in a Hugging Face `generation_config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.lm.errors import ModelFolderError, SamplingError
from shared.lm.sampling_params import SamplingParams


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling parameters for requests that do not set them; for the fields see `SamplingParams`.

    Attributes:
        eos_token_ids: Ids that end a sequence, in the order of the file.

    Raises:
        SamplingError: A value out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.params(seed=0)

    def params(self, *, seed: int) -> SamplingParams:
        """Return these defaults as sampling parameters of one sequence."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=seed,
        )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], *, eos_token_ids: tuple[int, ...]) -> "GenerationDefaults":
        """Read a `generation_config.json`; missing keys and nulls mean the neutral value.

        `"do_sample": false` means greedy, whatever the temperature.

        Raises:
            ModelFolderError: A value is out of range; names the key.
        """
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        values = {name: config[name] for name in names if config.get(name) is not None}
        if config.get("do_sample") is False:
            values["temperature"] = 0.0
        try:
            return cls(**values, eos_token_ids=eos_token_ids)
        except SamplingError as error:
            raise ModelFolderError(str(error)) from error

    def to_hf(self) -> dict[str, Any]:
        """Return the content of a `generation_config.json`, without token ids."""
        if self.params(seed=0).greedy:
            return {"do_sample": False}
        return {
            "do_sample": True,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }
