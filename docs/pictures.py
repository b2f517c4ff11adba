"""The pictures of README and docs/: screenshots of the Dagster UI, and the drawings of docs/runtime.md and of data sets in parts.

    make pictures                     takes two minutes, in a temporary folder, without network
    python -m docs.pictures web_ui    only the named pictures of the UI

The screenshots are taken in the system's Chromium, by the steps of tests/helpers/ui. They show the quickstart profile, with the pages of
docs/ as a user's notes. The picture of a notebook also needs nbconvert and ipykernel.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator

from docs import chat_picture, parts_picture, rooms_picture, runtime_pictures, trace_picture, watch_picture
from tests.helpers.dagster_tools import Project
from tests.helpers.ui.browser import browser_page
from tests.helpers.ui.person import Person
from tests.helpers.ui.running import running_ui

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
MARGIN = 12  # pixels around what is shown
COLOURS = 128  # of a picture of a page: it stays sharp, and becomes a third of its size
TRAIN, META = "pretrain/train_shards", "pretrain/meta_json"

CONFIG = f"""
[build]
cache_dir = "cache"
[pretrain.python_docs]
prepare = ["clean", "dedup"]
cleaning = {{ min_characters = 40, min_words = 6, skip = ["no_stopwords", "not_english", "repetitive"] }}
decontaminate = "off"
[pretrain.my_notes]
source = "markdown_folder"
path = "{DOCS}"
prepare = ["clean", "dedup"]
[blend.mix]
weights = {{ python_docs = 0.8, my_notes = 0.2 }}
sequence_length = 512
num_samples = 1_500
[reports]
batch_size = 16
[dagster]
plots = true
"""
CELLS = [
    'from niels_cache_runtime import open_cache\n\ncache = open_cache("cache/quickstart")\ncache',
    "cache.pretrain.python_docs.train",
    "loader = cache.pretrain.python_docs.train.loader(T=128, B=16, seed=0)\nloader",
    "next(iter(loader))",
    "loader.report(1_000)",
]
CHANGED = """
[pretrain.my_letters]
source = "jsonl"
files = ["notes.jsonl"]
[cleaning]
min_words = 20
"""


def save(png: bytes, name: str) -> None:
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


def take(shown: Locator, name: str) -> None:
    save(shown.screenshot(), name)


def graph(person: Person, name: str) -> None:
    """Take a picture of all open groups, without anything around them."""
    person.page.wait_for_timeout(2_000)  # the layout moves into place
    groups = person.page.locator("foreignObject.group")
    boxes = groups.evaluate_all("groups => groups.map(group => group.getBoundingClientRect().toJSON())")
    left, top = (min(box[side] for box in boxes) - MARGIN for side in ("left", "top"))
    right, bottom = (max(box[side] for box in boxes) + MARGIN for side in ("right", "bottom"))
    save(person.page.screenshot(clip={"x": left, "y": top, "width": right - left, "height": bottom - top}), name)


def niels_cache(project: Project, home: Path, *words: str) -> None:
    settings = {"DAGSTER_HOME": str(home), "NIELS_CACHE_CONFIG": str(project.folder / "niels_cache.toml"), "PYTHONPATH": str(DOCS.parent)}
    command = [sys.executable, "-m", "niels_cache_assets.cli", *words, "--profile", "quickstart"]
    subprocess.run(command, env={**os.environ, **settings}, cwd=project.folder, check=True)


def asset_graph(person: Person) -> None:
    """Take a picture of the map of groups, because the open graph takes several screens."""
    person.page.set_viewport_size({"width": 1800, "height": 900})
    person.open_groups()
    graph(person, "asset_graph")


def web_ui(person: Person) -> None:
    """Take a picture of the whole window with a folded menu, for README."""
    person.open_graph('group:"pretrain" or key:"tokenizer"')
    person.press("Hide navigation")
    person.page.set_viewport_size({"width": 1240, "height": 590})
    person.page.reload()  # the graph fits into the window again
    person.see("train_shards")
    person.page.mouse.move(5, 5)  # nothing is highlighted
    person.page.wait_for_timeout(2_000)  # the layout moves into place
    save(person.page.screenshot(), "web_ui")


def corpus_graph(person: Person) -> None:
    person.page.set_viewport_size({"width": 2400, "height": 1800})
    person.open_graph('group:"corpus" or group:"pretrain"')
    graph(person, "corpus_graph")


def materialization(person: Person) -> None:
    person.page.set_viewport_size({"width": 1300, "height": 1500})
    person.open_partition(META, "python_docs")
    person.show("plots")
    take(person.dialog(), "materialization")


def asset_page(person: Person) -> None:
    """Take a picture of a whole page, with the table of all data sets and the links to their tables."""
    person.page.set_viewport_size({"width": 1600, "height": 880})
    person.open(f"assets/{META}", view="overview")
    person.see("built_utc")
    save(person.page.screenshot(), "asset_page")


def launchpad(person: Person) -> None:
    person.page.set_viewport_size({"width": 1300, "height": 900})
    person.open_launchpad(TRAIN, "python_docs")
    person.configure("ops:\n  stream_pretrain_dataset:\n    config:\n      train_tokens: 200_000\n      val_tokens: 10_000\n")
    person.page.wait_for_timeout(3_000)  # it is checked
    take(person.dialog(), "launchpad")


def in_sync(person: Person) -> None:
    """Take a picture of the page after a change of the file."""
    with open(person.ui.project.folder / "niels_cache.toml", "a", encoding="utf-8") as config:
        config.write(CHANGED)
    person.reload_definitions()
    person.watch(person.execute_check(META, "caches_in_sync"))
    person.open_check(META, "caches_in_sync")
    take(person.entry("states"), "in_sync")


def report(person: Person) -> None:
    """Take a picture of the page that `niels-cache report` has written."""
    person.page.set_viewport_size({"width": 1280, "height": 1300})
    person.page.goto((person.ui.project.folder / "report.html").as_uri())
    save(person.page.screenshot(), "report")


def notebook(person: Person) -> None:
    """Take a picture of the notebook of docs/runtime.md, which nbconvert has run."""
    if not find_spec("nbconvert") or not find_spec("ipykernel"):
        print("notebook.png stays as it is; it needs `pip install nbconvert ipykernel`")
        return
    fields = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells = [{**fields, "id": f"cell-{number}", "source": source} for number, source in enumerate(CELLS)]
    path = person.ui.project.folder / "notebook.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "html", "--execute", str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(DOCS.parent), os.environ.get("PYTHONPATH", "")])},
        cwd=path.parent,
        check=True,
    )
    person.page.set_viewport_size({"width": 960, "height": 800})
    person.page.goto(path.with_suffix(".html").as_uri())
    take(person.page.locator("main"), "notebook")


PICTURES: tuple[Callable[[Person], None], ...] = (
    asset_graph,
    corpus_graph,
    asset_page,
    materialization,
    launchpad,
    report,
    notebook,
    in_sync,
)


def main(names: list[str]) -> None:
    """Take all pictures, or only those of the UI with these names."""
    if not names:
        runtime_pictures.main(IMAGES)
        chat_picture.main(IMAGES)
        parts_picture.main(IMAGES)
        rooms_picture.main(IMAGES)
        trace_picture.main(IMAGES)
        watch_picture.main(IMAGES)
    folder = Path(tempfile.gettempdir()) / "niels"  # pictures show it, so it is the same each time
    if folder.exists():
        sys.exit(f"{folder} is there already: another run makes pictures, or one was killed; then remove it")
    folder.mkdir()
    try:
        project = Project(folder / "my-model", folder / "none.model")
        (project.folder / "niels_cache.toml").write_text(CONFIG, encoding="utf-8")
        niels_cache(project, folder / "home", "build-all")
        niels_cache(project, folder / "home", "report", "--out", str(project.folder / "report.html"))
        with running_ui(folder, folder / "none.model", project=project) as ui:
            if not names or "web_ui" in names:
                with browser_page() as page:
                    web_ui(Person(page, ui))
            with browser_page() as page:
                for picture in PICTURES:
                    if not names or picture.__name__ in names:
                        picture(Person(page, ui))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
