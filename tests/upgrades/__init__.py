"""Files that earlier versions wrote: `python -m tests.upgrades.make VERSION` makes them, and tests/test_upgrades.py opens them."""
