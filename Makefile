# `make` lists the targets. Each does its own set-up: a virtual environment in .venv, installed again
# only when pyproject.toml changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Tests wait for processes more than they compute: more at a time than there are cores. Those of one
# file stay together, since they share its servers and its worker.
ALL_TESTS := $(PYTEST) -n 4 --dist loadfile

# What runs for a while, runs for this long; CHAOS_SECONDS=30 make chaos
export REDLOCK_CHAOS_SECONDS = $(or $(CHAOS_SECONDS),600)
export REDLOCK_BENCH_SECONDS = $(or $(BENCH_SECONDS),60)

.DEFAULT_GOAL := help
.PHONY: help test check lint types floors docs demo chaos bench exhaustive clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: $(VENV)/.test ## Run the tests, after setting up everything they need
	$(ALL_TESTS)

check: lint types floors docs ## Everything a change must pass: lint, types, floors, docs, tests
	$(ALL_TESTS)

lint: $(VENV)/.dev ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## Check types, strictly
	$(BIN)/mypy

floors: $(VENV)/.dev ## Check that modules import only from floors below their own
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/.dev ## Build the documentation into site/, warnings are errors
	@if [ -f mkdocs.yml ]; then $(BIN)/mkdocs build --strict; else echo "no mkdocs.yml, no documentation"; fi

demo: $(VENV)/.test ## Run the example project's demo
	$(BIN)/python -m example_project.demo

chaos: $(VENV)/.test ## Inject faults for CHAOS_SECONDS (600) and check every outcome
	$(PYTEST) tests/chaos -m chaos --timeout 0

bench: $(VENV)/.bench ## Measure, against peers, for up to BENCH_SECONDS (60) each
	$(PYTEST) tests/benchmarks -m benchmark --timeout 0

exhaustive: $(VENV)/.test ## Explore the protocol's whole state space (minutes to hours)
	$(PYTEST) -m exhaustive --timeout 0

clean: ## Remove the virtual environment, caches and what was built
	rm -rf $(VENV) build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment without pip (Debian without python3-venv) is removed again: it looks complete.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "error: $(PYTHON) is older than Python 3.10; name another one: make PYTHON=python3.12" >&2; \
	    exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	    rm -rf $(VENV); \
	    echo "error: $(PYTHON) cannot make a virtual environment with pip in it." >&2; \
	    echo "On Debian and Ubuntu: apt install python3-venv. Or name another Python: make PYTHON=…" >&2; \
	    exit 1; }

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

$(VENV)/.bench: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test,bench]'
	@touch $@ $(VENV)/.test

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.test
