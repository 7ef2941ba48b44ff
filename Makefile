# The verbs of this repository; `make help` lists them. Needs Python 3.11 or newer and PyPI, nothing else.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PYTEST := $(PY) -m pytest
# Both cores for most of the slow tests; the quick ones wait for brokers half of the time, so more of them run at once. Some want the machine to themselves.
WORKERS ?= 2
QUICK_WORKERS ?= 4
EVERY_DAY := not interop and not long
# New frames in every run of make fuzz; a failure prints what reproduces it.
FUZZ_SEED := $(or $(SEED),$(shell date +%s))
# What Python and pytest have compiled is kept, whatever the shell says: each of the processes below would begin with twenty seconds of it.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install run broker test lint fmt bench bench-cluster bench-spark micro profile soak scale sim fuzz failover interop crash clients docs constraints clean groups cluster pipeline

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | \
		while IFS='|' read -r verb text; do printf '  make %-13s %s\n' "$$verb" "$$text"; done

install: $(STAMP) ## create .venv with the pinned versions (instant when nothing changed)

$(STAMP): pyproject.toml constraints.txt
	@if [ ! -x $(PY) ]; then \
		found=; \
		for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
			if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
				found=$$candidate; break; \
			fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "Tidelog needs Python 3.11 or newer with its venv module, and found none on the PATH." >&2; \
			echo "Install one (for example the python3.11 and python3.11-venv packages), or name it: make install PYTHON=/path/to/python3.11" >&2; \
			exit 1; \
		fi; \
		echo "creating $(VENV) with $$("$$found" --version)"; \
		"$$found" -m venv $(VENV); \
	fi
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables setuptools wheel
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[arrow,dev,pipeline]'
	@$(PY) -m compileall -q src
	@touch $@

run: install ## the food-delivery example: three brokers, orders and the Spark pipeline, live until Ctrl-C (PORT=, RATE=, BROKERS=, FRESH=1)
	@$(PY) -m examples.food_delivery.run $(if $(PORT),--port $(PORT)) $(if $(BROKERS),--brokers $(BROKERS)) \
		$(if $(RATE),--rate $(RATE)) $(if $(filter-out 0,$(FRESH)),--fresh)

broker: install ## only a broker, on 127.0.0.1:9092 with its data in ./tidelog-data
	@$(VENV)/bin/tidelog start $(if $(PORT),--port $(PORT))

test: lint ## lint, types and every test that needs no other registry
	$(PYTEST) -n $(QUICK_WORKERS) -m "not slow and $(EVERY_DAY)"
	$(PYTEST) -n $(WORKERS) --dist loadfile -m "slow and not alone and $(EVERY_DAY)" -rs --timeout 600
	$(PYTEST) -m "alone and $(EVERY_DAY)" -rs --timeout 600

lint: install ## ruff, mypy --strict, import contracts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy bench examples/food_delivery tools/peers
	$(VENV)/bin/lint-imports

fmt: install ## format and fix what can be fixed
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: install ## measure beside Apache Kafka on this machine, an hour (BENCH="--quick" for three)
	$(PY) -m bench.run $(BENCH)

bench-cluster: install ## three brokers beside three of Apache Kafka, half an hour (BENCH="--rounds 1 --scenarios 'throughput-*'" for less)
	$(PY) -m bench.cluster $(BENCH)

bench-spark: install ## Spark's source and sink beside Spark's own Kafka connector, three quarters of an hour (BENCH="--quick" to try it)
	$(PY) -m bench.spark $(BENCH)

failover: install ## time without a writable leader after kill -9 and after a stop, beside Kafka; then ten minutes of full load in which nobody may be fenced
	$(PY) -m bench.failover $(FAILOVER)
	$(PY) -m bench.failover --saturate $(or $(MINUTES),10)

micro: install ## microseconds of the hot paths, beside their budgets
	$(PY) -m bench.micro $(MICRO)

profile: install ## where the broker's processor time goes under load, by perf
	$(PY) -m bench.profile $(PROFILE)
	$(PY) -m bench.cluster_profile

