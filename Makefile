# Two commands: `make run` and `make test`. Each makes .venv, installs what is missing and does its job.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# Two more than there are cores: tests of flows and of parties wait for servers and for processes they start.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(2 + len(os.sched_getaffinity(0)))')
export PATH := $(BIN):$(PATH)

.PHONY: run test quick crash fuzz lint docs install constraints ui deploy-local clean

run: $(VENV)/installed
	@terrine run

# Tests start hundreds of Python processes: where bytecode is not kept, each would compile the project anew.
test: $(VENV)/installed lint
	@OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Within a minute, the tests nearest to what is not committed yet (else to the last commit; BASE=main: to all since).
quick: $(VENV)/installed
	@OMP_NUM_THREADS=1 python -m tests.quick $(if $(BASE),--base $(BASE))

# Not part of the tests: all of it takes a night. PARTS="disks power" TIMES=3 makes it shorter; what was stopped goes on
# where it was if KEPT named a folder.
PARTS ?= runs transcriptions parties disks power together
crash: $(VENV)/installed
	@for part in $(PARTS); do python -m benchmarks.crash $$part $(if $(TIMES),--times $(TIMES)) \
		$(if $(KEPT),--kept $(KEPT)) || exit 1; done

# Ten thousand inputs for each door; half an hour. Not a part of `make test`.
fuzz: $(VENV)/installed
	@OMP_NUM_THREADS=1 python -W ignore -m benchmarks.fuzz

lint: $(VENV)/installed
	@ruff check .
	@ruff format --check .
	@lint-imports --no-cache > $(VENV)/lint-imports.log || (cat $(VENV)/lint-imports.log; exit 1)
	@mypy -p terrine -p tasks

# The site, in build/site/: each link and anchor must lead somewhere. It opens from the folder, without a network.
docs: $(VENV)/installed
	@NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict

install: $(VENV)/installed

# The stamp is younger than pyproject.toml exactly when what it asks for is installed.
$(VENV)/installed: pyproject.toml
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --upgrade pip
	@echo "Installing into $(VENV): a few minutes the first time."
	@$(VENV)/bin/python -m pip install --quiet $(if $(LOCKED),-c constraints.txt) -e '.[dev]'
	@touch $@

# The versions that are installed here, for `make install LOCKED=1`; +cpu and the like name a build, which each machine has its own of.
constraints: $(VENV)/installed
	@(echo "# make constraints: what the tests were run with"; pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//') > constraints.txt

ui: $(VENV)/installed
	@terrine compare --ui

deploy-local: $(VENV)/installed
	@bash deploy/local.sh

clean:
	rm -rf $(VENV) build *.egg-info
