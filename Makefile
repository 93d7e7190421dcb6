# Everything a newcomer needs: `make quickstart` and `make test`. Each sets itself up on a machine with only Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
READY := $(VENV)/.ready
SMALL := $(VENV)/.small
# Without a GPU torch's CPU build is a tenth of the size. It is tried once, and only where pip is told of no index or wheels of
# its own; where it cannot be had, torch comes with the rest.
CPU_TORCH = [ "$$(uname)" != Linux ] || command -v nvidia-smi > /dev/null || \
	$(BIN)/python -m pip config list | grep -qE 'index|find-links' || \
	$(BIN)/python -m pip install --retries 0 --index-url https://download.pytorch.org/whl/cpu \
	"$$(grep ^torch== constraints.txt)" 2> /dev/null || echo "download.pytorch.org cannot be reached: torch may come with CUDA."
FOLDERS := benchmarks configuration docs examples modeling tests tokenization transformers_xl

.PHONY: help setup quickstart space test test-slow lint format layout typing docs docs-serve bench stress gpu-check clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1: /'

setup: $(READY)  ## make .venv and install the package with what development needs

$(SMALL): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("transformers needs Python 3.11 or newer, \
	this is " + sys.version.split()[0] + ": name another, as in make quickstart PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): 0.3 GB to download with the CPU build of torch, several GB with CUDA. Ctrl-C stops it."
	@$(CPU_TORCH)
	@$(BIN)/python -m pip install -c constraints.txt -e .
	touch $(SMALL)

$(READY): $(SMALL)
	@echo "Installing the tools of development (tests, linters, docs)."
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,demo]'
	touch $(READY)

quickstart: $(SMALL)  ## train small models on real text, measure what memory is worth, and load one again (2 to 4 minutes)
	$(BIN)/python -u examples/quickstart.py

space: setup  ## serve the demo: a model that writes without end, and what it reads of its memory
	[ -d build/quickstart/model ] || [ -n "$$MODEL" ] || $(BIN)/python examples/quickstart.py
	$(BIN)/python examples/space/app.py

test: setup  ## run the tests, but for those that are marked slow
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow"

test-slow: setup  ## run the tests that are marked slow
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m slow

lint: setup  ## style, spelling, and the conventions of transformers' models
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $(FOLDERS) *.md
	$(BIN)/python .ci/model_lint.py

format: setup  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

layout: setup  ## link the sub-packages under build/typing, by the names they are imported by
	rm -rf build/typing
	mkdir -p build/typing/transformers_xl
	for part in transformers_xl/* configuration modeling tokenization; do ln -s ../../../$$part build/typing/transformers_xl/; done

typing: layout  ## check the types of the public package
	$(BIN)/mypy build/typing/transformers_xl

docs: layout  ## build the site into build/site: every link is checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: layout  ## serve the site at http://127.0.0.1:8000, with its search
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

bench: setup  ## run the benchmarks
	set -e; for script in benchmarks/bench_*.py; do [ -e "$$script" ] || continue; $(BIN)/python "$$script"; done

stress: setup  ## kill trainings 200 times, resume them, and compare what they end with, bit for bit
	$(BIN)/python benchmarks/stress_resume.py --kills 200

gpu-check: setup  ## run the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

clean:  ## remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