soak: install ## memory under full load with slow consumers, flat or not (MINUTES=50: 25 to warm up, 25 judged)
	$(PY) -m bench.soak --minutes $(or $(MINUTES),50) $(SOAK)

scale: install ## 10,000 partitions, 10,000 segments, 2,000 creations beside Kafka: times, descriptors, waits
	$(PY) -m bench.scale --partitions 1000,3000,10000
	$(PY) -m bench.scale --segments 1000,3000,10000
	$(PY) -m bench.scale --create 2000
	$(PYTEST) tests/scale -m long

sim: install ## storage, quorum, controller, groups and compaction in simulation, EFFORT=20 times make test; a whole cluster with SEEDS=20000; SEED=n shows one of them
ifdef SEED
	$(PY) -m tidelog.testing.sim.cluster_run --seed $(SEED)
else
	TIDELOG_TEST_EFFORT=$(or $(EFFORT),20) $(PYTEST) tests/storage tests/controller tests/replication tests/quorum tests/coordinator tests/compaction -n $(WORKERS) --timeout 3600
	$(PY) -m tidelog.testing.sim.cluster_run --seeds $(or $(SEEDS),20000) --workers $(WORKERS)
	$(PY) -m tidelog.testing.sim.cluster_run --mutants --workers $(WORKERS)
endif

fuzz: install ## hostile frames at decoders and a live broker, bombs and crowds: EFFORT=50 times make test, SEED=n as before
	@echo "seeds from $(FUZZ_SEED) on"
	TIDELOG_TEST_EFFORT=$(or $(EFFORT),50) TIDELOG_FUZZ_SEED=$(FUZZ_SEED) \
		$(PYTEST) tests/wire tests/records tests/fuzz -m "not slow" -n $(WORKERS) --timeout 3600
	TIDELOG_TEST_EFFORT=$(or $(EFFORT),50) TIDELOG_FUZZ_SEED=$(FUZZ_SEED) $(PYTEST) tests/fuzz -m slow --timeout 14400

interop: install ## Kafka's own tools and clients of other languages, where their registries are reachable
	$(PYTEST) -m interop -rs --timeout 600

crash: install ## kill -9 under load, 50 times (CYCLES=n), and power losses from recorded system calls, EFFORT=5 times make test
	TIDELOG_CRASH_CYCLES=$(or $(CYCLES),50) TIDELOG_TEST_EFFORT=$(or $(EFFORT),5) $(PYTEST) tests/crash -rs --timeout 3600

groups: install ## groups of real clients, minutes of them: members killed, brokers restarted, protocols switched
	$(PYTEST) tests/groups -rs --timeout 600

cluster: install ## three broker processes under load: each fault by itself, moving coordinators, then CYCLES=200 random faults (SEED=n as before)
	$(PYTEST) tests/cluster --ignore tests/cluster/test_nemesis.py -rs --timeout 3600
	TIDELOG_CRASH_CYCLES=$(or $(CYCLES),200) $(if $(SEED),TIDELOG_CRASH_SEED=$(SEED)) $(PYTEST) tests/cluster/test_nemesis.py

pipeline: install ## the pipeline on real Spark, half an hour: every job, a cluster, kills at random instants (KILLS=n)
	TIDELOG_KILLS=$(or $(KILLS),20) $(PYTEST) tests/spark tests/pipeline -m "not interop" -rs --timeout 3600

clients: install ## every client library against the broker, a million records through each
	TIDELOG_CLIENT_RECORDS=1000000 $(PYTEST) tests/clients --timeout 1800

docs: install ## regenerate the reference pages that come from tables in the code
	$(PY) -m tidelog.config.docs > docs/CONFIGURATION.md
	$(PY) -m tidelog.pipeline.reference docs/PIPELINE.md
	$(PY) tools/generate_messages.py

constraints: ## write the versions now in .venv to constraints.txt
	@$(PY) -m pip freeze --all --exclude-editable --exclude tidelog --exclude pip | grep -E '^[A-Za-z0-9._-]+==' > constraints.txt

clean: ## remove .venv and caches (never data)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
