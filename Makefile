# `make quickstart` and `make test` make their own environment; the second time they start at once.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: quickstart test lint soak mutation clean

quickstart: $(READY)
	$(BIN)/tokencodes compare quickstart --out runs/quickstart

test: $(READY) lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Hours, so not part of `test`: hundreds of kills, and hundreds of faults put into the source.
soak: $(READY)
	$(BIN)/python -m pytest -m soak
	$(BIN)/python tools/soak_prepare.py
	$(BIN)/python tools/soak_train.py

mutation: $(READY)
	$(BIN)/python tools/mutate.py --mutants 400 --report mutation.md

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The lock file pins every version. An index with only a CPU build of torch gives that one; PyPI's brings CUDA on Linux.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tokencodes needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "no venv module: on Debian, apt install python3-venv"; exit 2; }
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
