# The two commands of README.md: `make a100` and `make test`. Both do their own set-up.

.PHONY: setup a100 recipes docs test

setup:
	@scripts/setup

a100: setup
	@scripts/try a100

# Two environments for other kinds of projects. Each downloads about 3 GB.
recipes: setup
	@scripts/try mudiff
	@scripts/try octformer

# The documentation as a site in build/site, warnings as errors.
docs:
	@scripts/setup docs
	@scripts/docs

test:
	@scripts/setup tests
	@scripts/test
