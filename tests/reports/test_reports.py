"""Reports without Dagster: what a run reads, counted sample by sample; and the page, whole, quiet and safe whatever it shows."""

import hashlib
import json
import math
import re
import webbrowser
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from markdown_it import MarkdownIt

from niels_cache_assets.cli import main
from niels_cache_assets.facts.contents import budget_rule
from niels_cache_assets.facts.mixture import ALL, MixturePlan, all_mixtures
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.project.tables import BlendSettings, ReportsSettings
from niels_cache_assets.reports import page_path
from niels_cache_assets.reports.cache import CacheReport, cache_report, find_items
from niels_cache_assets.reports.history import CheckRecord, FolderHistory, History
from niels_cache_pages.drawing import Picture, as_svg
from niels_cache_pages.markdown import cache_markdown, mixture_markdown
from niels_cache_pages.page import Drawings, draw_report, render_page, write_page
from niels_cache_pages.pictures import MAX_MIXED, mixture_pictures
from niels_cache_runtime import TokenLoader, read_meta, write_meta
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import content_sha256
from niels_cache_runtime.loader.blend import Blend
from tests.helpers.messages import missing
from tests.helpers.small_project import SmallProject, small_project

T = 16  # of the blend
NOW = 1_800_000_000.0
HOSTILE = (
    "</title><script>alert(1)</script><img src=x onerror=alert(1)>\" onload='x' {{ 7*7 }} &amp; | [a](javascript:x) ![b](http:x/y)\n# c"
)
NO_HISTORY = History(source="none here")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> SmallProject:
    """Everything that a cache root can hold, built once for this file."""
    project = small_project(tmp_path_factory.mktemp("reports"), tiny_model)
    project.build_all()
    return project


def blended(registry: Registry, weights: dict[str, float], *, samples: int, **reports: Any) -> Registry:
    settings = BlendSettings(weights=weights, sequence_length=T, num_samples=samples)
    return replace(registry, blend={"mix": settings}, reports=ReportsSettings(**reports))


def only(registry: Registry, root: Path) -> MixturePlan:
    (mixture,) = all_mixtures(registry, root=root)
    return mixture


def reported(project: SmallProject, *, history: History = NO_HISTORY, registry: Registry | None = None) -> CacheReport:
    registry = registry or project.registry
    items = find_items(registry, root=project.root)
    return cache_report(registry, items, root=project.root, history=history)


# The data that a run reads


def test_a_blend_reads_what_the_loader_takes_sample_by_sample(project: SmallProject) -> None:
    weights = {"letters": 0.7, "notes": 2.0}
    steps, batch = 531, 3
    registry = blended(project.registry, weights, samples=steps * batch, batch_size=batch, max_epochs=0.75)
    mixture = only(registry, project.root)
    assert (mixture.name, mixture.steps, mixture.left_out) == ("mix", steps, {})

    taken, _ = Blend([*weights], [(0, weights)]).at(np.arange(steps * batch))
    folders = {name: str(project.root / "pretrain" / name / "train") for name in weights}
    loader = TokenLoader(folders, T=T, B=batch, seed=7, weights=weights)
    told = {source.name: source for source in loader.report(steps).sources}
    for index, source in enumerate(mixture.sources):
        per_epoch = loader.samples_per_epoch[source.name]
        places = np.flatnonzero(taken == index)
        assert (source.samples, source.tokens_read) == (len(places), len(places) * T)
        assert source.epochs == told[source.name].epochs == pytest.approx(len(places) / per_epoch)
        assert source.actual == pytest.approx(told[source.name].actual)
        assert source.configured == pytest.approx(told[source.name].configured)
        assert source.tokens == read_meta(str(project.root / "pretrain" / source.name / "meta.json"))["train_tokens"]
        assert source.epochs > 0.75
        assert source.repeats_from == places[math.floor(0.75 * per_epoch)] // batch
    assert sum(source.available for source in mixture.sources) == pytest.approx(1)


def test_what_is_read_as_often_as_allowed_is_no_warning_and_one_sample_more_is(project: SmallProject) -> None:
    registry = blended(project.registry, {"letters": 1.0}, samples=1, max_epochs=3)
    per_epoch = TokenLoader(str(project.root / "pretrain/letters/train"), T=T, B=1, seed=0).samples_per_epoch["letters"]
    allowed, beyond = (
        only(blended(registry, {"letters": 1.0}, samples=3 * per_epoch + more, max_epochs=3), project.root) for more in (0, 1)
    )
    assert (allowed.warnings, allowed.sources[0].epochs, allowed.sources[0].repeats_from) == ([], 3.0, None)
    assert beyond.sources[0].repeats_from == 3 * per_epoch // 32
    assert len(beyond.warnings) == 1
    assert re.match(r"letters .* 3\.0 times.* max_epochs \(3\) after [\d,]+ of [\d,]+ steps", beyond.warnings[0])


