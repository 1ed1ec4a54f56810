# Every target sets up what it needs in .venv by itself: Python >= 3.11 and a C++ compiler are enough.
# Other versions side by side: make test PYTHON=python3.12 TORCH=2.11.0 VENV=.venv-old

PYTHON ?= python3
TORCH ?= 2.13.0
VENV ?= .venv
# For the tests of backend `fuser` on a CPU, in a folder of its own: among the packages, Inductor would use it.
TRITON ?= 3.9.0
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PIP := $(PY) -m pip --disable-pip-version-check -qq
# Two calls at the same time must not install at the same time. Without flock (macOS) there is no such guard.
LOCK := $(if $(shell command -v flock),flock Makefile)

# Set, as in many containers, each process that the tests start would compile torch's modules once more.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test lint types core docs screenshots models private-names compilers sweep wheel clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

install:  ## set up .venv: torch, aotkit (editable) and the developer's tools
	@$(LOCK) $(MAKE) -s --no-print-directory $(STAMP)

demo: install  ## show a compiled training function next to eager
	@$(PY) -m aotkit demo

test: install  ## run the tests, two at a time
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist worksteal

lint: install  ## check style and formatting
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: install  ## check types
	$(PY) -m mypy

# From names to compiled graphs, of `nop` and `default`; other stages are entered by their doors.
CORE := aotkit/compiler.py aotkit/registry.py aotkit/interfaces.py aotkit/errors.py aotkit/capture/recipe.py \
	aotkit/stages/calls.py aotkit/stages/pipeline.py backends/nop.py partitioners/default.py

core:  ## count the lines of the core, which a test limits
	@wc -l $(CORE)

docs: install  ## build the documentation as HTML, for reading without a network
	@$(PIP) install --group docs
	@$(PY) -m sphinx --quiet --fail-on-warning --keep-going -c docs . docs/_build/html
	@echo "docs/_build/html/docs/index.html"

screenshots: install  ## draw docs/images/*.png anew; needs Chromium
	@$(PIP) install --group docs
	@$(PY) -m docs.screenshots

models: install  ## train models of public libraries, compiled, and write docs/models.md (half an hour)
	@$(PIP) install --no-compile torch==$(TORCH) --group models
	OMP_NUM_THREADS=1 $(PY) -m tests.models --write

private-names: install  ## write which private names of torch are used, and are in the torch that is installed
	$(PY) -m tests.torch_private.private_names

compilers:  ## test the backends of other compilers, in an environment of their own (3 GB, an hour)
	@$(LOCK) $(MAKE) -s --no-print-directory VENV=.venv-compilers .venv-compilers/.installed
	@.venv-compilers/bin/python -m pip --disable-pip-version-check -qq install -e '.[iree,jax,onnxruntime,tvm]' torch==$(TORCH)
	OMP_NUM_THREADS=1 .venv-compilers/bin/python -m pytest -n 2 -m 'sweep or not sweep' tests/backends/test_foreign.py tests/backends/test_compilers.py

sweep: install  ## run the long comparisons: random calls, all pairs of the matrix, false alarms, all operators, large models (hours; continues)
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 -m sweep --ignore=tests/sweep
	$(PY) -m pytest -m sweep tests/sweep -s

wheel: install  ## build a wheel into dist/ with the C++ tier, for the torch and the Python that are installed
	@$(PY) -m aotkit.torch_private.native.wheel dist

clean:  ## remove the environment and every cache; keeps the results of a sweep
	rm -rf $(VENV) build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and exactly, so that a range in pyproject.toml cannot pull another build of it.
# Python compiles what is imported of it: a few of its thousands of modules.
# The folders removed below would otherwise bring deleted files and old entry points into the new installation.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("aotkit needs Python 3.11 or newer, but $(PYTHON) is " \
	    + sys.version.split()[0] + ": call make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	    echo "creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); fi
	@echo "updating pip"
	@$(PIP) install 'pip>=25.1' 'setuptools>=77'
	@echo "installing torch $(TORCH) ..."
	@$(PIP) install --no-compile torch==$(TORCH)
	@echo "installing aotkit and its tools ..."
	@rm -rf build *.egg-info
	@$(PIP) install --no-compile -e . --group dev
	@echo "installing Triton $(TRITON) into $(VENV)/interpreter, for its interpreter ..."
	@rm -rf $(VENV)/interpreter
	@$(PIP) install --no-deps --no-compile --target $(VENV)/interpreter triton==$(TRITON) \
	    || echo "no Triton, which there is for Linux alone: the tests of backend fuser's kernels are skipped"
	@touch $@
