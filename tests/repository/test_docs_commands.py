"""Every command and snippet of README and docs runs unchanged, page by page, or is on the list of exceptions with a reason.

One project is built for all pages, small stand-ins for the quickstart and the data sets that pages speak of, and each page works in a copy
of it. The tutorial starts from nothing, in an empty folder beside a clone.
"""

import bz2
import gzip
import json
import math
import os
import re
import shlex
import shutil
import sys
import types
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_assets.artifacts.index import blend_plan, read_blend_file
from niels_cache_assets.project.registry import Registry, cache_root, load_registry
from niels_cache_runtime.format.layout import FAMILIES, META_NAME
from niels_cache_runtime.megatron import IndexedWriter
from tests.helpers.builds import build_dataset, build_tokenizer, find_duplicates, prepare_corpus
from tests.helpers.corpora import articles, nearly, write_jsonl
from tests.helpers.docs_reader import PAGES, REPOSITORY, SHOWN, Reader, blocks_of, inline_commands, page_name, parses
from tests.helpers.tiny import sentences
from tests.repository.test_examples_runtime import quickstart  # noqa: F401  the fixture

pytestmark = pytest.mark.usefixtures("no_drawing")

README = "README.md"

# By page: how a command (or a snippet) begins, and why it is not run. Commands of ours, of make and of Dagster are still parsed.
NOT_RUN: dict[str, dict[str, str]] = {
    README: {
        "make cache": "installs; CI runs it, and tests/cli/test_build_all.py what it calls",
        "make test": "this is it",
        "pip install": "installs from wherever the repository is; tests/product/test_wheel.py",
        "niels-cache init PATH": "whatever the reader has; tests/cli/test_init.py, and the tutorial",
        "niels-cache build-all": "the quickstart: CI runs it; what init wrote: in the tutorial",
        "niels-cache sample my_text": "the same",
    },
    "CONTRIBUTING.md": {
        "make test": "this is it",
        "make lint": "CI runs it",
    },
    "docs/release.md": {
        "gpg --verify": "a signature of the maintainers",
        "sha256sum --check": "files of a release",
        "echo": "the same",
        "pip install": "the same",
    },
    "docs/cleaning.md": {
        "dagster asset materialize": "tests/defs/test_corpus.py runs these assets",
        "niels-cache build-all": "everything there is; tests/defs/test_corpus.py",
    },
    "docs/classifiers.md": {
        "niels-cache classifier": "documents of the reader; tests/cleaning/test_classifier.py",
    },
    "docs/cluster.md": {
        "niels-cache status --watch": "tests/parts/test_watch.py",
        "niels-cache part": "a data set in parts; tests/cli/test_worker.py, tests/artifacts/test_range_jobs.py",
        "niels-cache build-all --only web": "the same",
        "sbatch": "Slurm's own",
        "touch": "a part that is being built; tests/parts/test_attempts.py",
        "storage:": "a Postgres server; tests/cluster",
        "run_monitoring:": "settings of Dagster; tests/cluster/test_engines.py",
    },
    "docs/code.md": {
        'loader = TokenLoader("cache/pretrain/code"': "the data set of the table above; tests/build_cache/test_fim_copies.py",
    },
    "docs/cookbook.md": {
        "niels-cache build-all": "what a recipe names; tests of the sources build each kind",
        "tail": "a crawl; tests/sources/test_warc.py cuts records at their offsets",
    },
    "docs/determinism.md": {
        "niels-cache build-all": "tests/build_cache/test_determinism.py runs the recipe on a small data set",
        "diff": "the same",
    },
    "docs/erase.md": {
        "niels-cache erase": "a document of the reader; tests/erasure",
    },
    "docs/exports.md": {
        "from olmo_core.data import": "OLMo-core's own; tests/exchange/test_olmo.py runs the lines that the command prints",
    },
    "docs/howto.md": {
        "niels-cache diff": "two builds; tests/inspection/test_differences.py",
        "niels-cache part web --add": "a data set of the hub; tests/parts/test_add.py",
        "niels-cache build-all --only web": "the same",
        "dagster asset materialize": "tests/faults/test_materialize.py",
        "niels-cache verify --against-dagster": "the stand-ins were not built through Dagster; tests/cli/test_verify.py",
    },
    "docs/megatron.md": {
        "niels-cache prebuild-index mix": "ten million samples; tests/artifacts/test_index.py",
        "niels-cache prebuild-index --blend": "the same",
        "torchrun": "Megatron-LM's own, on eight GPUs",
        "from megatron.training import": "Megatron-LM's own; below it is run with what stands for it",
    },
    "docs/remote.md": {
        "pip install": "installs; tests/product/test_wheel.py",
        "niels-cache push": "a bucket; tests/publish/test_push.py",
        "niels-cache pull": "the same; tests/publish/test_pull.py",
        "niels-cache verify": "the same",
        "import os": "a bucket; tests/remote/test_copy.py",
        "torchrun": "two machines; tests/remote/test_walks.py runs ranks on one",
    },
    "docs/tutorial.md": {
        "make .venv/.installed": "installs",
        ". .venv/bin/activate": "for the reader's shell",
        "niels-cache ui": "a server; tests/defs/ui",
    },
    "docs/ui.md": {
        "niels-cache ui": "a server; tests/defs/ui",
        "# src/my_project/": "files of a project of dg; tests/defs/test_component.py makes them",
    },
    "docs/why.md": {
        "python benchmarks/peers.py": "other projects' environments; tests/repository/test_benchmarks.py runs it without them",
    },
}
# By page: how a snippet begins that needs an optional package, and the package. It is not run where that is not installed.
NEEDS: dict[str, dict[str, str]] = {
    "docs/megatron.md": {"python examples/megatron_core_indices.py": "megatron"},
    "docs/recipes.md": {"import lightning": "lightning", "from accelerate": "accelerate"},
}
# Names that stand for the reader's own.
NAMES = {"NAME": "wikipedia", "my_corpus": "wikipedia"}

