# SPDX-License-Identifier: Apache-2.0

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
SHELL := /bin/bash

BIN := .venv/bin
CODE := $(wildcard src tests benchmarks tools examples)
TYPED := $(wildcard src tests benchmarks tools)
TEST_WORKERS ?= 4
# As on a user's machine: hundreds of processes need not compile everything anew.
unexport PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED
PYTEST_ARGS ?=
KILL_CYCLES ?= 1000
POWER_CUTS ?= 5000
SQLITE_SHARE ?= 1
SIZE_JOBS ?= 100000
POINT_CYCLES ?= 500
RACE_ROUNDS ?= 10000
WORKER_KILLS ?= 20
MUTANT_EXAMPLES ?= 200
PG_RESTARTS ?= 1000
PG_COMMITS ?= 2000
JOURNAL_KILLS ?= 100
JOURNAL_CALLS ?= 1000
TABLE_KILLS ?= 100
TABLE_CELLS ?= 3000
CALENDAR_YEARS ?= 30
DAEMON_PARTITIONS ?= 1000
DAEMON_KILLS ?= 100
BUILD_KILLS ?= 200
CAMPAIGN_SQLITE ?= 300
CAMPAIGN_POSTGRES ?= 150
SOAKS := soak-kill soak-power soak-sqlite soak-size soak-points soak-races soak-workers soak-mutants \
  soak-signals soak-import soak-flat soak-pg soak-pg-races soak-journal soak-tables \
  soak-calendar soak-models soak-daemon soak-daemons soak-builds soak-campaign
SECONDS ?= 1800
DEEPER = $(shell grep -l 'tests.depth' -r tests --include='test_*.py')

.PHONY: help setup nginx demo test coverage check house faults reference bench bench-peers bench-smoke soak $(SOAKS) workflows lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ok ## Make .venv with the locked dependencies and this package in it

nginx: .venv/ok ## Find nginx for the tests, or fetch it into .venv (they do so themselves)
	$(BIN)/python -m tests.nginx.binary

demo: .venv/ok ## See a run meet 429s, die by kill -9, and go on: nothing lost, nothing bought again
	$(BIN)/penstock demo

test: .venv/ok ## Run the tests on four processes (they wait more than they compute)
	$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal $(PYTEST_ARGS)

coverage: .venv/ok ## Run the tests and report which lines they reach (slower)
	$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal --cov --cov-report=term --cov-report=xml $(PYTEST_ARGS)

check: .venv/ok ## Lint, format, types, import contracts, licence headers
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports
	$(BIN)/python tools/check_headers.py

house: .venv/ok ## Measure the house: files, code lines, imports, constructors, the walk of a job, beside their bounds
	$(BIN)/python tools/house.py

faults: .venv/ok ## Run every fault test and write docs/faults.md
	$(BIN)/python -m tools.faults_page --workers $(TEST_WORKERS)

reference: .venv/ok ## Write docs/reference from the code
	$(BIN)/python -m tools.make_reference

bench: .venv/ok ## Measure the queue, on SQLite and on PostgreSQL, scheduling, admission, the journal, the daemon and planning
	$(BIN)/python -m benchmarks queue postgres scheduling admission journal daemon planning

bench-peers: .venv/ok .venv-peers/ok .venv-designer/ok ## Measure the other durable queues and schedulers beside ours
	$(BIN)/python -m benchmarks queue postgres --only peers
	$(BIN)/python -m benchmarks scheduling --only designer

bench-smoke: .venv/ok ## Check in seconds that the benchmark runs
	$(BIN)/python -m benchmarks queue postgres scheduling admission journal daemon planning --smoke

soak: $(SOAKS) ## Run every long fault campaign

soak-kill: .venv/ok ## Kill workers KILL_CYCLES times and audit what is left
	$(BIN)/python -m tests.faults.soak_kill --cycles $(KILL_CYCLES)

soak-power: .venv/ok ## Cut the power POWER_CUTS times in recorded runs and audit what is left
	$(BIN)/python -m tests.faults.soak_power --cuts $(POWER_CUTS)

soak-sqlite: .venv/ok ## Let the store file suffer: damage, storms, failing syncs (SQLITE_SHARE of it)
	$(BIN)/python -m tests.faults.soak_sqlite --share $(SQLITE_SHARE)

soak-size: .venv/ok ## Run chains, fans and diamonds of SIZE_JOBS jobs
	$(BIN)/python -m tests.size.soak_size --jobs $(SIZE_JOBS)

soak-points: .venv/ok ## Kill a process POINT_CYCLES times at each named point
	$(BIN)/python -m tests.faults.soak_points --cycles $(POINT_CYCLES)

soak-races: .venv/ok ## Race ends against sweeps and against themselves, RACE_ROUNDS times
	$(BIN)/python -m tests.faults.soak_races --rounds $(RACE_ROUNDS)

soak-workers: .venv/ok ## Measure how soon dead workers are reported (WORKER_KILLS), poison and the back-off of restarts
	$(BIN)/python -m tests.faults.soak_workers --kills $(WORKER_KILLS)

soak-mutants: .venv/ok ## Plant every known bug and say what finds it
	$(BIN)/python -m tests.faults.soak_mutants --examples $(MUTANT_EXAMPLES)

soak-signals: .venv/ok ## Send every signal at every stage of a run
	$(BIN)/python -m tests.faults.soak_signals --rounds 3

