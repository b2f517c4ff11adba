"""The site of the documentation: built without network, no dead link, every page reachable, every public name on an API page, versions."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from docs.site import BUILD, ROOT, add_words_to_search, copy_pages, for_the_site, run_zensical
from docs.versions import publish
from tests.golden.imports import described_names
from tests.helpers.docs_reader import PAGES, page_name

REPOSITORY_URL = "https://example.org/somebody/niels-cache"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make site` builds it, from a copy of the pages: another test may build at the same time."""
    folder = tmp_path_factory.mktemp("site")
    copy_pages(folder / "build/pages", REPOSITORY_URL)
    shutil.copy(ROOT / "mkdocs.yml", folder)  # the paths in it are relative to where it really is
    for name in ("docs", "niels_cache_runtime", "niels_cache_assets"):
        (folder / name).symlink_to(ROOT / name)
    done = run_zensical(BUILD, folder, REPOSITORY_URL)
    assert done.returncode == 0
    add_words_to_search(folder / "build/site")
    return folder / "build/site"


def pages(site: Path) -> dict[str, str]:
    return {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}


def test_every_page_is_on_the_site_and_in_its_menu(site: Path) -> None:
    menu = json.dumps(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)["nav"])
    built = pages(site)
    for name in map(page_name, PAGES):
        address = f"{name.removesuffix('README.md').removesuffix('.md')}/index.html".replace("//", "/").removeprefix("/")
        assert address in built, name
        assert f'"{name}"' in menu, name


def test_nothing_is_loaded_from_another_server(site: Path) -> None:
    for name, text in pages(site).items():
        loaded = re.findall(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?(https?:[^"'\s>]+)""", text)
        assert [address for address in loaded if "canonical" not in address] == [], name


def test_every_described_name_has_its_text_on_an_api_page(site: Path) -> None:
    text = "".join(text for name, text in pages(site).items() if "/api/" in name)
    assert len(described_names()) > 40
    assert [name for name in described_names() if f'id="{name}"' not in text] == []
    assert "mask_cross_document_targets" in re.findall(r"<td[^>]*>\s*<code>([^<]+)</code>", text)  # a row of a table of parameters


def test_search_finds_names_and_words(site: Path) -> None:
    index = (site / "search.json").read_text(encoding="utf-8")
    for word in ("TokenLoader", "shuffle_buffer", "prebuild-index", "resume"):
        assert word in index


def test_links_to_code_lead_to_the_repository_or_are_words_where_its_address_is_unknown() -> None:
    text = "See [the loop](../examples/torch_loop.py#L1), [a page](howto.md#x) and `[code](x.py)`."
    assert f"[the loop]({REPOSITORY_URL}/blob/main/examples/torch_loop.py#L1)" in for_the_site(text, "docs/runtime.md", REPOSITORY_URL)
    assert for_the_site(text, "docs/runtime.md", None) == "See the loop, [a page](howto.md#x) and `[code](x.py)`."
    with pytest.raises(ValueError, match=r"nothing\.py"):
        for_the_site("[gone](../nothing.py)", "docs/runtime.md", None)


def test_versions_stay_beside_each_other_and_latest_is_the_newest_release(tmp_path: Path) -> None:
    published, site = tmp_path / "published", tmp_path / "site"
    published.mkdir()
    site.mkdir()
    for version in ("main", "0.9.0", "0.10.0", "0.2.0"):
        (site / "index.html").write_text(version, encoding="utf-8")
        publish(site, published, version)
    listed = json.loads((published / "versions.json").read_text(encoding="utf-8"))
    assert [each["version"] for each in listed] == ["0.10.0", "0.9.0", "0.2.0", "main"]
    assert [each["version"] for each in listed if each["aliases"] == ["latest"]] == ["0.10.0"]
    assert (published / "latest/index.html").read_text(encoding="utf-8") == "0.10.0"
    assert (published / "main/index.html").read_text(encoding="utf-8") == "main"