CONFIG = """
[tokenizer]
model = "cache/quickstart/tokenizer/spm.model"

[build]
threads = 1

[dagster]
plots = false

[cleaning]
skip = ["not_english", "language_error"]

[pretrain.fineweb_edu]
files = ["fineweb.jsonl"]
train_tokens = 8_000
val_tokens = 500

[pretrain.wikitext]
source = "jsonl"
files = ["wikitext.jsonl"]

[pretrain.wikipedia]
source = "jsonl"
enabled = true
files = ["articles.jsonl.gz"]
prepare = ["clean", "dedup"]

[pretrain.books]
source = "text"
files = ["books/*.txt"]
sample_by = "line"

[pretrain.notes]
source = "jsonl"
files = ["wikitext.jsonl"]

[pretrain.dumps]
source = "jsonl"
files = ["wikitext.jsonl"]

[sft.my_chats]
source = "chat_jsonl"
files = ["chats.jsonl"]

[sft.my_pairs]
source = "chat_jsonl"
kind = "preference"
files = ["pairs.jsonl"]
"""


@pytest.fixture(scope="module")
def prepared(quickstart: Path, tiny_model: Path) -> Path:  # noqa: F811
    """A folder of a reader who has done everything that pages assume."""
    folder = quickstart
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    shutil.copy(tiny_model.parent / META_NAME, folder / "cache/quickstart/tokenizer")
    (folder / "other.model").write_bytes(tiny_model.read_bytes() + b"\x78\x01")  # with a field that SentencePiece does not know
    write_texts(folder)
    (folder / "niels_cache.toml").write_text(CONFIG, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        without_settings(patch)
        patch.chdir(folder)
        registry = load_registry()
        build(registry, cache_root(registry))
    return folder


@pytest.fixture
def project(prepared: Path, tmp_path: Path) -> Path:
    """A copy of it, for one page."""
    shutil.copytree(prepared, tmp_path / "project", symlinks=True)
    return tmp_path / "project"


@pytest.fixture(autouse=True)
def _forget_accelerator() -> Iterator[None]:
    """Accelerate keeps its state in the process and in its environment."""
    before = dict(os.environ)
    yield
    if "accelerate" in sys.modules:
        state = sys.modules["accelerate.state"]
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
        os.environ.clear()
        os.environ.update(before)


def write_texts(folder: Path) -> None:
    texts = articles(120, seed=1)
    write_jsonl(folder / "fineweb.jsonl", texts[:40])
    write_jsonl(folder / "wikitext.jsonl", texts[40:70])
    rows = [*texts[70:], texts[70], nearly(texts[71]), "Too short.", "* one\n* two\n* three " * 30]
    lines = "".join(json.dumps({"id": str(row), "text": text}) + "\n" for row, text in enumerate(rows))
    (folder / "articles.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    pages = "".join(
        f"<page><title>T{row}</title><ns>0</ns><id>{row}</id><revision><text>{text}</text></revision></page>"
        for row, text in enumerate(texts[:5])
    )
    (folder / "dump.xml.bz2").write_bytes(
        bz2.compress(f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">{pages}</mediawiki>'.encode())
    )
    (folder / "books").mkdir()
    for number in range(3):
        (folder / "books" / f"{number}.txt").write_text("\n".join(sentences(40, seed=number)), encoding="utf-8")
    chats = ([{"role": "user", "content": asked}, {"role": "assistant", "content": asked[::-1]}] for asked in sentences(20, seed=9))
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats), encoding="utf-8")
    pairs = ({"prompt": asked, "chosen": asked[::-1], "rejected": "No."} for asked in sentences(20, seed=8))
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    (folder / "data").mkdir()
    with IndexedWriter(folder / "data" / "pile_text_document") as writer:
        for text in texts[:10]:
            writer.add_document([*text.encode(), 50256])


