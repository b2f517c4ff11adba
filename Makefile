# Begin with: make cache, make ui, make test. `make` alone lists all targets.
#
# PYTHON    the interpreter for .venv                            make cache PYTHON=python3.12
# PIP_ARGS  arguments of every pip call. For the small CPU build of torch on Linux, give the address of the
#           CPU wheel index named on pytorch.org:                make cache PIP_ARGS="--extra-index-url <address>"
# PORT      the port of `make ui`, on 127.0.0.1                  make ui PORT=3001
# TEST_ARGS arguments of pytest                                  make test TEST_ARGS="tests/product/test_wheel.py -x"
# TEST_WORKERS processes of pytest: four for two cores, because tests wait for their children
# TEST_TMPDIR  folder for the files of tests: in memory if 8 GiB are free there, which takes a sixth of the time off
# RUNS      runs of `make shuffled`; SEEDS repeats orders          make shuffled SEEDS="12 34"
# MUTANTS_ARGS arguments of the mutation check                   make mutants MUTANTS_ARGS="--seed 2 --lines 20"

PYTHON ?= python3
PIP_ARGS ?=
PORT ?= 3000
TEST_ARGS ?=
MUTANTS_ARGS ?=
TEST_WORKERS ?= 4
RUNS ?= 5
SEEDS ?= $(shell awk 'BEGIN { srand(); for (run = 0; run < $(RUNS); run++) print int(rand() * 1000000) }')
TEST_TMPDIR ?= $(shell [ "$$(df --output=avail -B1G /dev/shm 2>/dev/null | tail -n 1)" -ge 8 ] 2>/dev/null && echo /dev/shm)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
LOG := $(VENV)/install.log
OLMO := .olmo-env
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_ARGS)
# One Dagster home for the command line and the UI, so that the UI shows the caches of `make cache`. Dagster needs an absolute path.
WITH_HOME := DAGSTER_HOME="$(CURDIR)/.dagster"

