"""Our inference service beside llama.cpp's server, transformers and vLLM: `python -m benchmarks.serving`."""
