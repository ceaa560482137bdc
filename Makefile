# Two commands are enough: `make run` and `make test`. Both make their environment first and can be repeated.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := rlexp tests benchmarks
EXPERIMENT ?= experiments/cartpole-apex.yaml

.PHONY: install run test test-learning format lint type keys corpus clean

install: $(VENV)/.installed

# torch first and exactly, so that no other requirement pulls a build of its own choice.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

run: install
	$(BIN)/rlexp run $(EXPERIMENT)

test: install
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/pytest

test-learning: install
	$(BIN)/pytest -m slow --timeout 900

format: install
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

lint: install
	$(BIN)/ruff check $(SOURCES)

type: install
	$(BIN)/mypy

# docs/keys.md, from the models and the tests that each key has.
keys: install
	$(BIN)/python -m rlexp.config.reference_page > docs/keys.md

# What becomes of a folder of experiment files: make corpus DIR=folder
corpus: install
	$(BIN)/python -m benchmarks.corpus $(DIR)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
