# Two commands a newcomer needs: `make demo` and `make test`. Both create .venv and install all they need.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
DOCS   := .venv-docs
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q install

# The tests start thousands of processes: where Python is told to keep nothing it compiled, each compiles all of it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check lint format types js browser all-tests unit scanner scanner-check docs clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.demo  ## record, analyse and report a small real two-rank job on this machine
	$(BIN)/stepscope demo

test:  ## everything CI runs: linters, types, scanner rebuild, links in the docs, tests
	@$(MAKE) --no-print-directory -j2 --output-sync=target $(VENV)/.dev $(DOCS)/.ready
	@$(MAKE) --no-print-directory -j2 --output-sync=target check
	@$(MAKE) --no-print-directory all-tests

check: lint types js scanner-check docs

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev
	$(BIN)/mypy

js:  ## lint and type-check the JavaScript of the pages, where npm is there
	@tools/js/check.sh

browser:
	@tools/install_browser.sh

all-tests: $(VENV)/.dev browser
	$(BIN)/python -m compileall -q src
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations=40 --durations-min=5

unit: $(VENV)/.dev  ## the quick tests, a minute on two cores: no job, no browser, nothing slow
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not (job or slow or browser or gpu)'

scanner: $(VENV)/.dev  ## rebuild the WebAssembly scanner from its C source
	$(BIN)/python tools/build_scanner.py

scanner-check: $(VENV)/.dev
	$(BIN)/python tools/build_scanner.py --check

docs: $(DOCS)/.ready  ## build the documentation into build/docs; a broken link is an error
	$(DOCS)/bin/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo "<meta http-equiv=refresh content=\"0; url=README.html\">" > build/docs/index.html

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; install Python 3.11 or newer, or run make PYTHON=python3.x"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml requirements/test.txt
	$(PIP) -r requirements/test.txt
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.demo requirements/frameworks.txt
	$(PIP) -r requirements/frameworks.txt -e '.[dev,sql]'
	@touch $@

$(DOCS)/.ready: requirements/docs.txt pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check -q install -r requirements/docs.txt -e .
	@touch $@

clean:  ## remove the environment and what was built
	rm -rf $(VENV) $(DOCS) tools/js/node_modules build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
