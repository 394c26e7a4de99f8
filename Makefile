# Two commands do all the set-up on a Debian machine with Python and make:
#   make demo    virtualenv, install, record the example service for ~10 s, print the diagnosis, write the flame graph
#   make test    the same set-up with the development tools, then every test
VENV ?= .venv
PYTHON ?= python3
SECONDS ?= 10
BIN := $(VENV)/bin
# Programs that are there to be recorded, as users write them: no types, and they need torch.
RECORDED := scripts/gpu/(planted/|llm|truth)
export PYTHON

.NOTPARALLEL:
.PHONY: help demo test lint bench install install-dev system system-dev clean

help:
	@sed -n 's/^#   //p' Makefile

demo: install
	@$(BIN)/perfscope demo --seconds $(SECONDS) --force
	@echo "perfscope     . $(BIN)/activate puts it on your PATH" >&2

test: install-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=tests:. $(BIN)/mypy --strict --explicit-package-bases --exclude '$(RECORDED)' scripts benchmarks
	$(BIN)/lint-imports

bench: install-dev
	set -e; for benchmark in benchmarks/*.py; do echo "$$benchmark"; $(BIN)/python $$benchmark; done

# As root on Debian: installs what the demo uses and this machine lacks. Else: says what is missing and how to get it.
system:
	@scripts/system_packages.sh demo

system-dev:
	@scripts/system_packages.sh test

install: system $(VENV)/.installed
install-dev: system-dev $(VENV)/.installed-dev

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "perfscope needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "  try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) can't make a virtualenv.  try: apt-get install python3-venv (as root)" >&2; exit 2; }

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[austin]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist
