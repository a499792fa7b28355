# tokpipe: every figure in docs/benchmarks.md and every promise in the README is one of these targets.
# Settings, e.g. `make demo CORPUS=../my-texts OUT=data`:
PYTHON ?= python3
VENV ?= .venv
CORPUS ?=
MB ?= 30
RAW := $(if $(CORPUS),$(CORPUS),demo/raw)
OUT ?= $(if $(CORPUS),demo/corpus-data,demo/data)

# The cluster targets, e.g. `make cluster-build CORPUS=/data/raw OUT=/data/tokens SBATCH='--partition=cpu --nodes=8'` and
# `make cluster-train DATA=/data/tokens RUN=/data/runs/7b SBATCH=--partition=gpu`; SBATCH beats the #SBATCH lines of the script.
SBATCH ?=
DATA ?= $(OUT)
RUN ?= runs/llama-7b
RECIPE ?= recipes/llama-7b-64xh100.toml
# More options of `tokpipe build` or `tokpipe train`.
OPTIONS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help venv venv-dev demo check format test test-interop test-engines test-long bench-train-tokenizer bench-loader bench-encode bench-plan bench-stages demo-train train-3d bench-train bench-memory cluster-build cluster-train clean bench bench-end-to-end
help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 26

# Two stamps: the demo needs no torch, so a fresh laptop is through in minutes.
$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e '.[demo]'
	touch $@
$(VENV)/.dev: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[demo,train,tensorboard,export,s3,ray,dev]'
	touch $@
venv: $(VENV)/.base  ## .venv with what `tokpipe build` needs
venv-dev: $(VENV)/.dev  ## .venv with everything the tests need

demo: $(VENV)/.base  ## write a sample corpus (or take CORPUS=path), build it, verify it, show what came out
	$(if $(CORPUS),,test -d demo/raw || $(BIN)/python scripts/sample_corpus.py demo/raw --megabytes $(MB))
	$(BIN)/tokpipe build --corpus "$(RAW)" --out "$(OUT)"
	$(BIN)/tokpipe verify "$(OUT)"
	$(BIN)/tokpipe inspect "$(OUT)"

check: $(VENV)/.dev  ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## put the formatting right
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: $(VENV)/.dev  ## the default test suite, with coverage
	$(BIN)/python -m coverage erase
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not engine and not gpu and not interop" --cov --cov-report=
	$(BIN)/python -m coverage report --skip-covered --fail-under=90

$(VENV)/.interop: $(VENV)/.dev
	$(PIP) install -c constraints.txt -e '.[interop]'
	touch $@
test-interop: $(VENV)/.interop  ## megatron-core itself reads and writes our shards
	$(BIN)/python -m pytest -m interop tests

test-engines: $(VENV)/.dev  ## Slurm, Ray and S3 on this machine (Slurm tests skip where it is not installed)
	$(BIN)/python -m pytest -m "engine and not slow" tests

test-long: $(VENV)/.dev  ## the tests that take minutes each
	$(BIN)/python -m pytest -m "slow and not gpu" --timeout 3600 tests

bench-train-tokenizer: $(VENV)/.dev  ## counting and training beside SentencePiece's own training: seconds, memory, pieces
	$(BIN)/python scripts/bench_train_tokenizer.py $(or $(CORPUS),../shared/corpus)

bench-loader: $(VENV)/.dev  ## batches per second beside the usual loop and Megatron's; memory over 8 GB
	$(BIN)/python scripts/bench_loader.py demo/bench-loader

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) install -c constraints.txt -e '.[bench]'
	touch $@
bench-encode: $(VENV)/.bench  ## encoding speed on one core beside sentencepiece, HF tokenizers, kitoken and gigatoken; ids compared
	$(BIN)/python scripts/bench_encode.py $(or $(CORPUS),../shared/corpus) --json demo/bench-encode.json

bench-end-to-end: $(VENV)/.bench  ## files to tokens on disk on one core beside gigatoken, datatrove and a plain SentencePiece loop
	$(BIN)/python scripts/bench_end_to_end.py $(or $(CORPUS),../shared/corpus) --json demo/bench-end-to-end.json

bench-plan: $(VENV)/.base  ## planning 5 TB as 10,000 and as 1,000,000 files: seconds and memory
	$(BIN)/python scripts/bench_plan.py demo/bench-plan

bench-stages: $(VENV)/.base  ## CPU seconds per GB of every stage of a build, and a trillion tokens on paper from them
	mkdir -p demo/bench-stages
	$(BIN)/python scripts/bench_stages.py $(or $(CORPUS),../shared/corpus) demo/bench-stages > demo/bench-stages/stages.json
	$(BIN)/python scripts/scaling.py demo/bench-stages/stages.json

TRAIN_DATA := demo/train-data
$(TRAIN_DATA)/dataset.json: $(VENV)/.dev
	test -d demo/raw || $(BIN)/python scripts/sample_corpus.py demo/raw --megabytes $(MB)
	$(BIN)/tokpipe build --corpus demo/raw --out $(TRAIN_DATA) --vocab-size 4096 --validation 0.02 \
	    --dp 1 --seq-len 128 --global-batch-size 16

demo-train: $(TRAIN_DATA)/dataset.json  ## raw text to a falling loss: build the sample corpus, train recipes/tiny-cpu.toml
	$(BIN)/python scripts/demo_train.py recipes/tiny-cpu.toml --data $(TRAIN_DATA) --out runs/tiny-cpu

train-3d: $(TRAIN_DATA)/dataset.json  ## 8 CPU processes: 2 pipeline stages x 2 tensor ranks x 2 replicas
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 8 -m tokpipe train recipes/tiny-3d-cpu.toml --data $(TRAIN_DATA)

bench-train: $(VENV)/.dev  ## the trainer's loop beside a bare PyTorch loop: tokens/s and their ratio
	$(BIN)/python scripts/bench_train.py

bench-memory: $(VENV)/.base  ## build a generated 4 GB file and show the peak memory of every process
	$(BIN)/python scripts/bench_memory.py demo/bench-memory --gigabytes 4

cluster-build:  ## submit a Slurm job that builds CORPUS into OUT on many nodes
	@test -n "$(CORPUS)" || { echo "give the text: make cluster-build CORPUS=/shared/raw OUT=/shared/data" >&2; exit 2; }
	@test -x $(BIN)/tokpipe || { echo "no $(BIN)/tokpipe: run make venv first, or give VENV=path" >&2; exit 2; }
	CORPUS="$(CORPUS)" OUT="$(OUT)" OPTIONS="$(OPTIONS)" TOKPIPE="$(abspath $(BIN))/tokpipe" sbatch $(SBATCH) recipes/slurm/build.sbatch

cluster-train:  ## submit a Slurm job that trains RECIPE on DATA with 64 GPUs
	@test -x $(BIN)/torchrun || { echo "no $(BIN)/torchrun: run make venv-dev first, or give VENV=path" >&2; exit 2; }
	DATA="$(DATA)" RUN="$(RUN)" RECIPE="$(RECIPE)" OPTIONS="$(OPTIONS)" PYTHON="$(abspath $(BIN))/python" \
	    sbatch $(SBATCH) recipes/slurm/train-64xh100.sbatch

bench: bench-encode bench-end-to-end bench-train-tokenizer bench-loader bench-train  ## the figures of docs/benchmarks.md, one after another

clean:  ## remove what the targets made, but for .venv
	rm -rf demo runs .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
