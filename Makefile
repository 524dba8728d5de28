# make demo   train, evaluate and report a small model on the built-in corpus
# make test   lint, types and every test
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: setup demo test lint bench clean

setup: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[serve]'
	touch $@

demo: setup
	$(BIN)/anydepth quickstart --out runs/quickstart

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# two at a time; a test never needs more than one thread
test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

bench: $(VENV)/.tested
	$(BIN)/python benchmarks/training_speed.py

clean:
	rm -rf $(VENV) runs