TEST_ENV := $(if $(TEST_TMPDIR),TMPDIR=$(TEST_TMPDIR))
RUN_TESTS = $(TEST_ENV) $(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder
# The files that have tests of a marker, unless TEST_ARGS names files: pytest need not collect the others.
MARKED = $(if $(filter tests/%,$(TEST_ARGS)),,$(shell grep -rlE 'mark\.$(1)\b' tests --include='test_*.py'))

# Keep compiled modules, even if an image sets this variable: the tests start more than a hundred interpreters.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help cache ui test shuffled walks cluster remote torture mutants olmo lint format bench pictures site release

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

cache: $(STAMP)  ## build the embedded quickstart caches into cache/quickstart
	@$(WITH_HOME) $(BIN)/niels-cache build-all --profile quickstart

ui: $(STAMP)  ## the Dagster UI on 127.0.0.1, on your niels_cache.toml or else on the quickstart profile
	@export $(WITH_HOME); \
	if [ -z "$$NIELS_CACHE_PROFILE$$NIELS_CACHE_CONFIG" ] && [ ! -e niels_cache.toml ]; then export NIELS_CACHE_PROFILE=quickstart; fi; \
	exec $(BIN)/niels-cache ui --port $(PORT)

test: $(DEV)  ## all tests, without the walks and the torture
	@$(RUN_TESTS) $(TEST_ARGS)

# pytest ends with 2 if it is interrupted.
shuffled: $(DEV)  ## all tests five times, each time in a new random order
	@failed=; for seed in $(SEEDS); do \
	  echo "== random order $$seed"; \
	  $(RUN_TESTS) --random-order-seed=$$seed $(TEST_ARGS) || { [ $$? -ne 2 ] || exit 2; failed="$$failed $$seed"; }; \
	done; \
	[ -z "$$failed" ] || { echo "Tests failed in these random orders:$$failed" >&2; exit 1; }

walks: $(DEV)  ## the long walks: the wheel in a fresh environment, the tutorial, all real samples, and small runs of benchmarks
	@$(TEST_ENV) $(BIN)/python -m pytest -q -m walk -n 4 --dist worksteal $(call MARKED,walk) $(TEST_ARGS)

cluster: $(DEV) $(VENV)/.installed-cluster  ## builds on several workers: Slurm, Ray, ssh, Dask, Celery and Postgres, with kills (minutes of two cores)
	@$(TEST_ENV) $(BIN)/python -m pytest -q -m cluster -n 6 --dist worksteal $(call MARKED,cluster) $(TEST_ARGS)

remote: $(DEV)  ## training from a bucket through a local copy, with kills and faults (minutes of two cores)
	@$(TEST_ENV) $(BIN)/python -m pytest -q -m remote -n 3 --dist loadfile $(call MARKED,remote) $(TEST_ARGS)

# Tests here take minutes. A dump of the stacks of a test that still runs may crash it, so there is none in the first hour.
torture: $(DEV)  ## the long fault and property tests: hundreds of kills, faults, flips and examples (an hour of two cores)
	@$(RUN_TESTS) -m "torture or hypothesis" --hypothesis-profile torture -o faulthandler_timeout=3600 $(TEST_ARGS)

mutants: $(DEV)  ## break 40 random lines, one at a time, and check that their tests fail (an hour of two cores)
	@$(BIN)/python -m tests.mutants $(MUTANTS_ARGS)

olmo: $(OLMO)/.installed  ## install OLMo-core and mlcroissant beside .venv, for the tests that read with them (skipped otherwise)

lint: $(DEV)  ## formatting, lint, types and the size of the packages, changing nothing
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m tests.size

format: $(DEV)  ## format, and fix what ruff can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(DEV)  ## every benchmark, one after the other
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

pictures: $(DEV) cache  ## take and draw the pictures of README and docs again (needs Chromium)
	@$(BIN)/python -m docs.pictures

site: $(DEV)  ## the documentation as a site, in build/site; its address on the web, for links to code: REPOSITORY_URL
	@$(BIN)/python -m docs.site

# The wheel is made of the last commit alone, with the time of that commit, so that everyone gets the same bytes. Its environment has nothing
# but the wheel and what it asks for. It shows whether that is enough, and the SBOM lists it.
RELEASE := build/release
release: $(VENV)/.installed-release  ## the wheel of the last commit, checked in a fresh environment, with SBOM and SHA256SUMS, in dist/
	@[ -z "$$(git status --porcelain)" ] || { echo "Commit first: a release is made of the last commit, and the working tree differs." >&2; exit 1; }
	@rm -rf $(RELEASE) dist
	@mkdir -p $(RELEASE)/source $(RELEASE)/check dist
	@git archive HEAD | tar -x -C $(RELEASE)/source
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m pip --quiet --disable-pip-version-check wheel \
	  --no-deps --no-build-isolation --wheel-dir dist $(RELEASE)/source
	@$(PYTHON) -m venv --without-pip $(RELEASE)/environment
	@$(BIN)/python -m pip --quiet --disable-pip-version-check --python $(RELEASE)/environment/bin/python \
	  install -c constraints.txt $(PIP_ARGS) dist/*.whl
	@cd $(RELEASE)/check && ../environment/bin/niels-cache build-all --profile quickstart && \
	  ../environment/bin/python -m niels_cache_runtime.verify cache/quickstart
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file dist/niels-cache.cdx.json \
	  $(RELEASE)/environment/bin/python
	@cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS

# Quiet: pip's output goes into the log, and a terminal shows its last line and the seconds. If pip fails, the last lines are shown.
# The loop that shows it ends with the shell of the recipe ($$), also if make is interrupted.
QUIETLY = >> $(LOG) 2>&1; status=$$?; kill $$shown 2>/dev/null; [ ! -t 2 ] || printf '\r\033[K' >&2; [ $$status = 0 ] || \
  { tail -n 15 $(LOG) >&2; echo "The installation failed; the whole output of pip is in $(LOG)." >&2; exit 1; }
SHOWN = shown=; if [ -t 2 ]; then seconds=0; while kill -0 $$$$ 2>/dev/null; do \
  printf '\r\033[K%4d s  %.64s' $$seconds "$$(tail -n 1 $(LOG) 2>/dev/null)" >&2; seconds=$$((seconds + 1)); sleep 1; done & shown=$$!; fi;

# Installs again only if the requirements have changed; otherwise it needs no network.
# torch comes first, so that a failed download of its gigabytes shows early. setuptools comes with it, so that the
# project is installed with the pinned version.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "niels-cache needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "Installing the requirements of builds into $(VENV): torch first; minutes, and on Linux gigabytes unless pip's configuration or PIP_ARGS names an index of CPU builds ($(LOG))"
	@$(SHOWN) $(PIP) torch setuptools $(QUIETLY)
	@$(SHOWN) $(PIP) --no-build-isolation -e . $(QUIETLY)
	@touch $@

$(DEV): pyproject.toml constraints.txt $(STAMP)
	@echo "Installing what tests, lint, benchmarks and the site need as well ($(LOG))"
	@$(SHOWN) $(PIP) --no-build-isolation -e '.[account,dev,bench,classifier,code,docs,documents,fast,find,web]' $(QUIETLY)
	@touch $@

$(VENV)/.installed-cluster: pyproject.toml constraints.txt $(DEV)
	@$(SHOWN) $(PIP) --no-build-isolation -e '.[cluster,ray]' $(QUIETLY)
	@touch $@

$(VENV)/.installed-release: pyproject.toml constraints.txt $(DEV)
	@$(SHOWN) $(PIP) --no-build-isolation -e '.[release]' $(QUIETLY)
	@touch $@

# A folder, not an environment: a process with this folder first on its path takes everything else, torch too, from .venv.
$(OLMO)/.installed: constraints-olmo.txt $(DEV)
	@rm -rf $(OLMO)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet $(PIP_ARGS) --no-build-isolation --no-deps --target $(OLMO) -r constraints-olmo.txt
	@touch $@
