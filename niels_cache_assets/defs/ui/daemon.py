"""Dagster's daemon as the UI starts it: it makes small files for the runs that it creates (home/run_files.py)."""

from dagster._daemon.cli import main as run_daemon

from niels_cache_assets.defs.home.run_files import small_run_files


def main() -> None:
    """Run the command line of the daemon."""
    with small_run_files():
        run_daemon()


if __name__ == "__main__":
    main()
