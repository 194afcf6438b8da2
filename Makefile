# `make up` and `make test` do all their own set-up. Stamps make a second run start at once.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install up test check check-types check-laws bench architectures test-compose chromium clean

# A machine that forbids them compiles a thousand modules anew in each of some twenty processes.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
MADE := $(VENV)/.made
APP := $(VENV)/.app-installed
DEV := $(VENV)/.dev-installed
# A build of torch for another machine: make up TORCH_INDEX=https://download.pytorch.org/whl/cu130
TORCH_INDEX ?=
TORCH := $(shell grep '^torch==' constraints.txt)
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NEEDS_PYTHON := needs Python 3.11 or newer with venv or pip (Debian: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3.11

FIRST_MAP := import torch; from analysis.projections.umap import umap_coordinates as fit; x = torch.rand(20, 3).double(); fit(torch.cdist(x, x), 5, 0)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

install: $(DEV) ## everything for users and for tests, into .venv

up: $(APP) ## start backend and frontend here; prints the address
	@exec $(BIN)/moe-geometry up

# On all cores, but for what says how long an answer takes; the longest files, those of the browser, first. The hook that
# checks every shape at every call takes more than half the time: it is on for the laws, but for those marked slow or
# plain, which repeat the others.
PYTEST := $(BIN)/python -m pytest
ALL_CORES := OMP_NUM_THREADS=1 $(PYTEST) -q -n $(CORES)
LAWS := $(ALL_CORES) --dist worksteal
PLAIN := -o addopts="--import-mode=importlib --strict-markers -p no:dash"
test: $(DEV) chromium ## every test but compose: laws, services, a real browser
	$(LAWS) -m "not slow and not plain" tests/analysis
	$(LAWS) -m "slow or plain" $(PLAIN) tests/analysis
	$(ALL_CORES) --dist loadfile --no-loadscope-reorder -m "not alone" $(PLAIN) tests/end_to_end tests/backend tests/frontend tests/house tests/data
	$(PYTEST) -m alone $(PLAIN) tests/backend tests/end_to_end

check: $(DEV) ## format, lint, types, contracts, fast tests: under two minutes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory -j2 check-types check-laws

check-types:
	$(BIN)/pyright
	$(BIN)/lint-imports

check-laws:
	$(LAWS) -m "not slow" $(PLAIN) tests/analysis tests/backend tests/frontend tests/house tests/data

bench: $(DEV) ## speed against the plain way; table and .bench/results.json
	$(BIN)/python -m tests.benchmarks.run

architectures: $(DEV) ## measure every architecture; table into backend/README.md
	$(BIN)/python -m tests.backend.architectures

test-compose: ## a real docker compose up, killed and restarted (root on Debian, about ten minutes)
	bash tests/compose/e2e.sh

chromium: $(DEV)
	@$(BIN)/python -m tests.chromium --install

clean: ## remove .venv and caches; the store stays
	rm -rf $(VENV) .bench .wheels .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Debian splits ensurepip off into python3-venv: borrow the system's pip, else install the package, else say what is missing.
$(MADE):
	@[ -n "$(PYTHON)" ] && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(NEEDS_PYTHON)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
	|| { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; } 2>/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	     && apt-get -o DPkg::Lock::Timeout=300 update -qq \
	     && DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends python3-venv >/dev/null \
	     && $(PYTHON) -m venv --clear $(VENV); } \
	|| { rm -rf $(VENV); echo "make: $(NEEDS_PYTHON)" >&2; exit 1; }
	@touch $@

# torch comes first and alone: its index decides between the CPU and the multi-gigabyte CUDA build.
$(APP): pyproject.toml constraints.txt | $(MADE)
	@echo "installing moe-geometry into $(VENV) (minutes, once)"
	@$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX) --no-deps) -c constraints.txt '$(TORCH)'
	@$(PIP) install -c constraints.txt -e '.[all]'
	@$(BIN)/python -c '$(FIRST_MAP)'  # UMAP compiles itself for half a minute: here, and not before the first map
	@touch $@

$(DEV): $(APP)
	@echo "installing what the tests need"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@
