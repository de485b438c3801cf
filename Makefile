# `make demo` and `make test` set up everything they need; `make help` lists the rest.
VENV ?= .venv
PYTHON ?= python3
RUN = $(VENV)/bin
READY = $(VENV)/.ready
SMALL = $(VENV)/.small

.PHONY: help setup demo test lint bench gold model tiny tiny-rainbow screenshots clean

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

# One process per core, one thread each; a file's tests stay together.
test: lint
	OMP_NUM_THREADS=1 $(RUN)/python -m pytest -n auto --dist loadfile

lint: $(READY)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

bench: $(READY)
	$(RUN)/unmask bench

gold: $(READY)
	@test -n "$(UNMASK_DATA)" || { echo "set UNMASK_DATA to the folder that holds the benchmarks' files"; exit 2; }
	$(RUN)/python -m unmask.tasks.gold $(UNMASK_DATA)

# From nothing, one thread each (make -j2 model trains both at once): the same bits on the same machine.
TRAIN = OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(RUN)/unmask train --threads 1 --half \
	--task stories,cups,compass,stories-first,cups-first,compass-first
SHA256 = $(RUN)/python -c "import hashlib, sys; [print(hashlib.sha256(open(f, 'rb').read()).hexdigest(), f) for f in sys.argv[1:]]"

model: tiny tiny-rainbow
	@$(SHA256) build/tiny/model.safetensors build/tiny-rainbow/model.safetensors
	$(RUN)/unmask accept --model build/tiny --split tuning --count 100 --workers 2 --out build/acceptance

tiny: $(READY)
	$(TRAIN) --config tiny --steps 4500 --cooldown 0.3 --out build/tiny

tiny-rainbow: $(READY)
	$(TRAIN) --padding rainbow --config tiny --steps 8000 --cooldown 0.3 --out build/tiny-rainbow

screenshots: $(READY)
	$(RUN)/python scripts/screenshots.py

clean:
	rm -rf $(VENV) build dist *.egg-info
