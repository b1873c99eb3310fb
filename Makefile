# `make run` and `make test` create .venv and install missing packages first.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# Two more than the cores, because tests of flows and parties wait for servers and processes.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(2 + len(os.sched_getaffinity(0)))')
export PATH := $(BIN):$(PATH)

.PHONY: run test quick crash fuzz lint docs install constraints ui deploy-local clean

run: $(VENV)/installed
	@terrine run

# Tests start hundreds of Python processes, which would compile the project each time without kept bytecode.
test: $(VENV)/installed lint
	@OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The tests nearest to uncommitted changes, to the last commit, or with BASE=main to all later ones, within a minute.
quick: $(VENV)/installed
	@OMP_NUM_THREADS=1 python -m tests.quick $(if $(BASE),--base $(BASE))

# Not part of the tests: everything takes a night. PARTS="disks power" TIMES=3 is shorter. With KEPT=FOLDER it resumes.
PARTS ?= runs transcriptions parties disks power together
crash: $(VENV)/installed
	@for part in $(PARTS); do python -m benchmarks.crash $$part $(if $(TIMES),--times $(TIMES)) \
		$(if $(KEPT),--kept $(KEPT)) || exit 1; done

# Ten thousand inputs for each entry point in half an hour. Not part of `make test`.
fuzz: $(VENV)/installed
	@OMP_NUM_THREADS=1 python -W ignore -m benchmarks.fuzz

lint: $(VENV)/installed
	@ruff check .
	@ruff format --check .
	@lint-imports --no-cache > $(VENV)/lint-imports.log || (cat $(VENV)/lint-imports.log; exit 1)
	@mypy -p terrine -p tasks

# The site in build/site/, which opens from the folder without a network. Broken links and anchors are errors.
docs: $(VENV)/installed
	@NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict

install: $(VENV)/installed

# The stamp contains the checksum of the pyproject.toml that was installed.
$(VENV)/installed: pyproject.toml
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@if [ "$$(cksum < pyproject.toml)" = "$$(cat $@ 2> /dev/null)" ]; then touch $@; else \
		echo "Installing into $(VENV): a few minutes the first time." && \
		$(VENV)/bin/python -m pip install --quiet --upgrade pip && \
		$(VENV)/bin/python -m pip install --quiet $(if $(LOCKED),-c constraints.txt) -e '.[dev]' && \
		cksum < pyproject.toml > $@; fi

# The installed versions for `make install LOCKED=1`, without local builds such as +cpu.
constraints: $(VENV)/installed
	@(echo "# make constraints: what the tests were run with"; pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//') > constraints.txt

ui: $(VENV)/installed
	@terrine compare --ui

deploy-local: $(VENV)/installed
	@bash deploy/local.sh

clean:
	rm -rf $(VENV) build *.egg-info
