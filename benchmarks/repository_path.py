"""Make `tests` importable in benchmarks. Python puts only the folder of the script on its path, here `benchmarks/`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
