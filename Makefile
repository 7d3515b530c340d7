# make demo: the whole job for real.  make test: the whole suite.  Both need only Python 3.11 or newer, git and make.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
STAMP := $(VENV)/torch-choice
# Any arguments of pip, for instance TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu".
# A choice is remembered in the .venv, so that it is given once.
TORCH ?= $(or $(shell cat $(STAMP) 2>/dev/null),torch==2.13.0)
RUN := $(VENV)/bin/python
SOURCES := megalite tests tools examples benchmarks pretrain_gpt.py setup.py
# Two workers take whole files of tests: what starts processes and waits leaves a core to the other.
SHARED := --numprocesses 2 --dist loadfile
# One thread a process: the ranks of a test or of a demo share the cores.
export OMP_NUM_THREADS ?= 1

.PHONY: setup test demo demo-clean check lines bench soak

ifneq ($(TORCH),$(shell cat $(STAMP) 2>/dev/null))
.PHONY: $(STAMP)
endif

setup: $(STAMP)

$(STAMP): requirements.txt pyproject.toml setup.py $(wildcard csrc/*/*.* csrc/*/*/*.*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install $(TORCH)
	$(RUN) -m pip install -r requirements.txt
	$(RUN) -m pip install --no-deps --no-build-isolation --editable .
	@echo '$(TORCH)' > $(STAMP)

test: setup
	$(RUN) -m pytest $(SHARED)

demo: setup
	$(RUN) examples/demo/demo.py

demo-clean:
	rm -rf demo

check: setup lines
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m pytest tests/house

lines:
	@for part in $(SOURCES); do \
	  printf '%-16s %6d lines of Python\n' $$part $$(git ls-files -co --exclude-standard $$part | grep '\.py$$' | xargs -r cat | wc -l); \
	done

bench: setup
	$(RUN) benchmarks/train_step.py

soak: setup
	$(RUN) -m pytest $(SHARED) -m soak -p tests.proof --proof docs/proof/soak.md