def build(registry: Registry, root: Path) -> None:
    build_tokenizer(registry, root=root)
    for name in registry.prepared():
        prepare_corpus(registry, name, root=root, processes=1)
    find_duplicates(registry, root=root)
    for family in FAMILIES:
        for name in registry.datasets(family):
            if registry.source(name).missing_setting() is None:
                build_dataset(registry, name, root=root)


def without_settings(patch: pytest.MonkeyPatch) -> None:
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT", "HF_TOKEN"):
        patch.delenv(variable, raising=False)
    patch.setenv("COLUMNS", "140")


def reader_of(page: str, folder: Path, patch: pytest.MonkeyPatch) -> Reader:
    without_settings(patch)
    patch.setenv("DAGSTER_HOME", str(folder / ".dagster"))
    patch.chdir(folder)
    missing = {start: f"needs {package}" for start, package in NEEDS.get(page, {}).items() if find_spec(package) is None}
    return Reader(folder=folder, setenv=patch.setenv, not_run=NOT_RUN.get(page, {}) | missing, names=NAMES)


def read(page: str, reader: Reader) -> None:
    """Run all blocks in order. Entries of the list that are not on the page are removed from the list."""
    for block in blocks_of(REPOSITORY / page):
        reader.read(block)
    assert reader.used == set(reader.not_run), "on the list, and not on the page"


WITH_BLOCKS = [page_name(path) for path in PAGES if any(block.language not in SHOWN for block in blocks_of(path))]
TUTORIAL = "docs/tutorial.md"
HOWTO = "docs/howto.md"  # as many builds as all other pages
OTHERS = [page for page in WITH_BLOCKS if page not in (README, TUTORIAL, HOWTO)]


