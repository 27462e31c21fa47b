# Needs Python 3.11 or later and make; everything else is installed into .venv. `make` alone lists the targets.

RECENT := import sys; sys.exit(sys.version_info < (3, 11))
# The first that is recent enough; make PYTHON=... names another.
PYTHON ?= $(firstword $(shell for python in python3 python3.13 python3.12 python3.11; do \
  "$$python" -c '$(RECENT)' 2>/dev/null && echo "$$python"; done) python3)
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# What the installed environment depends on: a change here, and only here, makes the next `make` install again.
SOURCES := pyproject.toml constraints.txt $(wildcard setup.py src/headrace/*/*.[ch] src/headrace/*/*/*.[ch])
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup run test test-apt test-npm test-maven test-go test-index lint format bench docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.demo ## Create .venv with everything that running takes

run: setup ## Run the demo (ARGS=--exit ends by itself)
	@$(BIN)/headrace demo $(ARGS)

test: $(VENV)/.dev ## Run the tests that need only Python (ARGS="-k name" picks some)
	$(BIN)/python -m pytest -m "not apt and not npm and not maven and not go and not index" $(ARGS)

test-apt: $(VENV)/.dev ## Run the tests that need Debian's kcat, redis-server and prometheus; installs them when missing
	@command -v kcat >/dev/null && command -v redis-server >/dev/null && command -v promtool >/dev/null || { \
	  echo "Installing kcat, redis-server and prometheus with apt-get"; \
	  if [ "$$(id -u)" = 0 ]; then root=; else root=sudo; fi; \
	  $$root apt-get update --quiet --quiet && \
	  $$root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet --no-install-recommends kcat redis-server prometheus; }
	$(BIN)/python -m pytest -m apt $(ARGS)

test-npm: $(VENV)/.dev ## Run the tests of Oracle's TypeScript SDK: needs Node.js 20 with npm, which fetches it
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js 20 or later"; exit 1; }
	$(BIN)/python -m pytest tests/clients -m npm $(ARGS)

test-maven: $(VENV)/.dev ## Run the tests of Oracle's Java SDK: needs a JDK 17 and Maven, which fetches it
	@command -v mvn >/dev/null && command -v javac >/dev/null || { echo "mvn or javac is missing: install Maven and a JDK 17"; exit 1; }
	$(BIN)/python -m pytest tests/clients -m maven $(ARGS)

test-go: $(VENV)/.dev ## Run the tests of Oracle's Go SDK: needs Go 1.26, which fetches it
	@command -v go >/dev/null || { echo "go is missing: install Go 1.26 or later"; exit 1; }
	$(BIN)/python -m pytest tests/clients -m go $(ARGS)

test-index: $(VENV)/.dev ## Install the built wheel into an empty environment and try it there; the package index has the rest
	$(BIN)/python -m pytest tests/packaging -m index $(ARGS)

lint: $(VENV)/.dev ## Check style, formatting, types and the arrows between the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Format the code, and repair what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## Measure throughput, latency and CPU
	$(BIN)/python -m bench $(ARGS)

docs: $(VENV)/.dev ## Write the generated pages of docs/
	$(BIN)/python docs/generate.py

clean: ## Remove .venv, caches and build products; data directories stay
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src -name '_*.so' -delete
	find src tests docs bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c '$(RECENT)' 2>/dev/null || { \
	  echo "Headrace needs Python 3.11 or later; $(PYTHON) says: $$($(PYTHON) --version 2>&1)."; \
	  echo "Install one, or name it: make PYTHON=/path/to/python ..."; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); echo "$(PYTHON) cannot make virtual environments (on Debian: apt-get install python3-venv)."; exit 1; }

$(VENV)/.demo: $(BIN)/python $(SOURCES)
	@echo "Installing Headrace and what the demo needs (about a minute, longer when pip's cache is cold)"
	@$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "Installing what the tests need"
	@$(PIP) --editable '.[dev]'
	@touch $@
