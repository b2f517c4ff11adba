"""Pages that are made from code are current and complete."""

import inspect
import json
import re
import runpy
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.base.documents import Conversation, Message
from niels_cache_assets.build_cache import Provenance, build_pretrain_cache, build_sft_cache, write_unbuilt_cache
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.project.tables import FindSettings
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.streaming.decontaminate import ReferenceOrigin, ReferenceTexts
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer, open_model
from niels_cache_corpora.fim import CopyMaker
from niels_cache_formats.megatron_import import Vocabulary, import_megatron
from niels_cache_inspection.erasure.tombstone import strike
from niels_cache_runtime.format.layout import FAMILIES, FIM_NAMES, META_NAME, dataset_dir
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.format.meta_keys import FORM_OF, form_problem
from tests.golden.imports import described_names
from tests.helpers.builds import build_tokenizer, prepare_corpus
from tests.helpers.chat_models import UNMARKED, template_of
from tests.helpers.corpora import articles, corpus_registry
from tests.helpers.parts_project import NAME, PartsProject, build
from tests.helpers.small_project import small_project
from tests.helpers.tiny import sentences
from tests.helpers.tokenizer_files import EOT, WORDS_PATTERN, write_json, write_ranks

DOCS = Path(__file__).resolve().parents[2] / "docs"
PUBLIC = ("niels_cache_runtime", "niels_cache_runtime.megatron", "niels_cache_assets", "niels_cache_assets.build_cache")


def made(name: str) -> dict[str, Any]:
    return runpy.run_path(str(DOCS / f"{name}.py"))


@pytest.mark.parametrize(("name", "function"), [("configuration", "reference"), ("meta", "page"), ("drop_reasons", "page")])
def test_the_page_is_what_the_code_says(name: str, function: str) -> None:
    page: Callable[[], str] = made(name)[function]
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == page(), f"run python docs/{name}.py"


