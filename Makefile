# `make help` lists the targets. Everything is installed into .venv (or .venv-lowest), once, at the committed versions.
PYTHON ?= python3

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check bench test-lowest lock clean

# Tests of one file share what they have fitted and compiled; tests/conftest.py says which files come first.
BY_FILE := -n auto --dist loadfile --no-loadscope-reorder
# Modules are compiled when they are first imported: most never are. What was compiled is kept, whatever the environment
# says: a run of the tests starts many processes, and each would compile everything again.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := -m pip install --disable-pip-version-check --no-compile -qq

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: .venv/installed ## Fit simulated sites and show what federating them gains
	@.venv/bin/fedgrem demo

test: .venv/compiled ## Run the tests, doctests included
	@.venv/bin/python -m pytest $(BY_FILE)

check: .venv/installed ## Check style, format, types and import rules
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo --no-cache

bench: .venv/installed ## Measure speed
	@.venv/bin/python benchmarks/run.py

test-lowest: .venv-lowest/installed ## Run the tests on the lowest supported versions (Python 3.11)
	@.venv-lowest/bin/python -m pytest $(BY_FILE)

lock: ## Rewrite constraints.txt from the newest versions
	$(call require_python,>=)
	@rm -rf .venv-lock
	$(call install,.venv-lock,,dev)
	@{ sed '/^[^#]/,$$d' constraints.txt; \
	   .venv-lock/bin/python -m pip freeze --all --exclude-editable; } > constraints.tmp
	@mv constraints.tmp constraints.txt
	@rm -rf .venv-lock

clean: ## Remove the environments and every cache
	@rm -rf .venv .venv-lowest .venv-lock .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist build
	@find . -name .git -prune -o -name __pycache__ -prune -exec rm -rf {} +

.venv/installed: pyproject.toml constraints.txt
	$(call require_python,>=)
	$(call install,.venv,-c constraints.txt,dev)
	@touch $@

# What the tests import, compiled once, beside the checks, before several workers would each do it. What is wrong with
# a test is told by the run itself.
.venv/compiled: .venv/installed
	@.venv/bin/python -m pytest --collect-only -qq > /dev/null 2>&1 || true
	@touch $@

.venv-lowest/installed: pyproject.toml constraints-lowest.txt
	$(call require_python,==)
	$(call install,.venv-lowest,-c constraints-lowest.txt,test)
	@touch $@

# $(call require_python,>= or ==): stop with a clear message unless $(PYTHON) compares so with 3.11.
define require_python
	@command -v "$(PYTHON)" > /dev/null || \
	  { echo "error: $(PYTHON) not found; install Python 3.11 or later, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info[:2]; v $(1) (3, 11) or sys.exit("error: $(PYTHON) is Python %d.%d, \
	but version $(1) 3.11 is needed; name another one: make PYTHON=/path/to/python" % v)'
endef

# $(call install,environment,constraints,group): the package, editable, with all extras and a dependency group. pip and
# the build backend come first and without build isolation, so that the constraints hold for them too.
define install
	@echo "Installing into $(1); this takes a minute or two, once."
	@test -x $(1)/bin/python || "$(PYTHON)" -m venv $(1)
	@$(1)/bin/python $(PIP_INSTALL) $(2) --upgrade pip
	@$(1)/bin/python $(PIP_INSTALL) $(2) --group build
	@$(1)/bin/python $(PIP_INSTALL) $(2) --no-build-isolation -e ".[all]" --group $(3)
endef
