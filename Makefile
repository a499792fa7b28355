# tokpipe: every figure in docs/benchmarks.md and every promise in the README is one of these targets.
# Settings, e.g. `make demo CORPUS=../my-texts OUT=data`:
PYTHON ?= python3
VENV ?= .venv
CORPUS ?=
OUT ?= demo/data
MB ?= 30

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help venv venv-dev demo test check format clean
help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 20

# Two stamps: the demo needs no torch, so a fresh laptop is through in minutes.
$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e '.[demo]'
	touch $@
$(VENV)/.dev: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[demo,train,tensorboard,export,s3,ray,dev]'
	touch $@
venv: $(VENV)/.base  ## .venv with what `tokpipe build` needs
venv-dev: $(VENV)/.dev  ## .venv with everything the tests need

check: $(VENV)/.dev  ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## put the formatting right
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: $(VENV)/.dev  ## the default test suite, with coverage
	$(BIN)/python -m coverage erase
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not engine and not gpu and not interop" --cov --cov-report=
	$(BIN)/python -m coverage report --skip-covered --fail-under=90

clean:  ## remove what the targets made, but for .venv
	rm -rf demo runs .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