soak-import: .venv/ok ## Import a line of 1 GiB within 300 MB of memory
	$(BIN)/python -m tests.faults.soak_import

soak-flat: .venv/ok ## Work for SECONDS and see that memory, descriptors and files stay flat
	$(BIN)/python -m tests.faults.soak_flat --seconds $(SECONDS)

soak-pg: .venv/ok ## Crash PostgreSQL PG_RESTARTS times under load, lose PG_COMMITS answers of each operation
	$(BIN)/python -m tests.faults.soak_pg --restarts $(PG_RESTARTS) --commits $(PG_COMMITS)

soak-pg-races: .venv/ok ## Interleave operations on PostgreSQL, and let fleets loose, for SECONDS
	$(BIN)/python -m tests.faults.soak_pg_races --seconds $(SECONDS)

soak-journal: .venv/ok ## Kill runs of JOURNAL_CALLS paid calls JOURNAL_KILLS times, count what was bought twice
	$(BIN)/python -m tests.faults.soak_journal --kills $(JOURNAL_KILLS) --calls $(JOURNAL_CALLS)

soak-tables: .venv/ok ## Kill the generation of a table of TABLE_CELLS paid cells TABLE_KILLS times, and compare it with an undisturbed one
	$(BIN)/python -m tests.faults.soak_tables --kills $(TABLE_KILLS) --cells $(TABLE_CELLS)

soak-models: .venv/ok ## Compare stores, admission and simulated runs with their models, with thousands of examples
	HYPOTHESIS_PROFILE=soak $(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal --timeout 7200 $(DEEPER)

soak-daemon: .venv/ok ## Let DAEMON_PARTITIONS partitions tick for an hour, and some for a day, in virtual time
	$(BIN)/python -m tests.simulation.soak_daemon --partitions $(DAEMON_PARTITIONS) --seconds 3600
	$(BIN)/python -m tests.simulation.soak_daemon --partitions 30 --seconds 86400

soak-daemons: .venv/ok ## Start two daemons at once and kill one of two, DAEMON_KILLS times each
	$(BIN)/python -m tests.faults.soak_daemons --kills $(DAEMON_KILLS) --races $(DAEMON_KILLS)

soak-builds: .venv/ok ## Kill builds of datasets BUILD_KILLS times on each database, and see what readers saw
	$(BIN)/python -m tests.faults.soak_builds --kills $(BUILD_KILLS)

soak-campaign: .venv/ok ## Kill everything beside two apps on one store, CAMPAIGN_SQLITE and CAMPAIGN_POSTGRES times, and judge it from outside
	$(BIN)/python -m tests.campaign --sqlite $(CAMPAIGN_SQLITE) --postgres $(CAMPAIGN_POSTGRES)

soak-calendar: .venv/ok ## Compare cron and calendars with a clock on the wall, at every change of clocks of CALENDAR_YEARS years
	$(BIN)/python -m tests.faults.soak_calendar --years $(CALENDAR_YEARS)

workflows: .venv-workflows/ok ## Make the workflow graphs of the tests anew, from recipes
	.venv-workflows/bin/python -m tools.make_workflows tests/workflows

# uv.lock names hosts, so it stays out of the repository; the hashed export does not.
lock: $(BIN)/uv ## Pin the newest allowed dependencies in requirements.lock
	$(BIN)/uv lock -q --upgrade
	{ echo '# SPDX-License-Identifier: Apache-2.0'; \
	  echo '# Every dependency, pinned and hashed. Made by `make lock`; do not edit by hand.'; \
	  $(BIN)/uv export -q --frozen --no-emit-project --no-header --no-annotate \
	    --all-extras --format requirements-txt; } > requirements.lock.new
	@if grep -nE '://|^-|^ *#.*/' requirements.lock.new; then \
	  echo 'requirements.lock.new names a host or a path (lines above); requirements.lock is unchanged.'; \
	  exit 1; fi
	mv requirements.lock.new requirements.lock

clean: ## Remove what checks, tests and builds leave behind (.venv stays)
	rm -rf build dist htmlcov coverage.xml .coverage .coverage.* .hypothesis .import_linter_cache \
	  .mypy_cache .pytest_cache .ruff_cache requirements.lock.new src/*.egg-info
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/uv:
	python3 -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check uv

# The peers change with their makers, so they have ranges and not a lock.
.venv-peers/ok: benchmarks/peers/requirements.txt | $(BIN)/uv
	$(BIN)/uv venv -q --clear --python $(BIN)/python .venv-peers
	VIRTUAL_ENV=.venv-peers $(BIN)/uv pip install -q -r $<
	touch $@

.venv-designer/ok: benchmarks/peers/designer.txt | $(BIN)/uv
	$(BIN)/uv venv -q --clear --python $(BIN)/python .venv-designer
	VIRTUAL_ENV=.venv-designer $(BIN)/uv pip install -q -r $<
	touch $@

.venv-workflows/ok: tools/make_workflows.txt | $(BIN)/uv
	$(BIN)/uv venv -q --clear --python $(BIN)/python .venv-workflows
	VIRTUAL_ENV=.venv-workflows $(BIN)/uv pip install -q -r $<
	touch $@

.venv/ok: requirements.lock pyproject.toml | $(BIN)/uv
	VIRTUAL_ENV=.venv $(BIN)/uv pip install -q --require-hashes -r requirements.lock
	VIRTUAL_ENV=.venv $(BIN)/uv pip install -q --no-deps --no-build-isolation -e .
	touch $@
