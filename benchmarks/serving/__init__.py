"""Our inference service beside llama.cpp's server and transformers: `python -m benchmarks.serving`."""
