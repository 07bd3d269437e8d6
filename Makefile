# The words of this repository. Each sets up what it needs in .venv on its first use and is quick after that.

.DEFAULT_GOAL := help
.SUFFIXES:
SHELL := /bin/bash

MODEL ?=
PORT ?= 8080
ARGS ?=
LLAMA_CPP ?=
# Tests run on several cores, a file on one of them; `WORKERS=` runs them one after the other.
WORKERS ?= --numprocesses=auto --maxprocesses=8 --dist=loadfile --no-loadscope-reorder
PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
BENCHMARKS := $(wildcard tests/bench/bench_*.py)
# What an installation depends on: the metadata and whatever the package's build compiles.
BUILD_INPUTS := pyproject.toml $(wildcard setup.py) $(shell find svc/compute/cpu -name '*.[ch]' 2>/dev/null) $(addprefix svc/compute/cpu/,structs.py source_hash.py)

.PHONY: help
help: ## list these words
	@echo "make WORD [VARIABLE=value]:"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' Makefile | expand -t 14

.PHONY: serve
serve: $(VENV)/.installed ## serve MODEL= (default: the bundled demo model) on PORT=8080, with ARGS="--more flags"
	@exec $(BIN)/headrace serve $(if $(MODEL),"$(MODEL)") --port "$(PORT)" $(ARGS)

# Three steps rather than one recipe, so that `make --keep-going test` reports all of them.
.PHONY: test lint types pytest
test: lint types pytest ## ruff, mypy --strict and all tests but the slow ones (ARGS= goes to pytest)

lint: $(VENV)/.installed-dev
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	@echo "== mypy"
	@$(BIN)/mypy

pytest: $(VENV)/.installed-dev
	@echo "== pytest"
	@$(BIN)/python -m pytest -m "not slow" $(WORKERS) $(ARGS)

.PHONY: check
check: lint types ## ruff and mypy only

.PHONY: fmt
fmt: $(VENV)/.installed-dev ## format and repair what ruff can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: test-slow
test-slow: $(VENV)/.installed-dev ## every test, the slow ones too (ARGS= goes to pytest)
	@$(BIN)/python -m pytest $(WORKERS) $(ARGS)

.PHONY: test-gpu
test-gpu: $(VENV)/.installed-dev ## the CUDA tests on this machine's NVIDIA GPU (installs CuPy)
	@$(PIP) --editable '.[cuda]'
	@$(BIN)/python -c 'from svc.compute.cuda.cupy_device import open_cupy_device; print(open_cupy_device())'
	@$(BIN)/python -m pytest tests/cuda_src tests/kernels tests/compute/cuda -k "cuda and not emulated" $(ARGS)

.PHONY: test-clients
test-clients: $(VENV)/.installed-dev ## install what people use (SDKs, litellm, langchain, ai-sdk, ...) and run it against a server
	@test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
	@npm install --prefix tests/clients --no-package-lock --no-fund --no-audit --silent
	@$(BIN)/python -m pytest tests/clients $(ARGS)

.PHONY: test-real
test-real: $(VENV)/.installed-dev ## fetch real models, compare with llama.cpp: LLAMA_CPP=its folder of programs (ARGS= goes to pytest)
	@$(BIN)/python ops/real_models/fetch.py all
	@$(BIN)/python -m pytest tests/real --llama-cpp "$(LLAMA_CPP)" $(ARGS)

.PHONY: test-agents
test-agents: $(VENV)/.installed-dev ## install aider, opencode, Qwen Code and Codex CLI; each does a task with the 1.5B model (minutes each)
	@$(BIN)/python ops/real_models/fetch.py qwen2.5-coder-1.5b
	@test -x .venv-agents/bin/python || $(PYTHON) -m venv .venv-agents
	@.venv-agents/bin/python -m pip install --quiet --disable-pip-version-check -r tests/real/agents/requirements.txt
	@npm install --prefix tests/real/agents --no-package-lock --no-fund --no-audit --silent
	@$(BIN)/python -m pytest tests/real/test_agents.py $(ARGS)

.PHONY: test-peer
test-peer: $(VENV)/.installed-dev ## llama.cpp's own server tests against Headrace (fetches them; ARGS= names some)
	@$(BIN)/python -m tests.peer_suite $(ARGS)

.PHONY: bench
bench: $(VENV)/.installed-dev ## run the benchmarks in tests/bench (ARGS= goes to each)
	@for bench in $(BENCHMARKS); do echo "== $$bench"; PYTHONPATH=. $(BIN)/python "$$bench" $(ARGS) || exit 1; done
	@[ -n "$(BENCHMARKS)" ] || echo "there are no benchmarks in tests/bench yet"

.PHONY: kernels
kernels: $(BIN)/python ## compile the C kernels again; check the CUDA kernels for all architectures (after make test)
	@rm -f $(VENV)/.installed && $(MAKE) --no-print-directory $(VENV)/.installed
	@$(BIN)/python -m tests.cuda_src.compile_report

.PHONY: smoke
smoke: $(VENV)/.installed ## start a server, ask it for a completion, stop it
	@MODEL="$(MODEL)" HEADRACE="$(BIN)/headrace" PYTHON="$(BIN)/python" ops/smoke.sh

.PHONY: wheel
wheel: $(BIN)/python ## build dist/headrace-*.whl, to be installed anywhere with pip
	@rm -rf build
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/headrace-*.whl

.PHONY: clean
clean: ## remove everything that make made, .venv included
	@rm -rf $(VENV) .venv-clients .venv-agents tests/clients/node_modules tests/real/agents/node_modules
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find svc tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@find svc -name '*.so' -type f -delete

# ---- setting up ---------------------------------------------------------------------------------------------------------

$(BIN)/python:
	@PYTHON="$(PYTHON)" ops/make_venv.sh $(VENV)

$(VENV)/.installed: $(BIN)/python $(BUILD_INPUTS)
	@echo "installing headrace into $(VENV) (a minute or two the first time) ..."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python $(BUILD_INPUTS)
	@echo "installing headrace and its test tools into $(VENV) (a minute or two the first time) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed
