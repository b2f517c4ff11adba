"""Draws the picture of `niels-cache trace` in README: what the command prints for the caches of `make cache`.

make cache && python -m docs.trace_picture
"""

import io
import os
import shlex
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

import torch
from PIL import Image
from rich.console import Console
from rich.text import Text

from niels_cache_runtime import TokenLoader
from tests.helpers.ui.browser import browser_page

ROOT = Path(__file__).resolve().parents[1]
CACHE = "cache/quickstart/pretrain/python_docs/train"
COMMAND = "niels-cache trace --state checkpoint.pt --step 44 --row 7"
COLUMNS = 100
COLOURS = 64  # in the picture
PAGE = """<style>
body {{ margin: 0; background: #0d1117; width: max-content }}
pre {{ margin: 0; padding: 22px 26px; color: #d6dde5; font: 25px/1.35 "DejaVu Sans Mono", monospace }}
</style><pre><span style="color: #7ee787">$</span> <b>{command}</b>\n{output}</pre>"""


def save_checkpoint(path: Path) -> None:
    """Save the state of a loader after fifty batches: the loader of the training loop in README."""
    loader = TokenLoader(CACHE, T=64, B=16, seed=0)
    for _ in islice(loader, 50):
        pass
    torch.save({"loader": loader.state_dict()}, path)


def printed_by_command(checkpoint: Path) -> str:
    """Return what the command prints, as HTML with colours."""
    words = shlex.split(COMMAND.replace("checkpoint.pt", shlex.quote(str(checkpoint))))[1:]
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    done = subprocess.run(
        [sys.executable, "-m", "niels_cache_assets.cli", *words], env=environment, check=True, capture_output=True, text=True
    )
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    console.print(Text.from_ansi(done.stdout.strip()))
    return console.export_html(inline_styles=True, code_format="{code}")


def main(target: Path) -> None:
    """Draw trace.png into the folder `target`."""
    os.chdir(ROOT)
    if not Path(CACHE).exists():
        sys.exit(f"{CACHE} is missing: run `make cache` first")
    with tempfile.TemporaryDirectory() as folder, browser_page(width=2400) as page:
        save_checkpoint(Path(folder) / "checkpoint.pt")
        page.set_content(PAGE.format(command=COMMAND, output=printed_by_command(Path(folder) / "checkpoint.pt")))
        shown = page.locator("pre").screenshot()
    with Image.open(io.BytesIO(shown)) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target / "trace.png", optimize=True)


if __name__ == "__main__":
    main(Path(__file__).parent / "images")
