"""The inference service's settings."""

from typing import Literal, Self

from pydantic import ByteSize, Field, model_validator

from shared.http import ServiceSettings


class InferenceSettings(ServiceSettings):
    """`OWNLM_...` variables of the inference service."""

    port: int = Field(8000, ge=0, le=65535, description="The port to listen on; 0 for a free one")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda|cuda:\d+)$", description="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = Field(
        "auto", description="Weights in memory; auto: float32 on cpu, bfloat16 on cuda"
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="Cores that the model computes on; default: all, but for short steps one fewer"
    )
    context_length: int | None = Field(
        None, ge=2, description="The most tokens of prompt and answer; default: all that the model has"
    )
    max_batch: int = Field(32, ge=1, le=1024, description="Sequences that run at the same time")
    max_queue: int = Field(128, ge=0, description="Sequences that may wait for a place; more are told 429")
    prefill_tokens: int | None = Field(
        None, ge=1, le=65536, description="The most prompt tokens of a step; default: 128 on cpu, 512 on cuda"
    )
    kv_cache_bytes: ByteSize | None = Field(
        None,
        description="Memory of the KV cache, as in 2GiB; default: what OWNLM_MAX_BATCH full contexts take, "
        "at most half of what is free and 64 times the weights (or 1 GiB)",
    )
    queue_timeout: float = Field(60.0, ge=0, description="Seconds that a request may wait for its turn; 0: no limit")
    request_timeout: float = Field(600.0, ge=0, description="Seconds that a request may take in all; 0: no limit")
    load_timeout: float = Field(
        600.0, ge=0, description="Seconds that the model's process may take to load the model; 0: no limit"
    )
    step_timeout: float = Field(
        120.0, ge=0, description="Seconds without a step after which the model's process is started anew; 0: no limit"
    )
    max_choices: int = Field(8, ge=1, description="The most choices (n) of one request")
    default_max_tokens: int = Field(256, ge=1, description="The answer's length where a request does not say")
    stream_send_timeout: float = Field(
        30.0, gt=0, description="Seconds after which a client that reads nothing is given up"
    )

    @model_validator(mode="after")
    def _room_for_choices(self) -> Self:
        if self.max_choices > self.max_batch + self.max_queue:
            raise ValueError(
                f"OWNLM_MAX_CHOICES={self.max_choices} would never fit into "
                f"OWNLM_MAX_BATCH={self.max_batch} and OWNLM_MAX_QUEUE={self.max_queue}"
            )
        return self
