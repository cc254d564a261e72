# One door for all tasks. Everything is set up on first use: a virtual environment in .venv, packages, then the task.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PORT ?= 8080
NAME ?= all
WORKERS ?= 3
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.PHONY: help demo run test check bench chaos fuzz hosts killed models pipeline pythons simulate docs clean java

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) java ## Run the social network on Spark, kill a shard, check that nothing is lost (LOG=kafka, REPORT=file.json)
	@$(BIN)/python -m sample_apps.social.demo $(if $(LOG),--log "$(LOG)") $(if $(REPORT),--report "$(REPORT)")

run: $(READY) java ## Serve the social network until Ctrl-C (PORT=8080, LOG=sqlite:data/social.db)
	@$(BIN)/engram run sample_apps.social:app --log $(or $(LOG),sqlite:data/social.db) --shards 2 --port $(PORT)

test: $(READY) java ## Run all tests, those on real Spark included, in three processes side by side (WORKERS=0: in one)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(READY) ## ruff, mypy, import-linter, and that generated docs and the apps' schemas are up to date
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache | tail -n +9
	@$(BIN)/python docs/reference/generate.py --check
	@$(BIN)/engram schema check sample_apps.social:app && $(BIN)/engram schema check sample_apps.impressions:app

bench: $(READY) java ## Measure (NAME=hotpath for one); tables and plots in bench/results/
	@$(BIN)/python -m bench $(NAME)

chaos: $(READY) java ## Break brokers and shards under load, and compare; with MINUTES=20 SEED=0 everything, drawn by the seed
	@$(BIN)/python -m tests.chaos $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

fuzz: $(READY) ## Damage snapshots in every way that we know, again and again, and look what comes of it (COUNT=20000, SEED=0)
	@$(BIN)/python -m tests.snapshots.fuzz $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

simulate: $(READY) ## Run the simulator for many seeds, in all processors (SEEDS=100000, START=0); what fails goes to tests/seeds/
	@$(BIN)/python -m tests.simulator $(if $(SEEDS),--seeds $(SEEDS)) $(if $(START),--start $(START))

models: $(READY) ## Ask for what the model knows while commands, crashes and rescales go on (COUNT=100000, SEED=0)
	@$(BIN)/python -m tests.read_models $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

hosts: $(READY) java ## Run an app on machines in network namespaces, and cut one off from the log and the driver (Linux, root, iproute2)
	@command -v ip > /dev/null || (apt-get update -qq && apt-get install -qq -y iproute2)
	@$(BIN)/python -m tests.hosts

pipeline: $(READY) java ## Backfill, rebuild, repartition, archive and query the social network, and compare (COUNT=5000000, USERS=100000)
	@$(BIN)/python -m sample_apps.social.pipeline $(if $(COUNT),--count $(COUNT)) $(if $(USERS),--users $(USERS)) $(ARGS)

killed: $(READY) java ## Kill the driver, then an executor, in the middle of every long job of Spark, and run it again
	@$(BIN)/python -m pytest tests/spark/killed_jobs.py $(ARGS)

pythons: $(READY) ## Come to the same bytes with another Python that is on this machine (OTHER=python3.12)
	@$(BIN)/python -m tests.testing.pythons $(or $(OTHER),python3.12)

docs: $(READY) ## Write the generated reference pages anew
	@$(BIN)/python docs/reference/generate.py

clean: ## Remove the virtual environment and everything that was measured or cached
	@rm -rf $(VENV) bench/results .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
		f"Engram needs Python 3.11 or newer; {sys.executable} is {v.major}.{v.minor}. Use make PYTHON=python3.11")'
	@echo "Setting up $(VENV) (once; a few minutes) ..."
	@$(PYTHON) -m venv $(VENV)
	@for try in 1 2 3; do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 10 -e '.[dev]' && touch $@ && exit 0; \
		echo "Set-up attempt $$try failed; trying again ..."; sleep 5; \
	done; echo "The packages could not be installed: see the messages above." >&2; exit 1

java: $(READY)
	@$(BIN)/python -c 'from engram.errors import Misuse; from engram.spark.java import java_version; exec( \
		"try: java_version()\nexcept Misuse as problem: raise SystemExit(str(problem))")'
