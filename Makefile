# Two commands for a bare machine: `make demo` and `make test`. Both build .venv if necessary.
PYTHON ?= python3
BIN := .venv/bin
# Test processes: one more than cores, because some tests wait; at most 4, because each of them imports torch.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))')

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo docs test test-all faults interruptions damage lint types unit format clean
.NOTPARALLEL:

help:
	@echo 'make demo     set up, then run the whole workflow on built-in data with the built-in teacher (1 to 5 minutes on 2 cores, after the installation)'
	@echo 'make test     set up with the developer tools, then run ruff, mypy and pytest, without the slow tests'
	@echo 'make test-all the same with the slow tests; CI runs this'
	@echo 'make faults   kill every command at every change that it makes to the disk, try wrong inputs and flipped bits (hours)'
	@echo 'make docs     build the documentation as a site, site/index.html'
	@echo 'make setup    set up .venv only (make setup-dev: with the developer tools)'
	@echo 'make format   format the code with ruff'
	@echo 'make clean    remove the environments, the site and the caches'
	@echo 'PYTHON=python3.12 chooses the interpreter; DEMO_ARGS and PYTEST_ARGS add arguments.'

setup:
	@$(PYTHON) scripts/setup.py

setup-dev:
	@$(PYTHON) scripts/setup.py --dev

demo: setup
	@$(BIN)/mtkd demo $(DEMO_ARGS)

docs:
	@$(PYTHON) scripts/build_docs.py

# All three run even if one fails; pytest comes last, so that its summary ends the output.
test: setup-dev
	@$(MAKE) --no-print-directory --keep-going lint types unit

test-all: setup-dev
	@$(MAKE) --no-print-directory --keep-going lint types unit SLOW=yes

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

# Both run even if one fails. With FAULTS_ARGS, only the interruptions run: "--stride 20 refine" tries every 20th change of
# one command; with "--kinds kill --pair fsdp", in two processes.
faults: setup-dev
	@$(MAKE) --no-print-directory --keep-going interruptions $(if $(FAULTS_ARGS),,damage)

interruptions:
	PYTHONPATH=. $(BIN)/python tests/faults/run.py $(FAULTS_ARGS)

damage:
	MTKD_FAULTS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/faults

# One thread per process: with several processes, torch's own threads would only compete for the cores.
unit:
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(if $(SLOW),,-m 'not slow') $(PYTEST_ARGS)

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .docs-venv build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