@pytest.mark.parametrize("page", [*OTHERS, pytest.param(HOWTO, marks=pytest.mark.walk)])
def test_what_a_page_shows_runs(page: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(page, reader_of(page, project, monkeypatch))


@pytest.mark.walk
def test_the_tutorial_leads_from_an_empty_folder_to_a_model_that_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = tmp_path / "niels-cache"
    clone.symlink_to(REPOSITORY)
    reader = reader_of(TUTORIAL, clone, monkeypatch)
    monkeypatch.delenv("DAGSTER_HOME")
    read(TUTORIAL, reader)
    printed = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"^step +\d+  loss (\d+\.\d+)", printed, re.MULTILINE)]
    assert losses[0] > 7 > 6.5 > losses[-1]
    assert "resumed after step 40" in printed
    assert re.search(r"^0-128 +\d+ .*\.txt#0", printed, re.MULTILINE), "the trace names a file"
    assert printed.count("def __init__(self") > 0
    assert (tmp_path / "my-model" / ".dagster").is_dir()
    assert not (REPOSITORY.parent / "my-model").exists()


def test_the_readme_runs_and_its_loop_learns(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    read(README, reader_of(README, project, monkeypatch))
    printed = re.search(r"^loss (\d+\.\d+); a uniform guess scores (\d+\.\d+)$", capsys.readouterr().out, re.MULTILINE)
    assert printed is not None
    assert float(printed[1]) < 6.5
    assert printed[2] == f"{math.log(4000):.2f}"


@pytest.mark.parametrize("page", [page_name(path) for path in PAGES if path.stem != "mistakes"])  # what is typed there is wrong
def test_commands_in_running_text_are_commands(page: str) -> None:
    for command in inline_commands(REPOSITORY / page):
        parses(shlex.split(command.replace("COMMAND", "status")))


def test_pages_have_commands_in_running_text() -> None:
    assert sum(len(inline_commands(path)) for path in PAGES) > 20


def test_the_blend_of_the_page_about_megatron_and_its_file_are_the_same(tmp_path: Path) -> None:
    blocks = blocks_of(REPOSITORY / "docs/megatron.md")
    (table,) = [block.text for block in blocks if block.language == "toml"]
    (text,) = [block.text for block in blocks if block.text.startswith("70 ")]
    (tmp_path / "niels_cache.toml").write_text(table, encoding="utf-8")
    (tmp_path / "blend.txt").write_text(text, encoding="utf-8")
    registry = load_registry(profile="default", config=str(tmp_path / "niels_cache.toml"))
    plan = blend_plan(registry, "mix", root=tmp_path)
    paths, weights = read_blend_file(tmp_path / "blend.txt")
    assert weights is not None
    assert tuple(weights) == plan.weights
    assert [Path(path).name.removesuffix("_text_document") for path in paths] == list(plan.labels)


@pytest.mark.parametrize("eval_iters", [2, 0])
def test_the_provider_of_the_page_about_megatron_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eval_iters: int) -> None:
    """With what Megatron-LM's training loop gives to it and takes from it: no sampler of its takes a data set of no samples."""
    [text] = [block.text for block in blocks_of(REPOSITORY / "docs/megatron.md") if "get_args" in block.text]
    for name in ("fineweb_edu", "wikitext"):
        lengths = torch.randint(1, 90, (200,), generator=torch.Generator().manual_seed(len(name))).tolist()
        with IndexedWriter(tmp_path / "data" / f"{name}_text_document") as writer:
            for length in lengths:
                writer.add_document(np.full(length, len(name), dtype=np.uint16))
    training: Any = types.ModuleType("megatron.training")
    arguments = SimpleNamespace(seq_length=16, seed=1234, train_iters=20, global_batch_size=4, eval_interval=10, eval_iters=eval_iters)
    training.get_args = lambda: arguments
    monkeypatch.setitem(sys.modules, "megatron.training", training)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    assert text.count('"/shared/cache/index"') == 1
    exec(text.replace("/shared/cache/index", str(tmp_path / "index")), scope)
    asked = [20 * 4, (20 // 10 + 1) * eval_iters * 4, eval_iters * 4]  # get_train_valid_test_num_samples
    train, valid, test = scope["train_valid_test_datasets_provider"](asked)
    assert 80 <= len(train) <= 82
    assert train[79]["tokens"].shape == (16,)
    assert test is None
    if eval_iters:
        assert 24 <= len(valid) <= 26
    else:
        assert valid is None
