# One word for everything. Nothing outside this folder is changed: the environment is .venv, the servers that
# the tests fetch are in .servers, and both can be deleted at any time.

PYTHON ?= python3
# Twice two cores: half of the time a test waits for a process, a server or a timer.
WORKERS ?= 4
ARGS ?=

PY := .venv/bin/python
READY := .venv/.ready

# ARGS of `make test` may be a folder of tests or one bare word, the name of a feature. Only files that mention the
# word are read: reading all of them takes longer than the tests of one feature.
WORD = $(if $(word 2,$(ARGS))$(filter -%,$(ARGS))$(findstring /,$(ARGS))$(findstring ::,$(ARGS)),,$(ARGS))
MENTIONS = $(shell { grep -rli --include='test_*.py' '$(WORD)' tests; find tests -name 'test_*.py' -path '*$(WORD)*'; } | sort -u)
TESTS = $(if $(WORD),$(or $(wildcard tests/$(WORD)),-k '$(WORD)' $(MENTIONS)),$(ARGS))

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench bench-peers simulate prove prove-model prove-seeds soak requirements
.PHONY: docs typescript screenshots clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## Watch a small fleet work through a queue
	@$(PY) -m shiftwork.demo $(ARGS)

test: $(READY) ## Run every test, with its own PostgreSQL, PgBouncer and Redis (ARGS=breakers: those of one feature)
	@$(PY) -m tests.services -- $(PY) -m pytest -n $(WORKERS) --dist worksteal $(TESTS)

check: $(READY) ## Lint, formatting, types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

format: $(READY) ## Repair formatting and what the linter can repair
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .

bench: $(READY) ## Measure throughput and latency
	@$(PY) -m bench --json .bench.json $(ARGS)

bench-peers: $(READY) ## Measure Shiftwork and other queues in one run (ARGS="--only drain --peer graphile --quick")
	@$(PY) -m bench.peers --json .bench-peers.json $(ARGS)

simulate: $(READY) ## Live through a fleet's day, or a week of accounts with windows (ARGS="--tasks 300", ARGS=week)
	@$(PY) -m simulate $(ARGS)

prove-model: $(READY) ## Check the model of claims and dependencies in every interleaving
	@$(PY) -m model

prove-seeds: $(READY) ## Simulate the engine with faults, from a seed each (ARGS="--seeds 5000", or --seed 7)
	@$(PY) -m tests.simulation $(ARGS)

prove: $(READY) ## Inject faults into a fleet and count what is lost (ARGS="--store postgres --minutes 10")
	@$(PY) -m bench.endurance prove $(ARGS)

soak: $(READY) ## Load a fleet steadily and see that nothing grows (ARGS="--store postgres --minutes 60")
	@$(PY) -m bench.endurance soak $(ARGS)

requirements: $(READY) ## Show which requirement is proven by which test
	@$(PY) -m tests.requirements $(ARGS)

docs: $(READY) ## Write the generated pages of docs/, the types of the blocking queue, and the site to site/
	@$(PY) -m tools.docs
	@$(PY) -m tools.site

typescript: $(READY) ## Build the TypeScript client and pack it (needs Node 20 or newer)
	@$(PY) -m tools.typescript

screenshots: $(READY) ## Write pictures of the dashboard to docs/screenshots
	@$(PY) -m tests.dashboard.screenshots

clean: ## Delete the environment, the fetched servers and all caches
	@rm -rf .venv .servers .peers .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Shiftwork needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo "Making .venv (once; a minute or so) ..."
	@$(PYTHON) -m venv .venv
	@$(PY) -m pip install --disable-pip-version-check -qq -c constraints.txt 'pip>=25.1' # the first that knows --group
	@$(PY) -m pip install --disable-pip-version-check -qq -c constraints.txt -e '.[all]' --group dev
	@touch $@
