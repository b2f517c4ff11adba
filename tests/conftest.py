"""Fixtures that more than one file of tests needs."""

import gc
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from markupsafe import Markup

import tests.helpers.workers  # noqa: F401  # isort: skip  # it starts a server beside the imports below
from niels_cache_assets.tokenizer import engines
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_assets.tokenizer.proof import difficult_texts
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
    "tests.helpers.longest_walks",
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


@pytest.fixture(scope="session", autouse=True)
def user_record() -> Iterator[Callable[[], Path | None]]:
    """Let no test read or write the user's record of proofs. The value is the function that returns its path."""
    found = engines._user_record
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "_user_record", lambda: None)
        yield found


@pytest.fixture(scope="module")
def short_proofs() -> Iterator[None]:
    """Prove engines on every 41st of the difficult texts. A whole proof takes two seconds for each model (see
    tests/tokenizer/test_engines.py).
    """
    with pytest.MonkeyPatch.context() as patch:
        # 41, because the texts come in groups of 3 and 8 forms, and all forms must occur
        patch.setattr(engines, "difficult_texts", lambda **given: islice(difficult_texts(**given), 0, None, 41))
        patch.setattr(engines, "_LOADED", {})  # other files need whole proofs
        patch.setattr(engines, "_REJECTED", {})
        yield


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pages have the titles of pictures only. matplotlib takes 10 to 60 ms for a picture; tests/reports and tests/pages draw them."""
    monkeypatch.setattr("niels_cache_pages.page.as_svg", lambda picture, of: Markup("<svg>{}: {}</svg>").format(of, picture.title))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LoopbackHub]:
    """A hub on 127.0.0.1 with small data sets in place of the default ones. Run the code under test in a child process with `hub.env`."""
    hub = LoopbackHub(hub_repositories(), tmp_path / "hf_home")
    yield hub
    hub.close()


# Files that take more than 9 seconds in `make test`, the longest first.
LONGEST = (
    "defs/ui/test_process.py",
    "defs/ui/test_browser.py",
    "repository/test_docs_commands.py",
    "parts/test_parts.py",
    "defs/test_parts.py",
    "defs/test_stream_slots.py",
    "product/test_tokenizer_projects.py",
    "parts/test_store_build.py",
    "test_acceptance.py",
    "defs/test_launcher.py",
    "faults/test_materialize.py",
    "sources/test_retries.py",
    "cli/test_worker.py",
    "defs/test_found.py",
    "tokenizer/test_hub.py",
    "remote/test_copy_hostile.py",
    "faults/test_disk.py",
    "parts/test_growth.py",
    "publish/test_push.py",
    "cli/test_build_all.py",
    "loader/test_lightning.py",
    "chats/test_templates.py",
    "tokenizer/test_engines.py",
    "defs/test_corpus.py",
    "remote/test_copy.py",
    "remote/test_copy_faults.py",
    "defs/ui/test_strangers.py",
    "faults/test_builds.py",
    "product/test_no_text_outside.py",
    "parts/test_free_parts.py",
    "defs/test_staleness.py",
    "corpus/test_prepare.py",
    "artifacts/test_forecast.py",
    "corpus/test_resume.py",
    "faults/test_hub.py",
    "remote/test_ahead.py",
    "test_upgrades.py",
    "loader/test_workers.py",
    "parts/test_store_attempt.py",
    "faults/test_parts.py",
    "publish/test_pull.py",
    "faults/test_corpus.py",
    "parts/test_exclusion.py",
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
    "product/test_hostile_config.py",
    "faults/test_fuzz_text.py",
    "faults/test_bit_flips.py",
    "loader/test_blocks_on_ranks.py",
    "loader/test_resume.py",
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


def pytest_collection_finish() -> None:
    """Let no search for garbage look at the modules and the tests. Tests of the copy search whenever they wait for a loader to be freed."""
    gc.freeze()
