# Needs Python 3.11 or later and make; everything else is installed into .venv. `make` alone lists the targets.

RECENT := import sys; sys.exit(sys.version_info < (3, 11))
# The first that is recent enough, looked for once and only if it is asked for; make PYTHON=... names another.
PYTHON ?= $(eval PYTHON := $$(or $$(shell for python in python python3 python3.14 python3.13 python3.12 python3.11; do \
  "$$$$python" -c '$(RECENT)' 2>/dev/null && echo "$$$$python" && break; done),python3))$(PYTHON)
ARGS ?=
# The lane of `make test`, from tests/lanes.toml. SEED, WORKERS and ROUNDS override that table: SEED=default is a new seed.
LANE ?= quick
SEED ?=
WORKERS ?=
ROUNDS ?=
VENV := .venv
BIN := $(VENV)/bin
# What the installed environment depends on: a change here, and only here, makes the next `make` install again.
SOURCES := pyproject.toml constraints.txt $(wildcard setup.py src/headrace/*/*.[ch] src/headrace/*/*/*.[ch])
LANES := -m tests.harness.lanes
# Tests start hundreds of processes, which need not all compile what they import.
unexport PYTHONDONTWRITEBYTECODE
# PySpark has no wheel: pip makes one, of 450 MB, and unpacks it. To compress it takes half of that.
INSTALL := env DIST_EXTRA_CONFIG="$(CURDIR)/packaging/stored.cfg" $(BIN)/python -m pip install --quiet --disable-pip-version-check
PIP := $(INSTALL) --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup run test lanes lint format wheel container bench docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.demo ## Create .venv with everything that running takes

run: setup ## Run the demo (ARGS=--exit ends by itself)
	@$(BIN)/headrace demo $(ARGS)

test: $(VENV)/.dev ## Run the tests that need only Python (ARGS="-k name" picks some), or those of a lane (LANE=name)
	@$(BIN)/python $(LANES) run $(LANE) --seed "$(SEED)" --workers "$(WORKERS)" --rounds "$(ROUNDS)" -- $(ARGS)

lanes: ## List the lanes of the tests, what each needs, and how long it takes
	@$(PYTHON) $(LANES) list

lint: $(VENV)/.dev ## Check style, formatting, types and the dependencies between the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Format the code, and repair what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/.dev ## Build the wheels into dist, one for each Python from 3.11 that is installed
	VENV=$(VENV) .ci/wheel

container: $(VENV)/.dev ## Build the container image (ARGS=spark: the one for archives) and try it; needs root, buildah and mmdebstrap
	@$(BIN)/python $(LANES) need buildah mmdebstrap
	PYTHON=$(BIN)/python .ci/container $(ARGS)

bench: $(VENV)/.dev ## Measure throughput, latency and CPU
	$(BIN)/python -m bench $(ARGS)

docs: $(VENV)/.dev ## Write the generated pages of docs/ and the Grafana dashboard, and build the documentation's site in build/docs
	$(BIN)/python docs/generate.py
	$(BIN)/python monitoring/generate.py
	$(BIN)/python docs/site.py

clean: ## Remove .venv, caches and build products; data directories stay
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src -name '_*.so' -delete
	find src tests docs bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

# The files that lanes need and `make test LANE=...` builds first.

# Whatever Java there is may not be able to: then they are not kept, and nothing but time is lost.
build/classes.jsa: $(VENV)/.dev tests/harness/class_data.py tests/harness/short_java.py
	@$(BIN)/python -m tests.harness.short_java $@

# The newest Spark over the environment's own; all else is the same.
build/spark43/pyspark: | $(BIN)/python
	@echo "Installing PySpark 4.3 (450 MB)"
	@$(INSTALL) --no-deps --target $(@D) pyspark==4.3.0
	@$(BIN)/python -m tests.harness.compiled_zip $@/python/lib/*.zip

# Headrace and what the tests of its own packages need, for another Python than that of .venv; no Spark.
OTHER_TESTS := hypothesis numpy 'kafka-python[lz4,snappy,zstd]' kio pytest pytest-asyncio pytest-randomly pytest-timeout pytest-xdist
build/python%/.installed: $(SOURCES)
	@echo "Installing Headrace for Python $*"
	@"$$(.ci/python $*)" -m venv $(@D)
	@env HEADRACE_EXTENSIONS=required $(@D)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[pure,lake,oauth]' $(OTHER_TESTS)
	@touch $@

# Stream processors pin other Kafka clients than the tests use.
build/streams/.installed: | $(BIN)/python
	@echo "Installing Quix Streams and Faust"
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check quixstreams==3.28.1 faust-streaming==0.15.3
	@touch $@

# What `.ci/run` starts with. It needs the standard library only.
build/.debian: tests/lanes.toml | $(BIN)/python
	@$(BIN)/python $(LANES) debian
	@mkdir -p $(@D) && touch $@

build/base.tar:
	.ci/container base

$(BIN)/python:
	@$(PYTHON) -c '$(RECENT)' 2>/dev/null || { \
	  echo "Headrace needs Python 3.11 or later; $(PYTHON) says: $$($(PYTHON) --version 2>&1)."; \
	  echo "Install one, or name it: make PYTHON=/path/to/python ..."; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); echo "$(PYTHON) cannot make virtual environments (on Debian: apt-get install python3-venv)."; exit 1; }
# That of Python 3.11 looks through the index for half a minute longer.
	@$(PIP) --upgrade pip

$(VENV)/.demo: $(BIN)/python $(SOURCES)
	@echo "Installing Headrace and what the demo and the tutorial need (about a minute, longer when pip's cache is cold)"
	@$(PIP) --editable '.[demo,pipelines]'
	@touch $@

# All at once, as `dev` holds `demo`: pip looks through everything that is installed. Compiled after that, by all cores,
# but for the thousands of modules of which a few are imported, if any.
SELDOM := oci|services|moto|pip|mypy|mypyc|tests|pyspark/(pandas|ml|mllib)|pygments/lexers|hive_metastore
$(VENV)/.dev: $(BIN)/python $(SOURCES)
	@echo "Installing Headrace and what the tests need (a minute or two, longer when pip's cache is cold)"
	@$(PIP) --no-compile --editable '.[dev]'
	@$(BIN)/python -m compileall -qq -j 0 -x '/($(SELDOM))/' $(VENV)/lib || true
	@$(BIN)/python -m tests.harness.compiled_zip $(VENV)/lib/python*/site-packages/pyspark/python/lib/*.zip
	@touch $(VENV)/.demo $@
