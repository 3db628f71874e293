# `make drill` and `make test` do all the set-up that they need.
.PHONY: drill drill-quick drill-ignite test lint format plan-reference sbom set-up clean

PLAN ?= scenarios/reference/drill.toml
WORKERS ?= 3

drill:
	@scripts/set-up run
	@scripts/prepare-containers
	@.venv/bin/firedrill run scenarios/reference/mission.toml --modes sc,ha

drill-quick:
	@scripts/set-up run
	@scripts/prepare-containers
	@.venv/bin/firedrill run $(PLAN)

drill-ignite:
	@scripts/set-up run
	@scripts/prepare-containers
	@scripts/prepare-ignite
	@.venv/bin/firedrill run scenarios/ignite3/drill.toml

test:
	@scripts/set-up dev
	@.venv/bin/python -m pytest --numprocesses $(WORKERS) $(TESTS)

lint:
	@scripts/set-up dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/mypy scripts/sbom.py
	.venv/bin/mypy scripts/track_record.py
	MYPYPATH=examples/own-store .venv/bin/mypy --package pebble
	MYPYPATH=examples/own-checker .venv/bin/mypy --package tally
	MYPYPATH=examples/own-workload .venv/bin/mypy --package ledger
	MYPYPATH=examples/own-fault .venv/bin/mypy --package crashloop

format:
	@scripts/set-up dev
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

plan-reference:
	@scripts/set-up dev
	@.venv/bin/firedrill plan --reference --own >docs/plan.md
	@.venv/bin/firedrill plan --schema --own >docs/plan.schema.json

sbom:
	@scripts/set-up dev
	@.venv/bin/python -m scripts.sbom

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache
