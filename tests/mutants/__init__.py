"""The mutation check (`make mutants`, docs/reliability.md). It checks whether tests notice broken lines of the packages."""
