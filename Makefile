# `make` or `make help` lists what there is.

CARGO ?= cargo
STATEWAY = $(CARGO) run --locked --release --quiet --package stateway --

.DEFAULT_GOAL := help
.PHONY: help demo test build lint model docs bench fmt setup clean soak

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: build ## install what the lab needs, run the main job on real traffic, show what happened
	@scripts/setup demo
	$(STATEWAY) demo

test: ## install what the tests need and run every check
	@scripts/test

build: ## release build of the one binary
	$(CARGO) build --locked --release --package stateway

lint: ## formatting, clippy, house rules, licences
	@scripts/test format lint tidy licences

model: ## model tests of the lock-free parts
	@scripts/test model

soak: ## simulate gateways with state sync, one seed after the other, until stopped
	$(CARGO) run --locked --package sim -- --from $$(date +%s)000

docs: ## API documentation, with warnings as errors
	@scripts/test docs

BENCH ?= conntrack
bench: build ## one benchmark: make bench BENCH=conntrack
	$(STATEWAY) bench $(BENCH)

fmt: ## format the code and bring the reference tables in docs/ up to date
	$(CARGO) fmt --all
	$(CARGO) xtask drops --write
	$(CARGO) xtask tunables --write
	$(CARGO) xtask nft --write

setup: ## only install what the tests need
	@scripts/setup

clean: ## remove what was built
	$(CARGO) clean