def test_a_run_of_a_trillion_samples_is_counted_exactly(project: SmallProject) -> None:
    samples = 10**12
    mixture = only(blended(project.registry, {"letters": 1 / 3, "notes": 2 / 3}, samples=samples), project.root)
    assert sum(source.samples for source in mixture.sources) == samples
    for source in mixture.sources:
        assert source.actual == pytest.approx(source.configured, abs=1e-6)


def test_without_a_blend_all_pretrain_sets_are_read_once_by_size(project: SmallProject) -> None:
    registry = replace(project.registry, blend={}, reports=ReportsSettings(sequence_length=T))
    mixture = only(registry, project.root)
    assert mixture.name == ALL
    assert [source.name for source in mixture.sources] == ["letters", "notes"]
    assert [source.epochs for source in mixture.sources] == [1.0, 1.0]
    assert mixture.left_out.keys() == {"python_docs"}
    assert "not built" in mixture.left_out["python_docs"]
    planned = only(replace(registry, reports=ReportsSettings(sequence_length=T, steps=100, batch_size=8)), project.root)
    assert (planned.samples, planned.steps) == (800, 100)
    assert all_mixtures(replace(registry, pretrain={}), root=project.root) == []


def test_what_cannot_be_read_is_left_out_with_its_reason(project: SmallProject) -> None:
    registry = replace(project.registry, blend={}, reports=ReportsSettings(sequence_length=10**6))
    mixture = only(registry, project.root)
    assert mixture.sources == ()
    assert "T=1000000 needs 1000001 tokens" in mixture.left_out["letters"]
    assert mixture.steps == 0
    blend = only(blended(project.registry, {"letters": 1.0, "python_docs": 1.0}, samples=10), project.root)
    assert (blend.sources, blend.left_out.keys()) == ((), {"python_docs"})
    report = reported(project, registry=blended(project.registry, {"letters": 1.0, "python_docs": 1.0}, samples=10))
    [said] = [notice.text for notice in report.notices if notice.name == "mix"]
    assert missing(said, "python_docs: ", "not built") == []
    assert "Left out" in mixture_markdown(blend)


def test_the_picture_of_a_mixture_has_the_largest_sources(project: SmallProject) -> None:
    mixture = only(blended(project.registry, {"letters": 1.0}, samples=1_000), project.root)
    for count in (1, MAX_MIXED, MAX_MIXED + 1):
        many = tuple(replace(mixture.sources[0], name=f"data set {index}") for index in range(count))
        shares, times = mixture_pictures(replace(mixture, sources=many))
        assert len(shares.names) == 3 * len(times.labels) == 3 * min(count, MAX_MIXED)
    svg = as_svg(shares, mixture.name)
    assert missing(svg, f"{mixture.name}: share", *(f"<title>data set 0, {each}: " for each in ("available", "configured", "read"))) == []
    assert svg.count(">data set 0<") == 1, "one label at the left of three bars"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("max_epoch = 2", ("[reports] ", "'max_epoch'", "'max_epochs'")),
        ("[blend.mix]\nweights = { a = 1 }\nsequence_length = 8\nnum_samples = 2000000000000000000", ("[blend.mix] num_samples =",)),
        ("steps = 0", ("[reports] steps = 0: ", "at least 1", "1_099_511_627_776")),
        ("max_epochs = inf", ("[reports] max_epochs = inf: ", "more than 0", "1_048_576")),
    ],
)
def test_a_wrong_setting_is_refused_by_name(tmp_path: Path, line: str, named: tuple[str, ...]) -> None:
    config = tmp_path / "niels_cache.toml"
    config.write_text(f"[reports]\n{line}\n", encoding="utf-8")
    with pytest.raises(NielsCacheError) as caught:
        load_registry(config=str(config))
    assert missing(caught.value, *named) == []


# The builds


