# Everything a newcomer or a machine needs; `make` alone lists the words. Needs make, git and a python3 with venv.

PYTHON ?= python3
# The extras to install; `make demo EXTRAS=test` leaves the peers (and torch) out.
EXTRAS ?= test,bench
# Two workers suit two cores: most of the suite's time is compilation.
WORKERS ?= 2
# `make bench QUICK=1` and `make experiments QUICK=1`: a small version of each, to see that it runs.
QUICK ?=

BIN := .venv/bin
STAMP := .venv/.installed
PIP := -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# A page's code blocks share their names, so a file stays with one worker.
SPREAD := --numprocesses $(WORKERS) --dist loadfile
QUICKLY := $(if $(QUICK),--quick)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check format lint types docs bench experiments clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/\1|\2/p' Makefile | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP)  ## .venv with the package and everything to test and compare it

# Once, and again when what is asked for changes. The environment variable pins what the build needs, too.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "fokker needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make setup PYTHON=python3.12"'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/python $(PIP) --editable '.[$(EXTRAS)]'
	touch $@

demo: setup  ## sample a posterior by minibatches, with summary, trace and audit
	$(BIN)/fokker demo

test: setup  ## the quick suite, under 10 minutes on two cores
	$(BIN)/python -m pytest $(SPREAD)

test-all: setup  ## slow tests too, then the quick suite under every Python from 3.11 up
	$(BIN)/python -m pytest $(SPREAD) -m ''
	$(BIN)/python tools/test_pythons.py $(SPREAD)

check: lint types docs test  ## format, lint, types, docs, tests: what must hold before a change lands

format: setup  ## rewrite the sources as `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup  ## formatting and lint, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup  ## static types
	$(BIN)/mypy

docs: setup  ## docs/_build/index.html; a warning is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --fresh-env docs docs/_build
	@echo 'see docs/_build/index.html'

bench: setup  ## every benchmark, and the page that shows them; QUICK=1 for a short look
	set -e; for file in benchmarks/[!_]*.py; do echo "== $$file"; $(BIN)/python $$file $(QUICKLY); done
	$(if $(QUICK),,$(BIN)/python docs/make_speed.py)

experiments: setup  ## the figures of the papers and the page of claims; QUICK=1 for a short look
	$(BIN)/python -m experiments $(QUICKLY)

clean:  ## remove what was built; the environments stay (rm -r .venv .venvs)
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
