# Everything a contributor types. A fresh clone needs python3.11, make, git and g++; the rest goes into .venv.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; break; }; done)
# The torch that CI pins. It stands in the same pip command as everything that could pull another one; where pip's own
# index would give a CUDA build and a CPU one is wanted, set PIP_EXTRA_INDEX_URL (docs/INSTALL.md).
TORCH := torch==2.13.0
# These two require one exact torch, or torchvision does: installed without their requirements, which [train] covers.
NO_DEPS := timm==1.0.29 torchvision==0.26.0
# Files, not tests, are handed to a worker, so that a module's captures are made once.
PARALLEL := -n logical --maxprocesses 4 --dist loadfile
ARGS ?=

.PHONY: help
help: ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: venv
venv: $(STAMP) ## make .venv with the pinned versions

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "peakcast needs Python 3.11 or newer with venv: install python3.11 python3.11-venv, or set PYTHON=" >&2; exit 1; }
	@command -v g++ >/dev/null || { echo "peakcast builds a small shim with g++ when it captures a graph: install g++" >&2; exit 1; }
	@echo "installing the pinned versions into $(VENV): a few minutes and 2.5 GB the first time"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip setuptools
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(TORCH) triton transformers pillow pyyaml \
		--editable '.[serve,fast,postgres,train,dask]' --group dev
	$(BIN)/python -m pip install --quiet --no-deps $(NO_DEPS)
	@touch $@

.PHONY: demo
demo: $(STAMP) ## serve the shipped predictor and ask it for GPT-2 small, eager and compiled
	@PATH="$(abspath $(BIN)):$$PATH" examples/demo.sh

.PHONY: check
check: lint types imports test ## what CI runs

.PHONY: lint
lint: $(STAMP) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

.PHONY: imports
imports: $(STAMP) ## the layers, by import-linter
	$(BIN)/lint-imports --no-cache --no-logo

.PHONY: test
test: $(STAMP) ## the tests
	$(BIN)/pytest $(PARALLEL) $(ARGS)

.PHONY: test-slow
test-slow: $(STAMP) ## the slow tests
	$(BIN)/pytest $(PARALLEL) -m slow --timeout 1800 $(ARGS)

.PHONY: bench
bench: $(STAMP) ## timings beside a baseline of the run; ARGS="--json PATH" writes them
	$(BIN)/pytest -n 0 -m bench tests/bench $(ARGS)

.PHONY: train
train: $(STAMP) ## fit the predictor from the corpus
	$(BIN)/peakcast train $(ARGS)

.PHONY: evaluate
evaluate: $(STAMP) ## make docs/ACCURACY.md, held out by architecture
	$(BIN)/peakcast evaluate --output docs $(ARGS)

.PHONY: refit
refit: $(STAMP) ## fit the shipped pair behind the gate, and write everything about it into docs/
	$(BIN)/peakcast train --promote $(ARGS)
	$(BIN)/peakcast evaluate --output docs
	$(BIN)/peakcast evaluate --ranks --output docs
	$(BIN)/peakcast evaluate --ablation --output docs
	$(BIN)/peakcast evaluate --curve --output docs

.PHONY: clean
clean: ## remove caches and builds, keep the venv
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
