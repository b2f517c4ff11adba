"""The mutation check: are broken lines of the packages noticed by the tests that run them? `make mutants`; docs/reliability.md."""
