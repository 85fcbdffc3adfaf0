# make audit   sets up and runs the default audit
# make test    sets up and runs the tests
# make lint    checks format, style, and which room imports which
# make docs    builds the documentation, in site/
# make bench   measures speed, ours and that of others, and rewrites the results
# make experiments   runs the slow proofs anew and rewrites their results
# make figures   draws every figure of the paper and ours, and measures what is not there yet

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := setup.cfg pyproject.toml constraints.txt

.PHONY: audit test lint docs bench experiments figures clean

audit: $(VENV)/.audit
	$(BIN)/python -m oneshot.main --config=configs/digits_wb.py --workdir=runs/digits_wb

test: $(VENV)/.test
	$(BIN)/python -m pytest --numprocesses=auto --dist=worksteal

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# One after the other, with nothing else running.
bench: $(VENV)/.bench
	$(BIN)/python -m experiments.bench_step
	$(BIN)/python -m experiments.bench_audit
	$(BIN)/python -m experiments.bench_bounds
	$(BIN)/python -m experiments.bench_memory
	$(BIN)/python -m experiments.bench_checkpoints
	$(BIN)/python -m experiments.scaling

# The last two need CIFAR-10 as TFDS prepares it, at its default place or TFDS_DATA_DIR.
experiments: $(VENV)/.bench
	$(BIN)/python -m experiments.coverage
	$(BIN)/python -m experiments.tightness
	$(BIN)/python -m experiments.picture
	$(BIN)/python -m experiments.default_audit
	$(BIN)/python -m experiments.generic_audit
	$(BIN)/python -m experiments.audit_peers
	$(BIN)/python -m experiments.faults
	$(BIN)/python -m experiments.crash
	$(BIN)/python -m experiments.long_run
	$(BIN)/python -m experiments.cifar_wb_cpu
	$(BIN)/python -m experiments.cifar_tight

# Those that train need CIFAR-10, too; without it, a sentence says so, and the others are drawn.
figures: $(VENV)/.audit
	$(BIN)/python -m experiments.figures

# A stamp for each set of extras: nothing is installed twice.
$(VENV)/.audit: EXTRAS := run
$(VENV)/.test: EXTRAS := test
$(VENV)/.docs: EXTRAS := docs
$(VENV)/.bench: EXTRAS := bench

$(VENV)/.audit $(VENV)/.test $(VENV)/.docs $(VENV)/.bench: $(VENV)/bin/python $(SETUP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'oneshot needs Python 3.11 or newer: make PYTHON=python3.11 ...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) site *.egg-info
