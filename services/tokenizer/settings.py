"""The tokenizer service's settings."""

from pydantic import ByteSize, Field

from shared.http import ServiceSettings

MAX_BATCH_ITEMS = 65_536


class TokenizerSettings(ServiceSettings):
    """The `OWNLM_` variables of the tokenizer service."""

    port: int = Field(8001, ge=0, le=65535, description="The port to listen on; 0 for a free one")
    max_batch_items: int = Field(
        1024, ge=1, le=MAX_BATCH_ITEMS, description="Maximum number of texts or token lists in one request"
    )
    max_answer_bytes: ByteSize = Field(
        ByteSize(32 << 20), ge=1, description="Maximum size of the text in a response of /decode, such as 32MiB"
    )
    workers: int = Field(1, ge=1, le=256, description="Processes that share the port, each with the tokenizer loaded")

    @property
    def processes(self) -> int:
        """The number of worker processes that share the port."""
        return self.workers
