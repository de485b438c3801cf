# `make demo` and `make test` set up everything they need; `make help` lists the rest.
VENV ?= .venv
PYTHON ?= python3
RUN = $(VENV)/bin
READY = $(VENV)/.ready
SMALL = $(VENV)/.small

.PHONY: help setup demo test lint bench gold model screenshots clean

help:
	@echo "make demo         SACM against plain decoding on the bundled model"
	@echo "make test         lint, types and every test"
	@echo "make lint         ruff, its formatter, and mypy"
	@echo "make bench        speed and memory, as ratios"
	@echo "make gold         graders on real benchmark data: UNMASK_DATA=DIR make gold"
	@echo "make model        train the bundled models from nothing, and print their acceptance table"
	@echo "make screenshots  the pictures in docs/"

setup: $(READY)

# What decoding needs: torch, transformers, safetensors, rich.
$(SMALL): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet --upgrade pip
	$(RUN)/pip install --quiet -c constraints.txt -e .
	touch $(SMALL)

# And what the tests need: Ray, lm-eval, torchao, a browser driver, ...
$(READY): $(SMALL)
	$(RUN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(READY)

demo: $(SMALL)
	@$(RUN)/unmask demo

test: lint
	$(RUN)/python -m pytest

lint: $(READY)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

bench: $(READY)
	$(RUN)/unmask bench

gold: $(READY)
	@test -n "$(UNMASK_DATA)" || { echo "set UNMASK_DATA to the folder that holds the benchmarks' files"; exit 2; }
	$(RUN)/python -m unmask.tasks.gold $(UNMASK_DATA)

TRAIN = $(RUN)/unmask train --task stories,cups,compass --half

model: $(READY)
	$(TRAIN) --config tiny --steps 4500 --cooldown 0.3 --out build/first
	$(TRAIN) --model build/first --steps 1300 --cooldown 0.6 --out build/tiny
	$(TRAIN) --padding rainbow --config tiny --steps 4500 --cooldown 0.3 --out build/first-rainbow
	$(TRAIN) --padding rainbow --model build/first-rainbow --steps 1300 --cooldown 0.6 --out build/tiny-rainbow
	$(RUN)/unmask accept --model build/tiny --split tuning --workers 2 --out build/acceptance

screenshots: $(READY)
	$(RUN)/python scripts/screenshots.py

clean:
	rm -rf $(VENV) build dist *.egg-info
