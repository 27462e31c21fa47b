# Needs Python 3.11 or later and make; everything else is installed into .venv. `make` alone lists the targets.

RECENT := import sys; sys.exit(sys.version_info < (3, 11))
# The first that is recent enough; make PYTHON=... names another.
PYTHON ?= $(firstword $(shell for python in python3 python3.13 python3.12 python3.11; do \
  "$$python" -c '$(RECENT)' 2>/dev/null && echo "$$python"; done) python3)
ARGS ?=
ROUNDS ?= 30
PROFILE ?= fuzz
# Of the tests' order and of what they choose by chance: who changes one thing is not to fail for another. SEED=default: a new one each time.
SEED ?= 1
test-crash test-archive test-hostile: SEED := default
VENV := .venv
BIN := $(VENV)/bin
# What the installed environment depends on: a change here, and only here, makes the next `make` install again.
SOURCES := pyproject.toml constraints.txt $(wildcard setup.py src/headrace/*/*.[ch] src/headrace/*/*/*.[ch])
PYTEST = $(BIN)/python -m pytest --randomly-seed=$(SEED)
PYTHON_ONLY := not long and not matrix and not apt and not npm and not maven and not go and not index and not pipelines and not spark_cluster and not redis_cluster and not demo_cluster and not network and not security
# A third of what three processes on two cores take is waiting: four keep both busy.
WORKERS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$(( cores > 3 ? 8 : cores * 2 )))
# What measures how long others wait comes after, with the machine to itself. PARTS=together, PARTS=alone: one of the two.
PARTS ?= together alone
$(if $(PARTS),$(if $(filter-out together alone,$(PARTS)),$(error PARTS is together, alone or both)),$(error PARTS is empty))
# Status 5: none was chosen by ARGS.
define run_tests
$(if $(filter together,$(PARTS)),$(1) $(PYTEST) $(2) -n $(WORKERS) -m "$(PYTHON_ONLY) and not alone" $(ARGS) || test $$? = 5)
$(if $(filter alone,$(PARTS)),$(1) $(PYTEST) $(2) -m "$(PYTHON_ONLY) and alone" $(or $(ARGS),tests/hostile) || test $$? = 5)
endef
# Installs what Debian has, when one of the programs is missing: $(call debian,PROGRAMS,PACKAGES).
debian = for program in $(1); do command -v $$program >/dev/null && continue; \
  echo "Installing $(2) with apt-get"; \
  if [ "$$(id -u)" = 0 ]; then root=; else root=sudo; fi; \
  $$root apt-get update -o Acquire::Retries=5 --quiet --quiet && \
  $$root env DEBIAN_FRONTEND=noninteractive apt-get install -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 --yes --quiet --quiet --no-install-recommends $(2); \
  exit $$?; done
FOR_APT := $(call debian,kcat redis-server promtool faketime zsh fish chromium,kcat redis-server prometheus faketime zsh fish chromium)
FOR_CONTAINER := $(call debian,buildah mmdebstrap,buildah mmdebstrap)
FOR_NETWORK := $(call debian,ip,iproute2)
# Tests start hundreds of processes, which need not all compile what they import.
unexport PYTHONDONTWRITEBYTECODE
# Runs the tests with Headrace from a wheel in build/KIND instead of the checkout: $(call installed,KIND) before pytest.
installed = env PYTHONPATH=$(CURDIR)/build/$(1)
# Python's own allocator hides what happens at the ends of small pieces of memory.
sanitizing = LD_PRELOAD="$$($${CC:-cc} -print-file-name=libasan.so)" PYTHONMALLOC=malloc \
  ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=32:allocator_may_return_null=1
# Java that is started for a minute does better without its second compiler: a quarter less of the cores' time.
SHORT_JAVA := -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC
# Spark's classes as the JVM keeps them halve what a start takes. A JVM that they do not fit goes on without, and says so
# in its log only. An empty file says that this Java keeps none: given that, it would go without its own classes, too.
CLASSES := build/classes.jsa
short_java = kept=; if [ -s $(CLASSES) ]; then kept="-XX:SharedArchiveFile=$(CURDIR)/$(CLASSES)"; fi; \
  env JAVA_TOOL_OPTIONS="$(SHORT_JAVA) $$kept -Xlog:cds*=off"
# PySpark has no wheel: pip makes one, of 450 MB, and unpacks it. To compress it takes half of that.
INSTALL := env DIST_EXTRA_CONFIG="$(CURDIR)/packaging/stored.cfg" $(BIN)/python -m pip install --quiet --disable-pip-version-check
PIP := $(INSTALL) --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup run test test-apt test-npm test-maven test-lake test-kafka test-security test-go test-index test-wheel test-pure \
  test-spark43 test-pipelines test-spark-cluster test-redis-cluster test-demo-cluster test-network test-long test-hostile test-crash test-archive test-crash-spark test-cluster sanitize lint format wheel container container-base debian bench docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.demo ## Create .venv with everything that running takes

run: setup ## Run the demo (ARGS=--exit ends by itself)
	@$(BIN)/headrace demo $(ARGS)

test: $(VENV)/.dev ## Run the tests that need only Python (ARGS="-k name" picks some)
	$(call run_tests)

# Only where the mark is, or a server of Debian's that a fixture brings along: all files take each worker six seconds of a core.
# Of a folder's fixtures the whole folder; `make test` tells when that leaves a test out (tests/project/test_makefile.py).
APT = $(patsubst %/conftest.py,%,$(filter-out tests/conftest.py,$(shell grep -rlE 'mark\.apt|any_redis|open_storage' tests --include=*.py)))
test-apt: $(VENV)/.dev ## Run the tests that need Debian's kcat, redis-server, prometheus, faketime, zsh, fish and chromium; installs them when missing
	@$(FOR_APT)
	$(PYTEST) -n $(WORKERS) -m apt $(if $(filter tests/%,$(ARGS)),,$(APT)) $(ARGS)

debian: ## Install what Debian has of what tests, `network` and `container` need, when it is missing
	@$(FOR_APT)
	@$(FOR_CONTAINER)
	@$(FOR_NETWORK)

test-npm: $(VENV)/.dev ## Run the tests of Oracle's TypeScript SDK: needs Node.js 20 with npm, which fetches it
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js 20 or later"; exit 1; }
	$(PYTEST) tests/clients -m npm $(ARGS)

test-maven: $(VENV)/.dev ## Run the tests of Oracle's Java SDK and of Kafka's Java client: needs a JDK 17 and Maven, which fetches it
	@command -v mvn >/dev/null && command -v javac >/dev/null || { echo "mvn or javac is missing: install Maven and a JDK 17"; exit 1; }
	env JAVA_TOOL_OPTIONS="$(SHORT_JAVA)" $(PYTEST) tests/clients -m maven $(ARGS)

test-lake: $(VENV)/.dev $(CLASSES) ## Read the archive's tables with Delta's own reader for Spark: needs Maven, which fetches it
	@command -v mvn >/dev/null || { echo "mvn is missing: install Maven and a JDK 17"; exit 1; }
	$(short_java) $(PYTEST) tests/spark/test_archive_jvm.py -m maven $(ARGS)

test-kafka: $(VENV)/.dev $(CLASSES) ## Read with Spark from Apache Kafka itself: needs a JDK 17 and Maven, which fetches it; or KAFKA_BOOTSTRAP=HOST:PORT
	@test -n "$$KAFKA_BOOTSTRAP" || command -v mvn >/dev/null && command -v java >/dev/null || { echo "mvn or java is missing: install Maven and a JDK 17"; exit 1; }
	$(short_java) $(PYTEST) tests/spark/test_apache_kafka.py -m maven $(ARGS)

test-security: $(VENV)/.dev ## Log in with every client by every mechanism, fail to 10 000 times, and compare access rules with Apache Kafka's: needs a JDK 17, Maven, Go 1.26, npm and Debian's kcat
	@command -v mvn >/dev/null && command -v javac >/dev/null || { echo "mvn or javac is missing: install Maven and a JDK 17"; exit 1; }
	@command -v go >/dev/null || { echo "go is missing: install Go 1.26 or later"; exit 1; }
	@command -v kcat >/dev/null || { echo "kcat is missing: apt-get install kcat"; exit 1; }
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js 20 or later"; exit 1; }
	$(PYTEST) tests/clients/secured tests/clients/oci/test_over_tls.py tests/clients/oci/test_other_sdks.py tests/security/access/test_agreement.py tests/security/access/test_kafka_tools.py tests/hostile/kafka/test_logins.py $(ARGS)

test-go: $(VENV)/.dev ## Run the tests of Oracle's Go SDK and of franz-go: needs Go 1.26, which fetches it
	@command -v go >/dev/null || { echo "go is missing: install Go 1.26 or later"; exit 1; }
	$(PYTEST) tests/clients -m go $(ARGS)

test-index: $(VENV)/.dev ## Install the built wheel into an empty environment and try it there; the package index has the rest
	$(PYTEST) tests/packaging -m index $(ARGS)

test-wheel: $(VENV)/.dev ## The tests of `make test` with the wheel that users install; its C must build without a warning
	$(if $(filter together,$(PARTS)),$(BIN)/python -m tests.harness.wheels required build/required)
	$(call run_tests,$(call installed,required),--extensions required)

test-pure: $(VENV)/.dev ## The tests of `make test` with Python in place of the C extensions
	$(BIN)/python -m tests.harness.wheels none build/none
	$(call run_tests,$(call installed,none),--extensions none)

test-hostile: $(VENV)/.dev ## Send every Kafka API all of the generated hostile requests; tens of minutes, alone on the machine
	$(PYTEST) --extremes 0 tests/hostile $(ARGS)

test-crash: $(VENV)/.dev ## Kill servers and their storage, ROUNDS=30 times in each way
	$(PYTEST) -n $(WORKERS) --crash-rounds $(ROUNDS) tests/crash $(ARGS)

test-cluster: $(VENV)/.dev ## Kill, stop and restart brokers and their Redis under load, ROUNDS=30 times, as often over a Redis Cluster, and over one that is cut apart (needs root)
	$(BIN)/python -m tests.simulation.test_membership --rounds 1000
	$(BIN)/python -m tests.cluster.rounds --rounds $(ROUNDS) $(ARGS)
	$(BIN)/python -m tests.cluster.rounds --rounds $(ROUNDS) --cluster $(ARGS)
	$(BIN)/python -m tests.cluster.rounds --rounds $(ROUNDS) --network $(ARGS)

# Whatever Java there is may not be able to: then they are not kept, and nothing but time is lost.
$(CLASSES): $(VENV)/.dev tests/harness/class_data.py
	@echo "Starting Spark once, to keep its classes"
	@mkdir -p $(@D); new=$(CURDIR)/$@.$$$$; \
	env JAVA_TOOL_OPTIONS="$(SHORT_JAVA) -XX:ArchiveClassesAtExit=$$new -Xlog:cds*=off" \
	  $(BIN)/python -m tests.harness.class_data && mv -f $$new $@ || { rm -f $$new; : > $$new; mv -f $$new $@; }

# The newest Spark over the environment's own; all else is the same.
SPARK43 := build/spark43
ON_SPARK43 := tests/spark/sink/test_sink.py tests/spark/test_delta_sink.py tests/spark/test_source_reads.py \
  tests/spark/test_connect.py
test-spark43: $(VENV)/.dev $(SPARK43)/pyspark ## Run the tests of sources and sinks with Spark 4.3
	env PYTHONPATH=$(CURDIR)/$(SPARK43) JAVA_TOOL_OPTIONS="$(SHORT_JAVA)" $(PYTEST) -m "spark and not crash" $(ON_SPARK43) $(ARGS)

$(SPARK43)/pyspark: | $(BIN)/python
	@echo "Installing PySpark 4.3 (450 MB)"
	@$(INSTALL) --no-deps --target $(SPARK43) pyspark==4.3.0
	@$(BIN)/python -m tests.harness.compiled_zip $(SPARK43)/pyspark/python/lib/*.zip

test-archive: $(VENV)/.dev ## Kill the archive's driver, JVM, workers and storage at each of its steps; about ten minutes
	$(PYTEST) --crash-rounds $(ROUNDS) tests/spark/test_archive_crashes.py $(ARGS)

test-crash-spark: $(VENV)/.dev ## Kill a query's driver, JVM, workers, server and Valkey in turn, and count what it read; some minutes
	$(PYTEST) tests/spark/test_crash_reading.py tests/spark/test_cold.py -m matrix $(ARGS)

test-pipelines: $(VENV)/.dev $(CLASSES) ## Run declared pipelines, the examples, and sinks that are killed: Spark started several times over
	$(short_java) $(PYTEST) -m pipelines tests/pipeline tests/examples tests/crash/test_spark_sinks.py tests/docs/test_tutorial.py $(ARGS)

test-spark-cluster: $(VENV)/.dev $(CLASSES) ## Archive, sink and a declared pipeline on a Spark master with two workers
	$(short_java) $(PYTEST) -m spark_cluster tests/pipeline/test_cluster.py $(ARGS)

test-redis-cluster: $(VENV)/.dev ## Fail over, kill and reshard a Redis Cluster under three brokers, and real clients on them
	$(PYTEST) -m redis_cluster tests/cluster tests/clients $(ARGS)

test-demo-cluster: $(VENV)/.dev $(CLASSES) ## Run the demo on three brokers over a Redis Cluster, on its first flights
	$(short_java) $(PYTEST) -m demo_cluster tests/demo $(ARGS)

test-network: $(VENV)/.dev ## Cut brokers and a Redis Cluster apart, each on a host of its own: needs root, which makes network namespaces
	@$(FOR_NETWORK)
	$(PYTEST) -m network tests/cluster/test_network.py $(ARGS)

# Only files with the mark in them are collected: all of them take each worker as long as the shortest of these tests.
LONG = $(patsubst %/conftest.py,%,$(shell grep -rlF mark.long tests --include=*.py))
test-long: $(VENV)/.dev $(CLASSES) ## Run what takes long and needs only Python: the demo, the benches, every full disk, Spark from the guides
	$(short_java) $(PYTEST) -n $(WORKERS) -m long $(LONG) $(ARGS)

FUZZED := tests/fuzz tests/records tests/protocol/test_produce.py tests/storage/redis/test_reader.py tests/storage/valkey/test_aof.py tests/storage/test_aof_valkey.py tests/packaging/test_extensions.py
sanitize: $(VENV)/.dev ## Fuzz the C extensions with a checker of memory and undefined behaviour in them
	$(BIN)/python -m tests.harness.wheels sanitized build/sanitized
	$(call installed,sanitized) $(sanitizing) $(PYTEST) --extensions sanitized --hypothesis-profile $(PROFILE) $(FUZZED) $(ARGS)

lint: $(VENV)/.dev ## Check style, formatting, types and the arrows between the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Format the code, and repair what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/.dev ## Build the wheel for others' machines into dist
	VENV=$(VENV) .ci/wheel

container: $(VENV)/.dev ## Build the container image (ARGS=spark: the one for archives) and try it; needs root, installs buildah and mmdebstrap when missing
	@$(FOR_CONTAINER)
	PYTHON=$(BIN)/python .ci/container $(ARGS)

container-base: ## Make what the container image begins with
	@$(FOR_CONTAINER)
	.ci/container base

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
