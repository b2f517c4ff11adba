"""Fixtures that more than one file of tests needs."""

import gc
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from niels_cache_assets.tokenizer import engines
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_assets.tokenizer.proof import torture_texts
from tests.helpers import depth  # noqa: F401  (it sets the profile of Hypothesis)
from tests.helpers.hub_repositories import hub_repositories
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.tiny import train_tiny_tokenizer

TESTS = Path(__file__).parent

pytest_plugins = [
    "tests.helpers.built_project",
    "tests.helpers.chat_models",
    "tests.helpers.copied_caches",
    "tests.golden",
    "tests.helpers.left_out",
    "tests.helpers.remote_caches",
    "tests.helpers.workers",
]

gc.set_threshold(50_000)  # with 700, looking for garbage takes a twentieth of the time of tests
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it, and so do its children


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained 400-piece SentencePiece model with the four special tokens."""
    return train_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(str(tiny_model))


@pytest.fixture(scope="module")
def short_proofs() -> Iterator[None]:
    """Prove engines on every 41st of the difficult texts. A whole proof takes two seconds for each model (see tests/test_engines.py)."""
    with pytest.MonkeyPatch.context() as patch:
        # 41, because the texts come in groups of 3 and 8 forms, and all forms must occur
        patch.setattr(engines, "torture_texts", lambda **given: islice(torture_texts(**given), 0, None, 41))
        patch.setattr(engines, "_LOADED", {})  # other files need whole proofs
        patch.setattr(engines, "_RESULTS", {})
        yield


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LoopbackHub]:
    """A hub on 127.0.0.1 with small data sets in place of the default ones. Run the code under test in a child process with `hub.env`."""
    hub = LoopbackHub(hub_repositories(), tmp_path / "hf_home")
    yield hub
    hub.close()


# Files that take more than 12 seconds in `make test`, the longest first.
LONGEST = (
    "ui/test_ui_process.py",
    "test_tokenizer_projects.py",
    "ui/test_ui_browser.py",
    "test_docs_commands.py",
    "test_dagster_launcher.py",
    "test_dagster_turns.py",
    "test_engines.py",
    "test_dagster_parts.py",
    "test_chat_templates.py",
    "test_tokenizer_kinds.py",
    "test_network.py",
    "test_remote_copy.py",
    "ui/test_ui_strangers.py",
    "test_loader_workers.py",
    "test_remote_push.py",
    "test_dagster_corpus.py",
    "test_materialize.py",
    "test_chat_caches.py",
    "test_parts.py",
    "test_lightning.py",
    "faults/test_materialize.py",
    "test_dedup_ranges.py",
    "test_cli.py",
    "test_parts_growth.py",
    "test_worker.py",
    "test_remote_pull.py",
    "faults/test_builds.py",
    "test_dagster_staleness.py",
    "test_parts_sharing.py",
    "test_reports.py",
    "faults/test_hub.py",
    "test_corpus_prepare.py",
    "test_import_rules.py",
    "test_examples_runtime.py",
    "test_corpus_resume.py",
)


# The same for `make torture`, where a file takes minutes.
LONGEST_TORTURE = (
    "faults/test_fuzz_binary.py",
    "faults/test_hub.py",
    "faults/test_parts.py",
    "faults/test_disk.py",
    "faults/test_materialize.py",
    "faults/test_corpus.py",
    "faults/test_builds.py",
    "test_hostile_config.py",
    "faults/test_fuzz_text.py",
    "faults/test_bit_flips.py",
    "test_loader_blocks.py",
    "test_loader_resume.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long files first, then other files with slow tests. `make test` gives whole files to its processes, and a long file at the end
    would run alone.
    """
    chosen: str = config.option.markexpr  # with "not torture", unless long tests are asked for (tests/helpers/left_out.py)
    longest = LONGEST_TORTURE if "torture" in chosen and "not torture" not in chosen else LONGEST
    slow = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("browser")}
    places = {TESTS / name: place for place, name in enumerate(longest)}
    items.sort(key=lambda item: (places.get(item.path, len(places)), item.path not in slow))
