"""vLLM instead of our own engine (`OWNLM_ENGINE=vllm`): its AsyncLLM behind the `Engine` protocol."""