def test_everything_that_is_built_is_there_with_its_size_and_hash(project: SmallProject) -> None:
    report = reported(project)
    items = {item.name: item for item in report.items}
    expected = {"tokenizer", "corpus/notes", "corpus/duplicates", "letters", "notes", "python_docs", "chats", "python_help"}
    indices = {name for name in items if name.startswith("index/")}
    assert set(items) - indices == expected
    assert len(indices) == 3
    for item in report.items:
        folder = item.directory
        if item.name.startswith("python_"):
            assert (item.condition, item.bytes, item.sha256, item.counts) == ("missing", 0, None, {})
            continue
        assert item.condition == "complete"
        assert item.bytes == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != "meta.json")
        assert item.sha256 is not None
    (blend,) = (items[name] for name in indices if items[name].meta["kind"] == "index/blend")
    assert blend.sha256 == content_sha256(blend.meta["files"])
    assert len({items[name].sha256 for name in indices}) == len(indices), "each of its own files"
    assert items["tokenizer"].sha256 == hashlib.sha256((project.root / "tokenizer/spm.model").read_bytes()).hexdigest()
    assert items["letters"].sha256 == read_meta(str(project.root / "pretrain/letters/meta.json"))["content_sha256"]
    assert (report.complete, len(report.expected)) == (len(items) - 2, len(items))
    assert {notice.name for notice in report.notices} == {"python_docs", "python_help"}
    assert report.total("train_examples", "sft") == items["chats"].counts["train_examples"] > 0
    priors = report.as_json()["priors"]
    assert priors["token_counts"] == {name: items[name].counts["train_tokens"] for name in priors["token_counts"]} != {}
    assert "chats" not in priors["token_counts"]
    assert priors["relative_sizes"].keys() == priors["token_counts"].keys()
    assert sum(priors["relative_sizes"].values()) == pytest.approx(1)


def test_checks_of_what_is_off_are_not_counted_as_passed(project: SmallProject) -> None:
    check = CheckRecord(name="whole", outcome="passed", said="switched off: there is nothing to verify", when=NOW)
    report = reported(project)
    history = History(source="here", folders={item.directory.absolute(): FolderHistory(checks=(check,)) for item in report.items})
    items = tuple(replace(item, state="disabled") if item.name == "chats" else item for item in report.items)
    report = replace(report, items=items, history=history)
    assert report.outcomes == {"passed": len(items) - 1}
    said = {item.name: report.recorded(item).passed for item in items}
    assert (said["chats"], said["letters"]) == ("-", "1 of 1")
    (chats,) = (item for item in report.as_json()["items"] if item["name"] == "chats")
    assert chats["checks"] == ()
    (row,) = (line for line in cache_markdown(report).splitlines() if line.startswith("| chats "))
    assert row.endswith(r"| \- |")
    assert check.said not in Page(render_page(replace(report, items=(next(i for i in items if i.name == "chats"),)), {}, now=NOW)).text


def test_what_moved_failed_or_ended_before_its_budget_needs_attention_once(project: SmallProject) -> None:
    report = reported(project)
    letters = next(item for item in report.items if item.name == "letters")
    assert letters.revision is not None

    def said(recorded: FolderHistory | None = None, item: Any = letters) -> list[str]:
        folders = {letters.directory.absolute(): recorded} if recorded else {}
        shown = replace(report, items=(item,), history=History(source="here", folders=folders))
        return [notice.text for notice in shown.notices if notice.name == "letters"]

    assert said() == []
    failed, moved = said(FolderHistory(newest_revision="abc", checks=(CheckRecord(name="whole", outcome="failed", said="no", when=NOW),)))
    assert failed == "whole: no"
    assert missing(moved, f"revision {letters.revision}", "upstream", "at abc") == []
    rule = budget_rule(train_tokens=10_000_000_000, val_tokens=0)
    ended = replace(letters, meta={**letters.meta, "split_rule": rule})
    (short,) = said(item=ended)  # built before there was a check
    assert missing(short, "<0.1%", "train_tokens") == []
    recorded = FolderHistory(checks=(CheckRecord(name="budgets_met", outcome="warning", said=short, when=NOW),))
    assert said(recorded, ended) == [f"budgets met: {short}"]


# The page


