# Fresh machine: Python 3.11 or newer and make. `make smoke` tries everything in three minutes, `make tables` runs the main
# job, `make test` the tests, `make test-slow` those that take longest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: tables smoke snapshot test test-slow test-fast slurm lint format docs ship-reader environment oldest oracle wheels \
	image sif package
.DEFAULT_GOAL := tables

tables: environment
	$(BIN)/utaca tables

# Every stage and every table at the smallest scale; its figures mean nothing.
smoke: environment
	$(BIN)/utaca tables --configfile config/runs/smoke.yaml

# Saves what the documents quote of a run beside them, and refills them: make snapshot RUN=quick
RUN ?= quick
snapshot: environment
	$(BIN)/python docs/quote.py --save $(RUN)

# A process a core, each with whole files and one thread.
test: environment
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" -n auto --dist loadfile --no-loadscope-reorder

# What takes long and shares nothing with the others: the pretended GPU, real signals, servers that others wrote.
test-slow: environment
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow -n auto --dist loadfile --no-loadscope-reorder

# The engine alone: block memory, decoding, methods, detector, readers.
test-fast: environment
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/engine -n auto --dist loadfile --no-loadscope-reorder

# The workflow on a Slurm cluster of this machine: root, Debian's slurm-wlm and munge, the extra `slurm`. Ten minutes.
slurm: environment
	UTACA_SLURM=1 OMP_NUM_THREADS=1 $(BIN)/pytest tests/pipeline/test_slurm.py

lint: environment
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/snakefmt --check Snakefile workflow training
	$(BIN)/snakemake --lint
	$(BIN)/snakemake -s training/Snakefile --lint

format: environment
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/snakefmt Snakefile workflow training

# The pages as a site, site/index.html; a link that leads nowhere fails.
docs: environment
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c docs -d .sphinx . site

# Put what training/Snakefile trained in the place of what is shipped.
ship-reader:
	cp results/training/tiny/* data/readers/tiny/

# kvpress, with which the tests compare the methods, wants an older transformers and so lives by itself.
oracle: environment .venv-oracle/installed
	$(BIN)/pytest tests/engine/test_oracle.py

.venv-oracle/installed: tests/oracle.txt
	test -x .venv-oracle/bin/python || $(PYTHON) -m venv .venv-oracle
	.venv-oracle/bin/pip install --disable-pip-version-check -r tests/oracle.txt
	touch $@

# The engine with the oldest versions of its packages that pyproject.toml admits, and without the pipeline's.
oldest: .venv-oldest/installed
	OMP_NUM_THREADS=1 .venv-oldest/bin/pytest tests/engine -n auto --dist loadfile --no-loadscope-reorder

.venv-oldest/installed: tests/oldest.txt
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --disable-pip-version-check --no-compile -r tests/oldest.txt
	touch $@

# The package as a wheel and a source archive, in dist: built, checked, installed elsewhere and asked a question.
package: environment .venv-package/installed
	rm -rf dist
	.venv-package/bin/python -m build
	.venv-package/bin/twine check --strict dist/*
	$(BIN)/pytest tests/pipeline/test_package.py

.venv-package/installed: tests/package.txt
	test -x .venv-package/bin/python || $(PYTHON) -m venv .venv-package
	.venv-package/bin/pip install --disable-pip-version-check -r tests/package.txt
	touch $@

# The lock as wheels, and what builds the package, for a machine without a network: docs/install.md.
wheels:
	$(PYTHON) -m pip wheel --disable-pip-version-check -w wheels -r requirements.lock 'hatchling>=1.26' editables

# The image of the Containerfile, and that image as the file that `snakemake --sdm apptainer` takes: docs/install.md.
BUILDER ?= podman
IMAGE ?= utaca
image:
	$(BUILDER) build -f Containerfile -t $(IMAGE) $(if $(TORCH_INDEX),--build-arg TORCH_INDEX=$(TORCH_INDEX)) .

sif: image
	$(BUILDER) save -o utaca.tar $(IMAGE)
	apptainer build utaca.sif docker-archive:utaca.tar
	rm utaca.tar

environment: $(VENV)/installed

$(VENV)/installed: requirements.lock pyproject.toml
	@# What pip's scripts or Snakemake cannot stand in the path of the environment; a space they can.
	@case "$$PWD" in *[:{}\"\$$\`\\[:cntrl:]]*) echo "utaca cannot be installed here: move the checkout to a path \
	without colon, brace, double quote, dollar sign, backquote, backslash, tab and line end" >&2; exit 1;; esac
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "utaca needs Python 3.11 or newer; name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --no-compile -r requirements.lock
	$(BIN)/pip install --disable-pip-version-check --no-deps -e .
	@# On all cores; pip compiles module by module, the packages' tests too. A template that is no Python is skipped.
	@$(BIN)/python -m compileall -qq -j 0 -x /tests/ $(VENV)/lib || true
	touch $@
