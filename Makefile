# The two commands of README.md: `make a100` and `make test`. Both do their own set-up.

.PHONY: setup a100 test

setup:
	@scripts/setup

a100: setup
	@scripts/try a100

test: setup
	@scripts/test
