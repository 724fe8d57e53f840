"""The inference service's settings."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, model_validator
from pydantic_settings import NoDecode

from shared.http import ServiceSettings


def _from_json(value: object) -> object:
    """Read a variable; pydantic-settings by itself would end with a traceback."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error


class InferenceSettings(ServiceSettings):
    """`OWNLM_...` variables of the inference service."""

    port: int = Field(8000, ge=0, le=65535, description="The port to listen on; 0 for a free one")
    engine: Literal["ownlm", "vllm"] = Field("ownlm", description="What runs the model: our own engine, or vLLM")
    vllm_args: Annotated[dict[str, Any], NoDecode, BeforeValidator(_from_json)] = Field(
        {}, description='With vLLM: further arguments of its engine as JSON, such as {"tensor_parallel_size": 2}'
    )
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda|cuda:\d+)$", description="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = Field(
        "auto", description="Weights in memory; auto: float32 on cpu, bfloat16 on cuda"
    )
    kv_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Keys and values in the KV cache; auto: on cpu bfloat16 with weights in bfloat16 or int8, else "
        "float32; on cuda as the weights",
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="CPU cores for the model; default: as many as are fastest, as measured"
    )
    context_length: int | None = Field(
        None, ge=2, description="The most tokens of prompt and generated text; default: the model's"
    )
    max_batch: int = Field(32, ge=1, le=1024, description="Sequences that run at the same time")
    max_queue: int = Field(128, ge=0, description="Sequences that may wait for a slot; further requests get 429")
    prefill_tokens: int | None = Field(
        None, ge=1, le=65536, description="The most prompt tokens in a step; default: 256 on cpu, 512 on cuda"
    )
    # An int: the engine process would import pydantic to unpickle a ByteSize.
    kv_cache_bytes: Annotated[ByteSize, AfterValidator(int)] | None = Field(
        None,
        description="The most memory of the KV cache, for example 2GiB; default: enough for OWNLM_MAX_BATCH full "
        "contexts, at most half of the free memory and 64 times the weights (or 1 GiB)",
    )
    queue_timeout: float = Field(60.0, ge=0, description="Seconds that a request may wait in the queue; 0: no limit")
    request_timeout: float = Field(600.0, ge=0, description="Seconds that a request may take in total; 0: no limit")
    load_timeout: float = Field(
        600.0,
        ge=0,
        description="Seconds that the engine process may take to load the model; the service ends after twice as many "
        "without a model; 0: no limit",
    )
    step_timeout: float = Field(
        120.0, ge=0, description="Seconds without a step after which the engine process is restarted; 0: no limit"
    )
    max_choices: int = Field(8, ge=1, description="The most choices (n) of one request")
    default_max_tokens: int = Field(256, ge=1, description="max_tokens of /generate where a request does not set it")

    @model_validator(mode="after")
    def _arguments_are_for_vllm(self) -> Self:
        if self.vllm_args and self.engine != "vllm":
            raise ValueError(f"OWNLM_VLLM_ARGS is for OWNLM_ENGINE=vllm, and it is {self.engine}")
        return self

    @model_validator(mode="after")
    def _room_for_choices(self) -> Self:
        if self.max_choices > self.max_batch + self.max_queue:
            raise ValueError(
                f"OWNLM_MAX_CHOICES={self.max_choices} exceeds the sum of "
                f"OWNLM_MAX_BATCH={self.max_batch} and OWNLM_MAX_QUEUE={self.max_queue}"
            )
        return self
