"""Draws the pictures of docs/cluster.md: `niels-cache status --watch`, and the table that the UI shows beside the plan.

python -m docs.watch_picture

A small data set is planned and partly built. The leases of its other parts are written as processes on other machines would write them.
"""

import fcntl
import io
import json
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

from docs.trace_picture import PAGE
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.disk.attempts import attempt_record, lease_path
from niels_cache_assets.facts.progress import SpeedEstimate
from niels_cache_assets.parts.lease import DONE, LeaseHolder, latest
from niels_cache_assets.project.registry import load_registry
from niels_cache_runtime.format.commit import LockOwner
from tests.helpers.dagster_tools import Project
from tests.helpers.tiny import sentences
from tests.helpers.ui.browser import browser_page
from tests.helpers.ui.person import Person
from tests.helpers.ui.running import running_ui

COLUMNS, COLOURS = 130, 32
SECONDS = 300  # to wait for a picture
CLEAR = b"\x1b[2J"  # what the command prints before it draws again
PARTS, BUILT, RUNNING = 24, 9, 5
NAME = "web"
CONFIG = f"""
[build]
cache_dir = "cache"
[tokenizer]
vocab_size = 330
[pretrain.{NAME}]
source = "jsonl"
files = ["pages/*.jsonl"]
parts = {PARTS}
val_frac = 0.0
[cluster]
lease_seconds = 600
"""


def planned(project: Project) -> Graph:
    """Return the graph of a data set that is planned, and whose first parts are built."""
    folder = project.folder
    (folder / "pages").mkdir(parents=True)
    for number in range(PARTS):
        lines = [json.dumps({"text": text}) + "\n" for text in sentences(40, seed=number)]
        (folder / f"pages/{number:02d}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "niels_cache.toml").write_text(CONFIG, encoding="utf-8")
    found = graph(load_registry(config=str(folder / "niels_cache.toml")), folder / "cache")
    for key in ("tokenizer", f"plan/{NAME}", *map(part, range(BUILT))):
        materialize(found[key])
        if key.startswith("part/"):
            record(found, int(key[-5:]), share=1.0, ended=DONE)
    return found


def part(number: int) -> str:
    return f"part/{NAME}/part-{number:05d}"


def record(found: Graph, number: int, *, share: float, ended: str | None = None, silent: float = 0.0, attempt: int = 1) -> None:
    """Write the lease of a part that node 1 to 6 builds."""
    target = found[part(number)].directory
    seconds = 1_740 * share
    tokens = round(212_000_000 * share)
    last = latest(target)
    holder = LeaseHolder(
        attempt=last.attempt or attempt,
        writer=LockOwner(
            pid=4_000 + number,
            host=f"node{1 + number % 6}",
            since=datetime.fromtimestamp(time.time() - seconds - silent, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            command=f"niels-cache part {NAME}",
        ),
        token="",
        boot="",
        log=f"/data/logs/niels-cache-{NAME}-4711_{number}.log",
    )
    holder = replace(
        holder,
        earlier_cpu_seconds=(0.0, 1_900.0 * (attempt - 1)),
        seconds=seconds,
        cpu_seconds=seconds * 7.4,
        counts={"documents": tokens // 870, "tokens": tokens},
        share=share,
        speed=SpeedEstimate(tokens / seconds, seconds * (1 - share) / share),
        ended=ended,
    )
    lease_path(target).mkdir(exist_ok=True)
    path = attempt_record(target, holder.attempt)
    path.write_bytes(holder.encoded())
    os.utime(path, (time.time() - silent,) * 2)


def begin_others(found: Graph) -> None:
    """Let five parts run, one fail, and one stop answering."""
    for number, share in enumerate((0.83, 0.61, 0.47, 0.42, 0.08), start=BUILT):
        record(found, number, share=share)
    record(found, BUILT + RUNNING, share=0.37, ended="[Errno 116] Stale file handle: '/data/pages/14.jsonl'", attempt=2)
    record(found, BUILT + RUNNING + 1, share=0.55, silent=1_327.0)


def save(png: bytes, target: Path) -> None:
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)


def draw_terminal(found: Graph, target: Path) -> None:
    """Draw what the command prints on a terminal."""
    words = ["status", "--watch", NAME, "--config", found.registry.origin, "--cache-dir", str(found.root)]
    terminal, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "niels_cache_assets.cli", *words]
    with subprocess.Popen(command, env={**os.environ, "TERM": "xterm-256color"}, stdout=end) as process:
        printed = b""
        while printed.count(CLEAR) < 2 and select.select([terminal], [], [], SECONDS)[0]:
            printed += os.read(terminal, 1 << 16)
        process.kill()
    if printed.count(CLEAR) < 2:
        raise TimeoutError(f"status --watch has not drawn twice; it has printed {printed!r}")
    shown = printed.split(CLEAR)[1].decode().replace("\r", "").replace("\x1b[H", "")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    console.print(Text.from_ansi(shown.strip()))
    output = console.export_html(inline_styles=True, code_format="{code}")
    with browser_page(width=2800) as page:
        page.set_content(PAGE.format(command=f"niels-cache status --watch {NAME}", output=output))
        save(page.locator("pre").screenshot(), target)


def draw_ui(found: Graph, project: Project, target: Path) -> None:
    """Draw the observation of the plan, which the sensor records once a minute."""
    with running_ui(project.folder.parent, project.tokenizer_model, project=project) as ui, browser_page() as page:
        person = Person(page, ui)
        page.set_viewport_size({"width": 1500, "height": 960})
        deadline = time.monotonic() + SECONDS
        while not page.get_by_text("node").count():
            if time.monotonic() > deadline:
                raise TimeoutError("the sensor has not observed the plan")
            begin_others(found)
            person.open("assets/pretrain/plan", view="events")
            page.wait_for_timeout(10_000)
        save(page.screenshot(clip={"x": 560, "y": 170, "width": 930, "height": 790}), target)


def main(images: Path) -> None:
    """Draw watch.png and watch_ui.png into the folder `images`."""
    folder = Path(tempfile.gettempdir()) / "niels"  # pictures show it, so it is the same each time
    folder.mkdir()
    try:
        project = Project(folder / "my-model", folder / "none.model")
        found = planned(project)
        begin_others(found)
        draw_terminal(found, images / "watch.png")
        draw_ui(found, project, images / "watch_ui.png")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(__file__).parent / "images")
