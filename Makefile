# Needs Python 3.10 or newer and, for the fast path of the diagonal metric, a C compiler.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help demo quick test lint docs wheel clients clean

help:
	@echo "make demo    badm compare digits: 14 methods, equally tuned; a table and a page"
	@echo "make quick   tests of every part in under a minute: metrics by paths, the theory, runs,"
	@echo "             a comparison and its report, commands and their errors, hostile input;"
	@echo "             none marked slow, distributed, browser or data, a few cases of each test"
	@echo "make test    lint, types and all tests"
	@echo "make lint    ruff, mypy and the directions of imports"
	@echo "make docs    the site, build/docs/index.html; warnings are errors, examples are run"
	@echo "make wheel   sdist and a wheel with the kernel in dist/, tried in an empty environment"
	@echo "make clients tests with other packages: transformers, peft, lightning; in an environment of their own"
	@echo "make clean   remove .venv and whatever was built"

demo: $(STAMP)
	$(BIN)/badm compare digits --seeds 3 --trials 6

# What takes long and is not marked slow shows up at the end.
quick: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --quick \
		--durations 5 --durations-min 1

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -E -W --keep-going -c docs . build/docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/test_pages.py tests/test_docs.py
	@echo "written: build/docs/index.html"

wheel: $(STAMP)
	$(BIN)/python tools/build_wheel.py dist

# An environment of their own, so that make test stays quick and knows none of these packages.
clients: .venv-clients/.installed
	OMP_NUM_THREADS=1 .venv-clients/bin/python -m pytest -q tests/clients

.venv-clients/.installed: pyproject.toml constraints.txt constraints-clients.txt
	@test -x .venv-clients/bin/pip || $(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/python -m pip install -qq --no-input --disable-pip-version-check \
		-c constraints.txt -c constraints-clients.txt -e '.[bench,dev]' transformers peft lightning
	@touch $@

# pip is the last thing a new environment gets: where it is missing, making one was interrupted.
# One command installs it all: torch without its pin would be replaced by a build for GPUs.
$(STAMP): pyproject.toml setup.py constraints.txt src/badm/metrics/kernel.c
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@echo "Installing badm and what it is tested with into .venv ..."
	@$(BIN)/python -m pip install -qq --no-input --disable-pip-version-check \
		-c constraints.txt -e '.[bench,dev,docs]'
	@touch $@

clean:
	rm -rf .venv .venv-clients build dist src/badm.egg-info src/badm/metrics/_kernel*.so src/badm/metrics/_kernel*.pyd
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
