# Set-up, tests, demo and wheels. Needs python3 >= 3.10 and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WHEELHOUSE := build/wheelhouse
DISTRIBUTIONS := core formats/files formats/safetensors plugins/mmap plugins/threaded plugins/runai plugins/gguf plugins/pt loader testkit
# pip before 23.3 resolves the extras of the first requirement only, so core[all] leads.
EDITABLE := -e "./core[all]" $(foreach d,$(filter-out core,$(DISTRIBUTIONS)),-e ./$(d))
# What the wheelhouse has for the extras of single distributions, object storage and the Hub among them.
EXTRAS := weight-readers-runai[s3,gcs] weight-readers-loader[hub,plot]
SOURCES := $(foreach d,$(DISTRIBUTIONS),$(d)/src)

.PHONY: setup demo demo-s3 engines test lint docs pictures bench bench-gguf bench-policy wheels pythons clean

setup: $(READY)

$(READY): constraints.txt requirements-dev.txt requirements-docs.txt $(foreach d,$(DISTRIBUTIONS),$(d)/pyproject.toml)
	@echo "setting up $(VENV) (the first time this installs torch)" >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "python >= 3.10 is needed; set PYTHON=")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(EDITABLE) --requirement requirements-dev.txt --requirement requirements-docs.txt
	@touch $@

demo: $(READY)
	@$(BIN)/python examples/demo/run.py $(REF)

# The same from an S3 server on this machine; nothing leaves it.
demo-s3: $(READY)
	@$(BIN)/python examples/demo/s3.py

# What the tests of vLLM, vLLM-Omni and SGLang run against, which are skipped without: 400 MB below build/engines.
engines: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/engines --requirement requirements-engines.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --upgrade --target build/engines ./examples/engines

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)

# The site, into build/site; a link that leads nowhere is an error. Nothing is fetched.
docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# What the site shows of the command in a terminal, drawn anew.
pictures: $(READY)
	@$(BIN)/python tools/docs_pictures.py

# Side by side with peers; takes minutes and about 5 GiB below build/bench.
bench: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement requirements-bench.txt
	@$(BIN)/python -m benchmarks $(ARGS)

# The GGUF plugin beside gguf-py, libgguf and ggml's C code; takes about ten minutes.
bench-gguf: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement requirements-bench.txt
	@$(BIN)/python -m benchmarks.gguf $(ARGS)

# The automatic choice beside every installed reader and setting; takes 20 minutes and 1 GiB below build/bench.
bench-policy: $(READY)
	@$(BIN)/python -m benchmarks.policy $(ARGS)

# Every wheel that an offline install needs: our distributions and their extras, what they depend on, what the examples
# write files with and what builds a plugin. The extras are asked for by name, of the wheels that the first command made;
# so is everything for the Pythons in ALSO, such as ALSO="python3.10 python3.13": with CUDA's torches 4.4 GB for all four.
ALSO ?=
wheels: PIP = $(BIN)/python -m pip --disable-pip-version-check
wheels: GATHER = wheel --quiet --constraint constraints.txt --wheel-dir $(WHEELHOUSE)
wheels: NAMED = --find-links $(WHEELHOUSE) "weight-readers[all]" weight-readers-testkit $(foreach e,$(EXTRAS),"$(e)") safetensors hatchling
wheels: $(READY)
	@rm -rf $(WHEELHOUSE)
	@$(PIP) $(GATHER) --no-build-isolation "./core[all]" $(foreach d,$(filter-out core,$(DISTRIBUTIONS)),./$(d))
	@for pip in "$(PIP)" $(foreach p,$(ALSO),"$(PIP) --python $(p)"); do $$pip $(GATHER) $(NAMED) || exit 1; done
	@ls $(WHEELHOUSE)

# Installs that wheelhouse, without an index, into a bare environment of each Python that this machine has, one after the
# other: readers are listed, files loaded, core's tests run. Takes half an hour, and 10 GB of disk with CUDA's torches.
pythons: $(READY)
	@$(MAKE) wheels ALSO="$$(PYTHONPATH=tests $(BIN)/python -m support.pythons)"
	$(BIN)/python -m pytest $(ARGS) tests/install/every_python.py

clean:
	rm -rf $(VENV) build
