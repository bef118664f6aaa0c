# Needs only make and Python 3.11 or newer: no compiler, no activated environment.
#   make demo | make cluster | make test | make slow | make quick | make longer | make fuzz | make faults | make chaos | make check | make docs |
#   make env | make node | make clean
#
# Variables:
#   ARGS         arguments for the program that runs: make test ARGS="-k layers", make cluster ARGS=--autoscale
#   PYTHON       the Python that creates .venv:       make env PYTHON=/opt/python3.12/bin/python3
#   TORCH_INDEX  the package index for PyTorch only. On Linux, pip's default index has builds with CUDA (several GB). They
#                also run on a CPU, but on a machine without GPU you can download a smaller build:
#                  make env TORCH_INDEX=https://download.pytorch.org/whl/cpu

VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --no-deps
STAMP  := $(VENV)/.installed
TO_RUN := $(VENV)/.installed-run
ON_NODES := $(VENV)/.installed-node
PYTHON ?=

# Finds Ninja and other tools in .venv without activating it, and ignores Python settings of the caller's shell.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_USER := 0
# Each process runs whole files, so that the tests of a file share their fixtures.
BY_FILE := --dist loadfile --no-loadscope-reorder
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE

.PHONY: help env node demo cluster test slow quick longer fuzz faults chaos check docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile
	@echo '  (ARGS="..." passes arguments to the program; the Makefile explains more)'

env: $(STAMP) ## create .venv with the pinned packages; do nothing if it is up to date

node: $(ON_NODES) ## create .venv for a cluster node, without the packages for development

demo: $(TO_RUN) ## adapt a small language model to technical English, in two minutes at most
	$(VENV)/bin/dontstop demo $(ARGS)

cluster: $(TO_RUN) ## run the demo on a cluster of three nodes on this machine, and kill one node
	$(PY) -m cluster.here $(ARGS)

# Three processes on two cores, because jobs spend part of their time waiting.
test: env ## run all tests but the slow ones
	$(PY) -m pytest -n 3 $(BY_FILE) -m "not slow" $(ARGS)

slow: env ## run the slow tests: jobs that are killed, clusters, compiled models, documents with commands
	$(PY) -m pytest -n 3 $(BY_FILE) -m slow $(ARGS)

quick: env ## run the short tests (70% of those without Ray and jobs), while you write code
	$(PY) -m pytest -n 2 $(BY_FILE) -m "not slow and not heavy and not longer" $(ARGS)

longer: env ## run the tests without Ray and jobs, and write to tests/longer.txt which ones `make quick` leaves out
	$(PY) -m pytest -n 2 $(BY_FILE) -m "not slow and not heavy" --note-longer

fuzz: env ## try random corpora and configurations for ten minutes
	$(PY) -m pytest tests/fuzz -k further --minutes 10 $(ARGS)

faults: env ## kill, stop, cut and damage a chain in 17 ways, in ten minutes
	$(PY) -m tests.chaos --minutes 10 $(ARGS)

chaos: env ## the same at 20 moments each, in some hours; call it again to continue
	$(PY) -m tests.chaos --moments 20 --file chaos.jsonl $(ARGS)

check: env ## check lint, formatting, types and the changelog
	scripts/check

docs: env ## build the documentation into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet $(ARGS)

clean: ## remove caches and build leftovers (not .venv, not runs/)
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# Every installation can run the demo, so each of the three targets also creates TO_RUN.
# pip installs the packages in the sections of constraints.txt that name the target (SET), and refuses files with other
# hashes. scripts/lock writes these sections from EXTRAS. PyTorch has no hash here, because its build depends on
# TORCH_INDEX: it has the version of constraints.txt, and no other package comes from TORCH_INDEX. Without TORCH_INDEX,
# PyTorch's CUDA packages are installed with it.
$(STAMP): SET := env
$(STAMP): EXTRAS := dev
$(ON_NODES): SET := node
$(ON_NODES): EXTRAS := documents,mlflow,model2vec,optuna,s3,wandb
$(TO_RUN): SET := demo
$(TO_RUN): EXTRAS :=
PINNED := $(VENV)/pinned.txt
$(STAMP) $(ON_NODES) $(TO_RUN): pyproject.toml constraints.txt
	@test -x $(PY) || { \
	  for python in $(PYTHON) python3.11 python3 python3.12 python3.13; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "error: no Python 3.11 or newer found (tried $(PYTHON) python3.11 python3 python3.12 python3.13)" >&2; \
	    echo "  fix: install one, or name it: make env PYTHON=/path/to/python3.11" >&2; exit 1; \
	  fi; \
	  echo "creating $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "  fix: install Python's venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }; \
	}
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(VENV) holds $$($(PY) --version), but 3.11 or newer is needed" >&2; \
	  echo "  fix: remove $(VENV) and run make env again" >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip --upgrade
	awk '/^# --- / {keep = /[ ]$(SET)( |$$)/} keep' constraints.txt > $(PINNED)
	$(PIP) --require-hashes --requirement $(PINNED)
	$(PY) -m pip install --no-warn-conflicts $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) "$$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' constraints.txt)"
	$(PIP) --no-build-isolation --editable .
	@touch $@ $(TO_RUN)
