"""The pages of the search that the UI serves: what they find, how they escape it, and who may ask."""

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest

from niels_cache_assets.defs.ui.guard import WebGuard
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.reports import page_path
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_inspection import web
from niels_cache_inspection.web import SearchPages
from niels_cache_runtime import TokenLoader
from tests.defs.ui.test_guard import HOST, LINK, PORT, SAME_SITE, Answer, Request, answer
from tests.helpers.tiny import sentences
from tests.helpers.traced_root import build_root

PLANTED = "the shared streams of many small windows"
HOSTILE = "<script>alert(1)</script> & such"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Path:
    root, texts = tmp_path_factory.mktemp("searched"), sentences(30)
    texts[4] = texts[9] = f"{texts[4]} {PLANTED}"
    texts[6] = f"{texts[6]} {HOSTILE}"
    build_root(root, tokenizer, texts=texts, answers=[*sentences(20, seed=3), PLANTED])
    page_path(root).parent.mkdir()
    page_path(root).write_text("<p>the report</p>")
    return root


@pytest.fixture(scope="module")
def pages(root: Path, tmp_path_factory: pytest.TempPathFactory) -> SearchPages:
    config = tmp_path_factory.mktemp("config") / "niels_cache.toml"
    config.write_text("[pretrain.notes]\nsource = 'text'\nfiles = ['x.txt']\n")
    registry = load_registry(profile=None, config=str(config))

    def open_caches() -> tuple[Registry, Path]:
        return registry, root

    return SearchPages(open_caches)


def page_of(pages: SearchPages, path: str = "/search", **query: Any) -> str:
    response = pages.answer(path, parse_qs(urlencode(query)))
    assert response.status == 200, response.page
    return response.page


def test_a_text_is_shown_at_its_places_with_the_steps_that_read_it(pages: SearchPages, root: Path, tmp_path: Path) -> None:
    loader = TokenLoader(str(root / "pretrain/notes/train"), T=16, B=2, seed=1)
    for _ in zip(range(60), loader, strict=False):
        pass
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    page = page_of(pages, q=PLANTED, state=str(tmp_path / "state.json"))
    assert "3 places" in page
    assert page.count(f"<mark>{PLANTED}</mark>") == 3
    assert page.count("read at step ") == 2
    assert page.count("no run of these states reads it") == 1
    document = page_of(pages, "/search/document", cache="pretrain/notes", split="train", number=4, state=str(tmp_path / "state.json"))
    assert "document 4" in document
    assert PLANTED in document
    assert "id-4" in document
    assert "<td>read</td>" in document
    assert "/search/document?cache=pretrain%2Fnotes&amp;split=train&amp;number=" not in document or "number=9" in document
    assert "no corpus" in document


def test_an_example_is_shown_with_its_roles(pages: SearchPages) -> None:
    document = page_of(pages, "/search/document", cache="sft/chats", split="train", number=0)
    assert "example 0" in document
    assert "&lt;|usr|&gt;" in document


def test_the_start_page_leads_to_the_report(pages: SearchPages) -> None:
    assert 'href="/search/report"' in page_of(pages)
    assert page_of(pages, "/search/report") == "<p>the report</p>"


@pytest.mark.parametrize(
    ("path", "query", "problem"),
    [
        ("/search", {"q": "x" * 3_000}, "more than 2,000; search with niels-cache find --file"),
        ("/search", {"q": PLANTED, "state": "gone.pt"}, "gone.pt"),
        ("/search/document", {"cache": "pretrain/gone"}, "no cache of"),
        ("/search/document", {"cache": "pretrain/notes", "split": "train", "number": "999"}, "no document 999"),
        ("/search/document", {"cache": "pretrain/notes", "split": "train", "number": "9" * 5_000}, "no document 999"),
        ("/search", {"q": PLANTED, "state": "gone\0"}, "regular file"),
        ("/search/document", {"cache": "pretrain/notes", "split": "../x", "number": "1"}, "no document 1 in"),
        ("/search/other", {}, "no such page"),
    ],
)
def test_what_cannot_be_shown_is_one_line(pages: SearchPages, path: str, query: dict[str, str], problem: str) -> None:
    response = pages.answer(path, parse_qs(urlencode(query)))
    assert response.status in (400, 404)
    assert problem in response.page


def test_texts_are_data_and_not_markup(pages: SearchPages) -> None:
    for page in (page_of(pages, q="<script>alert"), page_of(pages, "/search/document", cache="pretrain/notes", split="train", number=6)):
        assert "<script" not in page
        assert "&lt;script&gt;alert" in page
        assert "default-src &#39;none&#39;" in page


def test_a_search_that_takes_too_long_names_the_command(pages: SearchPages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_seconds", -1.0)
    response = pages.answer("/search", {"q": [PLANTED]})
    assert response.status == 400
    assert f"niels-cache find &#39;{PLANTED}&#39;" in response.page


def ask(pages: SearchPages, request: Request) -> Answer:
    async def refuse(*_: Any) -> None:
        raise AssertionError("Dagster was asked")

    return answer(WebGuard(refuse, port=PORT, search=pages), request)


def test_only_the_ui_itself_may_search(pages: SearchPages) -> None:
    query = urlencode({"q": PLANTED})
    found = ask(pages, Request(path="/search", headers=(HOST,), query=query))
    assert found.status == 200
    assert found.headers["x-frame-options"] == "DENY"
    assert b"<mark>" in found.body
    assert ask(pages, Request("HEAD", path="/search", headers=(HOST,), query=query)).body == b""
    for headers in (LINK, (SAME_SITE,), (("origin", "http://evil.example"),)):
        assert ask(pages, Request(path="/search", headers=(HOST, *headers), query=query)).status == 403
    assert ask(pages, Request(path="/search", headers=(("host", "evil.example:3000"),), query=query)).status == 403
    assert ask(pages, Request("POST", path="/search", headers=(HOST,), query=query)).status == 405


def test_one_search_runs_at_a_time(pages: SearchPages) -> None:
    async def ask_while_busy() -> Answer:
        from tests.defs.ui.test_guard import ask as ask_app

        async with pages._busy:
            return await ask_app(pages, Request(path="/search", query="q=x"))

    assert asyncio.run(ask_while_busy()).status == 503
    assert web.SECONDS <= 60
