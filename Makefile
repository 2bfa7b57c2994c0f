# Everything a developer runs. `make venv` is done by itself where a target needs it.

VENV := .venv
BIN := $(VENV)/bin
LOCKS := requirements.lock $(if $(CUDA),requirements-cuda.lock)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps

# The interpreter that makes the virtual environment: python3.11, else python3 if it is new enough.
PYTHON ?= $(shell command -v python3.11 || command -v python3)

export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help venv demo test test-all check lint types layers format schema lock bench clean

help:
	@echo 'make demo    migrate MiniLM to OpenCL; writes out/minilm.html and out/minilm.json'
	@echo 'make test    the fast tests, then those that need a device'
	@echo 'make test-all  these, and those that take minutes more'
	@echo 'make check   lint, formatting, types, layers'
	@echo 'make format  mend what the linter and the formatter can'
	@echo 'make schema  the JSON Schemas in docs/schema, from the records that commands write'
	@echo 'make bench   the measurements under bench/'
	@echo 'make venv    the virtual environment (CUDA=1: with the libraries of the CUDA build of torch)'
	@echo 'make lock    resolve the lock files (ARGS=--upgrade: with the newest versions)'
	@echo 'make clean   remove the virtual environment, caches and out/'

venv: $(VENV)/.installed

# Made from scratch whenever the lock changes or an earlier attempt was interrupted: the stamp is written last.
# torch's CPU build goes in first where pip can find it, since pip would prefer the index's CUDA build to a local file.
$(VENV)/.locked: $(LOCKS) requirements-cpu.lock
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Tapestry needs Python 3.11 or newer; got: $$('$(PYTHON)' --version 2>&1 || true)"; \
	  echo "Install it, or name one: make venv PYTHON=/path/to/python3.11"; exit 1; }
	'$(PYTHON)' -m venv --clear $(VENV)
	$(if $(CUDA),,$(INSTALL) --require-hashes -r requirements-cpu.lock || echo 'No CPU build of torch here: on to the index.')
	$(INSTALL) --require-hashes $(LOCKS:%=-r %)
	@$(BIN)/python -c 'import torch' || { \
	  echo; \
	  echo 'torch is installed but does not import. If a CUDA library is missing above, pip chose the CUDA build.'; \
	  echo 'Either  make venv CUDA=1  installs its libraries too (several GB), or point pip at the CPU wheels of'; \
	  echo 'PyTorch 2.13.0 (PIP_EXTRA_INDEX_URL, see the installation page of PyTorch) and run  make venv  again.'; \
	  exit 1; }
	@touch $@

$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	$(INSTALL) --no-build-isolation -e .
	@touch $@

demo: venv
	@mkdir -p out
	$(BIN)/tapestry migrate demo:minilm --to opencl --report out/minilm.html --json out/minilm.json

# OpenCL comes with the PoCL wheel; WebGPU's adapter and the browser are the system's, installed where that is allowed.
test: venv
	$(BIN)/python -m pytest -q -n auto -m 'not opencl and not webgpu and not browser and not slow and not thorough'
	@sh tools/adapter.sh $(BIN)/python || without='--without webgpu'; \
	sh tools/browser.sh $(BIN)/python || without="$$without --without browser"; set -x; \
	$(BIN)/python -m pytest -q -n auto --timeout 400 --require-devices $$without \
	  -m '(opencl or webgpu or browser or slow) and not thorough'

# What `make test` leaves out for its length.
test-all: test
	$(BIN)/python -m pytest -q -n auto --timeout 900 --require-devices -m thorough

# `make -k check` goes on after a failure.
check: lint types layers

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: venv
	$(BIN)/lint-imports

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: venv
	$(BIN)/python -m tapestry.cli.schema docs/schema

lock:
	'$(PYTHON)' -m venv --clear build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	build/lock/bin/python tools/lock.py $(ARGS)

bench: venv
	@set -e; for script in bench/*.py; do \
	  [ -e "$$script" ] || { echo 'bench/ holds no script'; exit 1; }; \
	  echo "$$script"; $(BIN)/python "$$script"; done

clean:
	rm -rf $(VENV) build out .pytest_cache .ruff_cache .hypothesis .import_linter_cache