def test_everything_public_is_on_an_api_page_and_named_by_topic() -> None:
    described = {name.rpartition(".")[2] for name in described_names()}
    found = {name: getattr(import_module(module), name) for module in PUBLIC for name in import_module(module).__all__}
    public = {name for name, thing in found.items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    assert len(public) > 30
    assert public <= described
    page = (DOCS / "classes.md").read_text(encoding="utf-8")
    assert {name for name in described if not re.search(rf"\b{name}\b", page)} == set()


@pytest.fixture(scope="module")
def metas(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, tokenizer: SentencePieceTokenizer) -> list[Meta]:
    """Return a meta.json of every kind and way of building, as builds write it today."""
    project = small_project(tmp_path_factory.mktemp("metas"), tiny_model)
    project.build_all()
    indexed = replace(project.registry, find=FindSettings(index=("letters",)))
    materialize(graph(indexed, project.root)["suffixes/letters"], notify=False)
    for family in FAMILIES:
        write_unbuilt_cache(str(dataset_dir(project.root, family, "off")), family=family, provenance=Provenance(dataset_name="off"))
    settings: dict[str, Any] = {"shard_bytes": 4096, "seed": 1, "shuffle_buffer": None, "max_val_tokens": 100, "max_train_tokens": 500}
    apart = str(dataset_dir(project.root, "pretrain", "apart"))
    build_pretrain_cache(sentences(100), apart, tokenizer=tokenizer, decontaminate="near", **settings)
    against = ReferenceTexts(
        identity={}, texts=lambda: iter([(ReferenceOrigin("", "quiz", 0), sentences(1)[0])]), threshold=0.8, share=0.5, run=50
    )
    settings |= {"references": against, "keep": ("url",)}
    PretrainBuild(items=sentences(100), out_dir=f"{apart}_2", tokenizer=tokenizer, **settings).build(None)
    prefix, imported = project.exports / "letters_train", dataset_dir(project.root, "pretrain", "imported")
    import_megatron({"train": prefix}, imported, vocabulary=Vocabulary(), shard_bytes=4096)
    tokenizers = [tiny_model.parent / META_NAME, *tokenizers_of_others(tmp_path_factory.mktemp("tokenizers"))]
    pages = PartsProject(project.root.parent / "in_parts", tiny_model)
    pages.write([20, 20])
    build(pages.graph(2, "val_tokens = 50"))
    build(pages.graph(2, 'prepare = ["dedup"]', root="prepared"), [f"corpus/{NAME}"])
    chats = tmp_path_factory.mktemp("chats")
    table = 'prepare = ["clean", "lines"]\nkeep = ["url"]\ncleaning = { mask = ["email"], skip = ["not_english", "language_error"] }\n'
    table += 'steps = [{ where = "url is not None" }]\n'
    masked = corpus_registry(chats, {"masked": []}, table=table)
    (chats / "masked.jsonl").write_text(json.dumps({"text": f"{articles(1)[0]} ann@web.org", "url": "https://web.org"}) + "\n")
    prepare_corpus(masked, "masked", root=chats, processes=1)
    materialize(graph(masked, chats).repeats("lines"), notify=False)
    turns: list[Message] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ha"}]
    pair = Conversation(turns, rejected=[turns[0], {"role": "assistant", "content": "No"}])
    options: dict[str, Any] = {"tokenizer": open_model(tiny_model), "val_frac": 0, "seed": 0}
    with_fim = open_model(
        write_json(chats / "x.json", tokens=dict.fromkeys([EOT, *FIM_NAMES[0].split()], True)), special_tokens={"eot": EOT}
    )
    numbers: dict[str, Any] = {"max_train_tokens": 9, "max_val_tokens": 0, "shard_bytes": 512, "seed": 1}
    build_pretrain_cache(["the cache"] * 9, str(chats / "fim"), tokenizer=with_fim, shuffle_buffer=None, **numbers)
    copies = CopyMaker(Jsonl(source="jsonl", files=["x"], fim={"level": "character", "copies": 1}), with_fim, seed=1)
    numbers |= {"tokenizer": with_fim, "fim": copies, "shuffle_buffer": None}
    PretrainBuild(items=["the cache"] * 9, out_dir=str(chats / "copies"), **numbers).build(None)
    build_sft_cache([turns], str(chats / "x"), template=template_of(UNMARKED), **options)
    build_sft_cache([pair], str(chats / "pairs"), preference=True, **options)
    strike(Path(apart), "pretrain", {"train": [0]})
    strike(chats / "x", "sft", {"train": [0]})
    found = [path for root in (project.root, pages.folder, chats) for path in sorted(root.rglob(META_NAME))]
    return [read_meta(str(path)) for path in (*tokenizers, *found)]


def tokenizers_of_others(folder: Path) -> list[Path]:
    """A tokenizer.json, ranks of tiktoken and a model of the hub, as a cache keeps them."""
    fetched = write_json(folder / "x.json")
    tables = (
        f'model = "{fetched}"',
        'model = "hf://owner/name"',
        f"model = \"{write_ranks(folder / 'x.tiktoken')}\"\npattern = '{WORDS_PATTERN[3:]}'",
    )
    for number, table in enumerate(tables):
        config = folder / f"{number}.toml"
        config.write_text(f'[tokenizer]\n{table}\nspecial_tokens = {{ eot = "{EOT}" }}\n', encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            for module in ("artifacts.tokenizer", "tokenizer.kinds"):
                patch.setattr(f"niels_cache_assets.{module}.fetch_model", lambda name, revision: fetched)
            build_tokenizer(load_registry(config=str(config)), root=folder / str(number))
    return sorted(folder.rglob(META_NAME))


def test_every_key_that_is_written_is_in_the_table_and_every_key_of_the_table_is_written(metas: list[Meta]) -> None:
    page = made("meta")
    written: dict[str, set[str]] = {kind: set() for kind in page["EVERY"]}
    for meta in metas:
        written[str(meta["kind"]).partition("/")[0]] |= meta.keys()
        assert form_problem(meta) is None
    assert written == {kind: {key.name for key in page["META_KEYS"] if kind in key.kinds} for kind in written}


def test_a_key_has_one_form_and_one_meaning_in_each_kind() -> None:
    keys = made("meta")["META_KEYS"]
    assert FORM_OF.keys() == {key.name for key in keys}
    told = [(key.name, kind) for key in keys for kind in key.kinds]
    assert len(told) == len(set(told)) > 60
