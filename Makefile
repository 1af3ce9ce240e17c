# `make help` lists what can be done. Stamp files keep second runs instant: nothing is installed again until a pin changes.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup app test check screenshots bench engine demo

PORT ?= 8501
ENGINE_PORT ?= 8111
ENGINE ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)

PYTHON := .venv/bin/python
ENGINE_PYTHON := .venv-engine/bin/python
BASE_PYTHON = $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

help:  ## list these commands
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: .venv/.app  ## install the dashboard in .venv

app: setup  ## run the dashboard (PORT=8501)
	$(PYTHON) -m streamlit run app.py --server.port $(PORT)

test: .venv/.dev  ## install everything and run every test
	@$(MAKE) --no-print-directory engine || echo "No engine could be installed: the tests that need one will be skipped." >&2
	$(PYTHON) -m pytest -m alone
	$(PYTHON) -m pytest -m "not alone" -n 2 --dist loadgroup

check: .venv/.dev  ## lint, formatting, types and the rules of the house
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy planner monitor
	$(PYTHON) -m pytest -q tests/test_house.py

screenshots: .venv/.dev engine  ## write the pictures of docs/ anew, from the browser tests
	UPDATE_SCREENSHOTS=1 REQUIRE_ALL=1 $(PYTHON) -m pytest -q tests/test_browser.py

bench: .venv/.dev engine  ## run the benchmarks
	@for file in benchmarks/*.py; do PYTHONPATH=. $(PYTHON) "$$file" || exit 1; done

engine: .venv-engine/.engine  ## install a real vLLM in .venv-engine (ENGINE=cpu or gpu)

demo: setup engine  ## a real vLLM with a tiny random model under load, and the dashboard on it (PORT, ENGINE_PORT)
	$(PYTHON) -m scripts.demo --port $(PORT) --engine-port $(ENGINE_PORT)

$(PYTHON) $(ENGINE_PYTHON):
	@test -n "$(BASE_PYTHON)" || { echo "This needs Python 3.11 or newer, and found: \
	$$(python3 --version 2>/dev/null || echo no python3)." >&2; exit 1; }
	$(BASE_PYTHON) -m venv $(@:/bin/python=)

.venv/.app: requirements.txt | $(PYTHON)
	$(PYTHON) $(PIP_INSTALL) -r requirements.txt
	@touch $@

.venv/.dev: requirements-dev.txt .venv/.app
	$(PYTHON) $(PIP_INSTALL) -r requirements-dev.txt
	@touch $@

# The CPU build pulls in audio and vision packages that do not match its torch, and transformers fails to import beside them.
.venv-engine/.engine: requirements-engine.txt requirements-engine-cpu.txt | $(ENGINE_PYTHON)
	$(ENGINE_PYTHON) $(PIP_INSTALL) -r requirements-engine$(if $(filter cpu,$(ENGINE)),-cpu).txt
	$(if $(filter cpu,$(ENGINE)),$(ENGINE_PYTHON) -m pip uninstall --quiet --yes torchvision torchaudio torchcodec)
	@touch $@
