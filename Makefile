# make run    the main job: a sales analyst that is resumed on the next day (sets up all it needs)
# make test   everything (sets up all it needs)
# make bench  Segue beside hand-written access and other layers, in half an hour (sets up their environments)
# make rivals  the torture kit's comparable tests on other layers
# make torture  the torture kit at its full sizes
# make services  install the database servers that the tests start privately (Debian)
# make check  format, lint, types, imports and the fast tests: under a minute
.PHONY: run test check bench rivals torture setup services format clean

PY := .venv/bin/python
STAMP := .venv/.segue-$(shell cksum pyproject.toml scripts/setup.sh | cksum | cut -d' ' -f1)

run: $(STAMP)
	$(PY) -m examples.sales_analyst

# In CI no test may be left out for want of a server; on your machine nothing is installed unasked.
test: $(STAMP)
	@if [ "$$CI" = true ]; then sh scripts/services.sh; else sh scripts/services.sh --tell; fi
	sh scripts/check.sh
	$(PY) -m pytest -n 2 --dist worksteal

# The log, its contract on SQLite and in memory, runs, views, the world. What builds on them is for `make test`.
LATER := bench broken cli_output cli_surface copy docs example_store formats importers jsonl langgraph \
	mongodb openai_agents plain planted power sales stale torture view_properties world_matrix

check: $(STAMP)
	sh scripts/check.sh
	$(PY) -m pytest -n 2 --dist worksteal -m "not slow and not server" $(LATER:%=--ignore-glob='tests/test_*%*')

# TRANSCRIPTS=folder counts the bytes of real Claude Code transcripts, too
bench: $(STAMP)
	$(PY) -m bench.compare $(if $(TRANSCRIPTS),--transcripts $(TRANSCRIPTS))

rivals: $(STAMP)
	$(PY) -m bench.rivals.run

torture: $(STAMP)
	$(PY) scripts/torture.py

setup: $(STAMP)

services:
	sh scripts/services.sh

$(STAMP): pyproject.toml scripts/setup.sh
	sh scripts/setup.sh .venv
	touch $(STAMP)

format: $(STAMP)
	.venv/bin/ruff check --fix-only --exit-zero .
	.venv/bin/ruff format .

clean:
	rm -rf .venv .venv-rivals .pytest_cache .mypy_cache .ruff_cache .hypothesis
