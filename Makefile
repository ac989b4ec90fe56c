# Two commands on a bare machine: `make demo` and `make test`. Each builds .venv when it has to.
PYTHON ?= python3
BIN := .venv/bin
# Test processes: one a core, but no more than this (each imports torch).
JOBS ?= 4

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test check lint types unit format clean
.NOTPARALLEL:

help:
	@echo 'make demo     set up, then run the main job on the built-in data and teacher (under 10 minutes)'
	@echo 'make test     set up with the developer tools, then ruff, mypy and pytest'
	@echo 'make check    the same: what CI runs'
	@echo 'make setup    set up .venv and nothing else (make setup-dev: with the developer tools)'
	@echo 'make format   put the code into the house format'
	@echo 'make clean    remove .venv and the caches'
	@echo 'PYTHON=python3.12 chooses the interpreter, DEMO_ARGS and PYTEST_ARGS add arguments.'

setup:
	@$(PYTHON) scripts/setup.py

setup-dev:
	@$(PYTHON) scripts/setup.py --dev

demo: setup
	@$(BIN)/mtkd demo $(DEMO_ARGS)

# All three are run and shown, whichever fails; pytest last, so that its closing line closes the output.
test: setup-dev
	@$(MAKE) --no-print-directory --keep-going lint types unit

check: test

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

# One thread a process: with several processes torch's own threads only get in each other's way.
unit:
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses $(JOBS) --dist worksteal $(PYTEST_ARGS)

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