class Page(HTMLParser):
    """The page as a browser reads it, with the elements in order, their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == tag]


@pytest.fixture(scope="module")
def drawings(project: SmallProject) -> Drawings:
    return draw_report(project.registry, reported(project))


def test_the_page_holds_all_it_shows_and_asks_for_nothing(project: SmallProject, drawings: Drawings) -> None:
    content = render_page(reported(project), drawings, now=NOW, with_samples=True)
    page = Page(content)
    assert len(page.all("svg")) == 2 * len(reported(project).mixtures) + sum(map(len, drawings.values())) > 10
    labels = [attributes["aria-label"] or "" for attributes in page.all("svg")]
    assert all(sum(label.startswith(f"{mixture.name}: ") for label in labels) == 2 for mixture in reported(project).mixtures)
    addresses = [attributes["href"] or "" for attributes in page.all("a")]
    assert addresses
    assert all(address.startswith("#") for address in addresses)
    for tag in ("script", "img", "link", "iframe", "object", "embed", "form", "base", "video", "audio"):
        assert page.all(tag) == []
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on") or name in ("style", "srcset")]
    style = content.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style
    policy = next(each["content"] or "" for each in page.all("meta") if each.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    documents = [json.loads(line)["text"] for line in (project.root.parent / "letters.jsonl").read_text(encoding="utf-8").splitlines()]
    shown = sum(document[:40] in page.text for document in documents)
    assert 1 <= shown <= 4 < len(documents), "the samples alone"


def test_the_page_shows_samples_drops_and_times(project: SmallProject, tmp_path: Path) -> None:
    report = reported(project)
    (letters,) = (item for item in report.items if (item.name, item.kind) == ("letters", "pretrain"))
    times = {letters.directory.absolute(): FolderHistory(seconds=30.25)}
    page = Page(render_page(replace(report, history=History(source="x", folders=times)), {}, now=NOW, with_samples=True))
    words = " ".join(page.text.split())
    tokens = letters.counts["train_tokens"] + letters.counts["val_tokens"]
    assert missing(words, "longest: train document", "time of the builds30.2 s", f"{tokens / 30.25:,.0f} tokens per second") == []
    dropped = sum(sum(item.dropped.values()) for item in report.items if item.kind in ("pretrain", "sft"))
    assert f"documents and examples dropped{dropped:,}" in words
    elsewhere = replace(report, items=tuple(replace(item, directory=tmp_path / "a" / item.name) for item in report.items))
    assert "no sample can be shown" in Page(render_page(elsewhere, {}, now=NOW, with_samples=True)).text


def test_a_page_draws_only_what_the_last_one_does_not_show(
    project: SmallProject, drawings: Drawings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, drawn = replace(reported(project), root=tmp_path), []

    def draw(picture: Picture, of: str) -> str:
        drawn.append(picture.title)
        return as_svg(picture, of)

    monkeypatch.setattr("niels_cache_pages.page.as_svg", draw)
    page = render_page(report, drawings, now=NOW)
    assert len(drawn) > 10
    write_page(page_path(tmp_path), page)
    drawn.clear()
    assert (render_page(report, drawings, now=NOW), drawn) == (page, [])
    folder = next(folder for folder, pictures in drawings.items() if len(pictures) > 2)
    first, *others = (each for each in drawings[folder] if isinstance(each, Picture))
    render_page(report, {**drawings, folder: [replace(first, title="a new title"), *others]}, now=NOW)
    assert drawn == ["a new title"]


def hostile_strings(text: str, project: SmallProject, tmp_path: Path) -> tuple[CacheReport, Drawings]:
    """A report with `text` wherever something that is not ours can stand."""
    report = reported(project)
    items = []
    for item in report.items:
        meta = {**item.meta, "dataset_revision": text, "split_rule": text, "dropped": {text: 3}} if item.meta else {}
        kind, _, name = item.key.partition("/")
        key = f"{kind}/{text}{name}" if name else kind
        items.append(replace(item, key=key, advice=text, directory=tmp_path / text, meta=meta))
    check = CheckRecord(name=text, outcome="failed", said=text, when=NOW)
    recorded = FolderHistory(newest_revision=f"now {text}", checks=(check,))
    history = History(source=text, folders={(tmp_path / text).absolute(): recorded}, checks=(check,))
    (mixture,) = report.mixtures
    sources = (replace(mixture.sources[0], name=text, repeats_from=1),)
    mixture = replace(mixture, name=text, note=text, left_out={text: text}, sources=sources)
    report = replace(report, root=tmp_path / text, settings=text, items=tuple(items), mixtures=(mixture,), history=history)
    return report, {items[0].directory: text}


def test_no_name_or_text_of_others_becomes_markup_in_the_page(project: SmallProject, tmp_path: Path) -> None:
    plain = "harmless".ljust(len(HOSTILE), "-")  # as long, because pictures cut long names
    harmless, hostile = (Page(render_page(*hostile_strings(text, project, tmp_path), now=NOW)) for text in (plain, HOSTILE))
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in harmless.elements]
    assert [sorted(attributes) for _, attributes in hostile.elements] == [sorted(attributes) for _, attributes in harmless.elements]
    shown, expected = (" ".join(text.split()) for text in (hostile.text, HOSTILE))  # a tooltip is one line
    assert shown.count(expected) == harmless.text.count(plain) > 50


def test_no_name_or_text_of_others_becomes_markup_in_markdown(project: SmallProject, tmp_path: Path) -> None:
    def tokens(text: str) -> Iterator[str]:
        report, _ = hostile_strings(text, project, tmp_path)
        shown = f"{cache_markdown(report)}\n\n{mixture_markdown(report.mixtures[0])}"
        for block in MarkdownIt("gfm-like", {"linkify": False}).parse(shown):
            yield block.type
            yield from (child.type for child in block.children or [] if child.type not in ("text", "text_special"))

    found = [*tokens("harmless")]
    assert "table_open" in found
    assert [*tokens(HOSTILE)] == found


def test_masked_places_are_in_the_page_as_text(project: SmallProject) -> None:
    report = reported(project)
    (corpus,) = (item for item in report.items if item.name == "corpus/notes")
    places = {"email": 3, "phone": 1}
    examples = [{"kind": "email", "before": f"Write to {HOSTILE}", "form": "aa@aaa.aa", "after": " & ask"}]
    masked = {"documents": 2, "places": places, "examples": examples}
    shown = replace(report, items=(replace(corpus, meta={**corpus.meta, "masked": masked}),))
    plain, page = (Page(render_page(each, {}, now=NOW)) for each in (replace(report, items=(corpus,)), shown))
    assert "Masked" not in plain.text
    assert "aa@aaa.aa" in page.text
    assert "& ask" not in page.text, "the text around stays in the cache"
    assert not {tag for tag, _ in page.elements} & {"script", "img"}
    for kind, count in places.items():
        assert re.search(rf"{kind}\s*{count}", page.text)


def odd_import(registry: Registry, root: Path, meta: dict[str, Any]) -> CacheReport:
    """Report an imported data set `odd` whose hashed meta.json has these keys besides the usual. "left out" takes one out."""
    (root / "pretrain/odd").mkdir(parents=True)
    usual: dict[str, Any] = {"kind": "pretrain", "built": True, "fingerprint": "x", "files": {}, "content_sha256": "0" * 64, "dropped": {}}
    usual |= {"train_tokens": 1, "val_tokens": 0} | dict.fromkeys(["dataset_revision", "tokenizer_sha256", "vocab_size"])
    write_meta(str(root / "pretrain/odd/meta.json"), {key: value for key, value in {**usual, **meta}.items() if value != "left out"})
    return cache_report(registry, find_items(registry, root=root), root=root, history=NO_HISTORY)


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"val_tokens": "left out"}, "has no val_tokens"),
        ({"files": {"a": {}}}, "`files`"),
        ({"dropped": 3}, "dropped is 3"),
        ({"train_tokens": "many"}, "train_tokens is 'many'"),
    ],
)
def test_a_meta_json_of_another_form_is_broken_and_the_problem_is_shown(
    project: SmallProject, tmp_path: Path, meta: dict[str, Any], said: str
) -> None:
    report = odd_import(project.registry, tmp_path, meta)
    (odd,) = (item for item in report.items if item.name == "odd")
    assert (odd.condition, odd.bytes) == ("broken", 0)
    assert said in odd.advice
    assert [said in notice.text for notice in report.notices if notice.name == "odd"] == [True]
    report.as_json()
    assert "| odd |" in cache_markdown(report)
    assert said in Page(render_page(report, {}, now=NOW)).text
    report = odd_import(project.registry, tmp_path / "plots", {"dropped": "left out", "vocab_size": "left out"})
    [problem] = draw_report(project.registry, report).values()
    assert missing(problem, "plots", "meta.json has no 'vocab_size'") == []


# The command


@pytest.fixture
def command(project: SmallProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "nowhere"))
    config = str(project.root.parent / "niels_cache.toml")
    return ["report", "--profile", "quickstart", "--config", config, "--cache-dir", str(project.root)]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and "reports" not in path.parts}


def test_the_command_writes_the_page_and_changes_no_cache(
    command: list[str], project: SmallProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)) or True)
    monkeypatch.setattr("niels_cache_pages.page.draw_report", lambda *given, **more: {})
    before = contents(project.root)
    assert main([*command, "--open"]) == 0
    path = project.root / "reports/cache.html"
    assert opened == [path.as_uri()]
    told = capsys.readouterr().out
    assert f"{path}: " in told
    assert "python_docs: missing" in told
    text = Page(path.read_text(encoding="utf-8")).text
    assert missing(text, f"none: {tmp_path / 'nowhere'}", "Dagster home") == []
    assert "letters" in text
    assert contents(project.root) == before
    assert not (tmp_path / "nowhere").exists()
    assert [each.name for each in path.parent.iterdir() if each.name.startswith(".")] == []


def test_the_command_prints_data_and_writes_elsewhere_only_where_asked(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[object] = []
    monkeypatch.setattr("niels_cache_pages.page.draw_report", lambda *given, **more: drawn.append(given) or {})
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["history"].startswith("none: ")
    assert drawn == []
    out = tmp_path / "a folder" / "page.html"
    assert main([*command, "--json", "--out", str(out), "--open"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["items"]
    assert missing(captured.err, "no browser", str(out)) == []
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_page_replaces_only_a_page(tmp_path: Path) -> None:
    (tmp_path / "file.jsonl").write_text("{}")
    (tmp_path / "folder").mkdir()
    for path, words in ((tmp_path / "file.jsonl/page.html", "cannot be written.* --out"), (tmp_path / "folder", "cannot be written")):
        with pytest.raises(NielsCacheError, match=words):
            write_page(path, "new")
    with pytest.raises(NielsCacheError, match="--out"):
        write_page(tmp_path / "file.jsonl", "new")
    assert (tmp_path / "file.jsonl").read_text() == "{}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.jsonl", "folder"]
    for before in ("", "\n<!DOCTYPE html>\nold"):
        (tmp_path / "page.html").write_text(before)
        write_page(tmp_path / "page.html", "new")
        assert (tmp_path / "page.html").read_text() == "new"


def test_the_counts_of_every_item_add_up_and_are_those_of_its_files(project: SmallProject) -> None:
    report = reported(project)
    by_name = {item.name: item for item in report.items}
    built = [item for item in report.items if item.is_built and item.kind in ("pretrain", "sft")]
    assert len(built) >= 3
    for item in built:
        noun = "documents" if item.kind == "pretrain" else "examples"
        row = next(row for row in item.splits if row.unit == noun)
        lineage = [pyarrow.parquet.read_metadata(item.directory / f"{split}_{noun}.parquet") for split in ("train", "val")]
        assert [row.train, row.val] == [each.num_rows for each in lineage]
        dropped = sum(item.dropped.values())
        assert item.balance == f"{row.total:,} {noun} kept and {dropped:,} dropped: {row.total + dropped:,} in all"
        page = Page(render_page(replace(report, items=(item,), mixtures=()), {}, now=NOW)).text
        assert item.balance in page
        for each in item.splits:
            assert re.search(rf"\b{each.unit}\s*{each.train:,}\s*{each.val:,}\s*{each.total:,}\b", page)
        tokens = next(row for row in item.splits if row.unit == "tokens")
        files = [*item.directory.glob("train/*.bin"), *item.directory.glob("train_tokens.bin")]
        assert tokens.train == sum(path.stat().st_size for path in files) // 2 > 0
        if corpus := by_name.get(f"corpus/{item.name}"):
            read = corpus.meta["documents"]["read"] + sum(corpus.meta["dropped_by_source"].values())
            kept = corpus.counts["documents"]
            assert corpus.balance == f"{kept:,} documents kept and {read - kept:,} dropped: {read:,} in all"
            assert row.total + dropped == read, "what cleaning dropped, and duplicates, is dropped here"
    pretrain = [item for item in report.items if item.kind == "pretrain"]
    duplicates = sum(item.dropped.get(reason, 0) for item in pretrain for reason in ("exact_duplicate", "near_duplicate"))
    assert by_name["corpus/duplicates"].counts["duplicates"] == duplicates
    page = Page(render_page(report, {}, now=NOW)).text
    assert f"{sum(item.counts.get('train_tokens', 0) for item in pretrain):,}" in page
