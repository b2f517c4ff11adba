"""Whole projects with tokenizers of other projects: from the file to the first batch, and what each command makes of them."""

import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.artifacts.builds import build_dataset, build_tokenizer, prepare_corpus
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.state import state_of
from niels_cache_assets.cli import main
from niels_cache_assets.config.fingerprint import settings_that_count
from niels_cache_assets.config.registry import Registry, load_registry
from niels_cache_assets.config.tables import TokenizerSettings
from niels_cache_assets.tokenizer import engines
from niels_cache_assets.tokenizer.decoding import as_text, open_tokenizer
from niels_cache_assets.tokenizer.kinds import open_model, open_model_at
from niels_cache_assets.tokenizer.proof import torture_texts
from niels_cache_runtime import TokenLoader, open_cache
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import read_meta, sha256_file
from niels_cache_runtime.verify import verify_cache
from tests.test_export_import import write_indexed
from tests.test_tokenizer import configure
from tests.tiny import WORDS, sentences
from tests.tokenizer_files import EOT, REAL, WORDS_PATTERN, added, needs_real, pieces, write_json, write_ranks

ROOT = Path(__file__).parent.parent
NAMED = f'special_tokens = {{ eot = "{EOT}" }}'
KINDS = {
    "tokenizer.json": f'model = "tokenizer.json"\n{NAMED}',
    "folder": f'model = "."\n{NAMED}',
    "tiktoken": f"model = \"x.tiktoken\"\npattern = '''{WORDS_PATTERN}'''\n{NAMED}",
    "other name": f'model = "x.bin"\nkind = "tokenizer.json"\n{NAMED}',
}
pytestmark = pytest.mark.usefixtures("short_proofs")
CHATS = '[sft.chats]\nsource = "chat_jsonl"\nfiles = ["chats.jsonl"]\nval_frac = 0\n'


def project(folder: Path, table: str, more: str = "") -> Registry:
    """A data set `sample`, and a tokenizer from files beside it."""
    path = write_json(folder / "tokenizer.json", tokens={EOT: True, "<|sys|>": True, "<|usr|>": True, "<|asst|>": False, "<|begin|>": True})
    shutil.copy(path, folder / "x.bin")
    write_ranks(folder / "x.tiktoken")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOT}))
    chat = {"messages": [{"role": "user", "content": "the cache"}, {"role": "assistant", "content": "the token"}]}
    (folder / "chats.jsonl").write_text(json.dumps(chat) + "\n")
    return load_registry(config=configure(folder, f"val_frac = 0.1\n[tokenizer]\n{table}\n{more}"))


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_file_to_the_first_batch(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    registry, root = project(tmp_path, KINDS[kind]), tmp_path / "cache"
    made = build_tokenizer(registry, root=root)
    cache = build_dataset(registry, "sample", root=root)
    assert verify_cache(str(root)) == []
    assert build_tokenizer(registry, root=root).state == "cache_hit"
    assert build_dataset(registry, "sample", root=root).state == "cache_hit"
    assert cache.meta["tokenizer_sha256"] == made.meta["sha256"] == sha256_file(str(made.model))
    assert made.meta["vocab_size"] == len(pieces()) + (1 if kind == "tiktoken" else 5)
    names = {path.name for path in (root / "tokenizer").iterdir()} - {"meta.json"}
    if kind == "tiktoken":
        assert names == {"tiktoken.json", "ranks.tiktoken"}
        assert (root / "tokenizer/ranks.tiktoken").read_bytes() == (tmp_path / "x.tiktoken").read_bytes()
    else:
        assert names == {"tokenizer.json", *(["tokenizer_config.json"] if kind == "folder" else [])}
        assert made.model.read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    for path in tmp_path.iterdir():  # the cache alone decodes
        if path.is_file() and path.name != "niels_cache.toml":
            path.unlink()
    tokenizer = open_tokenizer(root)
    batch = next(iter(TokenLoader(str(cache.directory / "train"), T=16, B=2, seed=0)))
    text = tokenizer.decode(batch.x[0].tolist())
    assert text
    assert text in EOT.join([*sentences(400), ""]).replace(EOT, "\n") + EOT or EOT in text
    capsys.readouterr()
    arguments = ["--config", str(tmp_path / "niels_cache.toml"), "--cache-dir", str(root)]
    assert main(["sample", "sample", *arguments]) == 0
    assert any(word in capsys.readouterr().out for word in ("cache", "token", "shard"))


@pytest.mark.parametrize("changed", [f'special_tokens = {{ eot = "{EOT}", bos = "<|begin|>" }}', "pattern = '''\\S+|\\s+'''"])
def test_a_tokenizer_that_is_swapped_makes_exactly_its_caches_stale(tmp_path: Path, changed: str) -> None:
    table, prepared = KINDS["tiktoken"], '[pretrain.prepared]\nsource = "text"\nfiles = ["sample.txt"]\nprepare = ["dedup"]\n'
    registry, root = project(tmp_path, table, prepared), tmp_path / "cache"
    build_tokenizer(registry, root=root)
    build_dataset(registry, "sample", root=root)
    prepare_corpus(registry, "prepared", root=root, processes=1)

    def states(registry: Registry) -> dict[str, str]:
        every = graph(registry, root)
        return {each.key: state_of(each).state for each in (every.tokenizer(), every.corpus("prepared"), every.dataset("sample"))}

    assert set(states(registry).values()) == {"in sync"}
    key = changed.partition(" ")[0]
    kept = [line for line in table.splitlines() if not line.startswith(key)]
    swapped = project(tmp_path, "\n".join([*kept, changed]), prepared)
    assert states(swapped)["tokenizer"] == "other settings"
    build_tokenizer(swapped, root=root)
    assert states(swapped) == {"tokenizer": "in sync", "corpus/prepared": "in sync", "pretrain/sample": "other tokenizer"}
    build_dataset(swapped, "sample", root=root)
    assert set(states(swapped).values()) == {"in sync"}


@pytest.mark.parametrize("swapped", ["file", "kind"])
def test_a_file_or_a_kind_that_is_swapped_makes_exactly_its_caches_stale(tmp_path: Path, swapped: str) -> None:
    prepared = '[pretrain.prepared]\nsource = "text"\nfiles = ["sample.txt"]\nprepare = ["clean"]\n'
    roles = f'special_tokens = {{ eot = "{EOT}", sys = "<|sys|>", usr = "<|usr|>", asst = "<|asst|>" }}'
    table, more, root = KINDS["tokenizer.json"].replace(NAMED, roles), prepared + CHATS, tmp_path / "cache"
    registry = project(tmp_path, table, more)
    build_tokenizer(registry, root=root)
    prepare_corpus(registry, "prepared", root=root, processes=1)
    names = ("sample", "prepared", "chats")
    for name in names:
        build_dataset(registry, name, root=root)

    def states(registry: Registry) -> dict[str, str]:
        every = graph(registry, root)
        of_all = (every.tokenizer(), every.corpus("prepared"), *map(every.dataset, names))
        return {each.key: state_of(each).state for each in of_all}

    assert set(states(registry).values()) == {"in sync"}
    if swapped == "kind":
        registry = project(tmp_path, KINDS["tiktoken"].replace(NAMED, roles), more)
    else:
        described = json.loads((tmp_path / "tokenizer.json").read_text())
        described["model"]["merges"].pop()
        (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    assert states(registry)["tokenizer"] != "in sync"
    build_tokenizer(registry, root=root)
    caches = {"pretrain/sample", "pretrain/prepared", "sft/chats"}
    stale = {key for key, state in states(registry).items() if state == "other tokenizer"}
    assert stale == caches
    assert {key for key, state in states(registry).items() if state == "in sync"} == {"tokenizer", "corpus/prepared"}
    for name in names:
        assert build_dataset(registry, name, root=root).state == "built"
    assert set(states(registry).values()) == {"in sync"}


@pytest.mark.parametrize("kind", ["tokenizer.json", "tiktoken"])
def test_trace_and_report_show_the_text_of_each_kind(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "nowhere"))
    registry, root = project(tmp_path, KINDS[kind]), tmp_path / "cache"
    build_tokenizer(registry, root=root)
    cache = build_dataset(registry, "sample", root=root).directory
    loader = TokenLoader(str(cache / "train"), T=16, B=2, seed=1)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    text = open_tokenizer(root).decode(next(iter(loader)).x[0].tolist())
    word = max(text.replace(EOT, " ").split(), key=len)
    capsys.readouterr()
    assert main(["trace", "--state", str(tmp_path / "state.json"), "--step", "0", "--row", "0"]) == 0
    shown = capsys.readouterr().out
    assert "sample.txt" in shown
    assert word in shown
    assert main(["report", "--config", str(tmp_path / "niels_cache.toml"), "--cache-dir", str(root)]) == 0
    page = (root / "reports/cache.html").read_text(encoding="utf-8")
    assert "cannot be drawn" not in page
    assert sum(word in page for word in WORDS) > 20


@pytest.mark.parametrize("kind", ["tokenizer.json", "tiktoken"])
def test_special_tokens_that_were_edited_build_no_data_set_before_the_tokenizer(tmp_path: Path, kind: str) -> None:
    registry, root = project(tmp_path, KINDS[kind]), tmp_path / "cache"
    build_tokenizer(registry, root=root)
    edited = project(tmp_path, KINDS[kind].replace(NAMED, f'special_tokens = {{ eot = "{EOT}", bos = "<|begin|>" }}'))
    with pytest.raises(NielsCacheError, match="other special tokens") as caught:
        build_dataset(edited, "sample", root=root)
    assert "materialize the tokenizer" in str(caught.value)
    bos = build_tokenizer(edited, root=root).meta["special_token_ids"]["bos"]
    shard = build_dataset(edited, "sample", root=root).directory / "train/shard_00000.bin"
    assert int(np.fromfile(shard, "<u2")[0]) == bos


def test_a_key_of_the_model_at_its_default_and_the_engine_are_in_no_fingerprint(tmp_path: Path) -> None:
    new = {"kind", "encoding", "pattern", "engine"}
    assert not new & settings_that_count(TokenizerSettings(), "tokenizer").keys()
    for table in ("vocab_size = 400", KINDS["tokenizer.json"]):
        plain, reference = (
            graph(project(tmp_path, f"{table}\n{more}"), tmp_path / "cache").tokenizer() for more in ("", 'engine = "reference"')
        )
        assert plain.identity() == reference.identity()


def test_an_sft_data_set_without_roles_is_one_error_that_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = project(tmp_path, KINDS["tokenizer.json"], CHATS)
    build_tokenizer(registry, root=tmp_path / "cache")
    with pytest.raises(NielsCacheError, match=r"\[sft\.chats\].*sys, usr, asst"):
        build_dataset(registry, "chats", root=tmp_path / "cache")
    arguments = ["--config", str(tmp_path / "niels_cache.toml"), "--cache-dir", str(tmp_path / "new")]
    assert main(["doctor", "--offline", *arguments]) != 0
    assert "sys, usr, asst" in capsys.readouterr().out
    roles = f'special_tokens = {{ eot = "{EOT}", sys = "<|sys|>", usr = "<|usr|>", asst = "<|asst|>" }}'
    registry = project(tmp_path, f'model = "tokenizer.json"\n{roles}', CHATS)
    build_tokenizer(registry, root=tmp_path / "cache")
    made = build_dataset(registry, "chats", root=tmp_path / "cache")
    assert made.meta["train_examples"] == 1
    tokens = np.fromfile(made.directory / "train_tokens.bin", "<u2").tolist()
    shown = open_tokenizer(tmp_path / "cache").decode(tokens)
    assert shown == f"<|usr|>the cache{EOT}<|asst|>the token{EOT}"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('encoding = "gpt2"', "encoding"),
        ('model = "x.model"\nencoding = "gpt2"', "tiktoken"),
        ('model = "x.tiktoken"\nencoding = "gpt2"\npattern = "x"', "exclude"),
        ('model = "x.tiktoken"\nencoding = "gpt-2"', "gpt2"),
        ('model = "x.bin"\nkind = "tiktokens"', "tiktoken"),
        ('kind = "tiktoken"', "no model"),
        ('engine = "fast"', "reference"),
        ('special_tokens = { user = "x", eot = "y" }', "user"),
        ('special_tokens = { usr = "x" }', "eot"),
        ('special_tokens = { usr = "x", eot = "x" }', "different"),
    ],
)
def test_keys_that_do_not_fit_are_one_line(tmp_path: Path, table: str, said: str) -> None:
    with pytest.raises(NielsCacheError, match=said) as caught:
        project(tmp_path, table)
    assert "[tokenizer]" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


TRAINED = 'model_type = "bytelevel_bpe"\nvocab_size = 400\ntrain_on = ["sample"]'


def test_a_byte_level_bpe_is_trained_to_the_same_bytes_whatever_the_threads(tmp_path: Path) -> None:
    project(tmp_path, TRAINED)
    program = (
        "import sys\nfrom niels_cache_assets.artifacts.builds import build_tokenizer\n"
        "from niels_cache_assets.config.registry import load_registry\n"
        "from pathlib import Path\nbuild_tokenizer(load_registry(config=sys.argv[1]), root=Path(sys.argv[2]))\n"
    )
    settings = ({"RAYON_NUM_THREADS": "1"}, {"RAYON_NUM_THREADS": "4"}, {"TOKENIZERS_PARALLELISM": "false"})
    written = set()
    for number, variables in enumerate(settings):
        root = tmp_path / f"root{number}"
        command = [sys.executable, "-c", program, str(tmp_path / "niels_cache.toml"), str(root)]
        subprocess.run(command, env={**os.environ, **variables, "PYTHONHASHSEED": str(number)}, check=True)
        files = sorted((root / "tokenizer").iterdir())
        assert [path.name for path in files] == ["meta.json", "tokenizer.json"]
        written.add(hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest())
    assert len(written) == 1


def test_a_trained_byte_level_bpe_loses_nothing_and_its_special_tokens_are_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_assets.tokenizer.training._run_child", _trains_here)
    registry, root = project(tmp_path, TRAINED, CHATS), tmp_path / "cache"
    made = build_tokenizer(registry, root=root)
    assert (made.meta["vocab_size"], made.meta["model_type"]) == (400, "bytelevel_bpe")
    assert sorted(made.meta["special_token_ids"].values()) == [0, 1, 2, 3]
    assert made.meta["trained_on"]["characters_per_token"]["sample"] > 2
    tokenizer = open_tokenizer(root)
    for text in [*sentences(5), *tokenizer.special_tokens.values(), "\x00 中文 😀\n\n"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    for name in ("sample", "chats"):
        assert build_dataset(registry, name, root=root).meta["dropped"] == {}
    assert verify_cache(str(root)) == []
    again = open_model(made.model)
    assert again.special_token_ids() == made.meta["special_token_ids"], "it can be imported as it is"
    for size, said in ((200, "below the 260"), (60_000, "too small")):
        with pytest.raises(NielsCacheError, match=said):
            build_tokenizer(project(tmp_path, TRAINED.replace("400", str(size))), root=tmp_path / "other")


def _trains_here(spec: dict[str, Any]) -> None:
    from niels_cache_assets.tokenizer.training import _train_from_spec

    _train_from_spec(spec)


def test_compare_and_import_take_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_model: Path) -> None:
    registry, root = project(tmp_path, KINDS["tiktoken"]), tmp_path / "cache"
    made = build_tokenizer(registry, root=root)
    build_dataset(registry, "sample", root=root)
    arguments = ["--config", str(tmp_path / "niels_cache.toml"), "--cache-dir", str(root)]
    ranks, other = tmp_path / "x.tiktoken", tmp_path / "tokenizer.json"
    capsys.readouterr()
    assert main(["tokenizer", "compare", "cache", str(ranks), str(other), str(tmp_path), str(tiny_model), "--json", *arguments]) == 0
    compared = json.loads(capsys.readouterr().out)
    sample = compared["sources"][0]["tokens"]
    assert len(set(sample[:4])) == 1, "four files with the same pieces"
    assert compared["models"][0]["sha256"] == made.meta["sha256"]
    assert compared["models"][2]["sha256"] == sha256_file(str(other))
    write_indexed(tmp_path / "y", [[7, 8, len(pieces())]])
    for name, given in (("a", ranks), ("b", made.model)):
        assert main(["import", "megatron", str(tmp_path / "y"), "--name", name, "--tokenizer", str(given), *arguments]) == 0
        meta = read_meta(str(root / "pretrain" / name / "meta.json"))
        assert (meta["tokenizer_sha256"], meta["vocab_size"]) == (made.meta["sha256"], len(pieces()) + 1)
        assert meta["special_token_ids"]["eot"] == len(pieces())
    assert main(["import", "megatron", str(tmp_path / "y"), "--name", "c", "--tokenizer", str(other), *arguments]) == 2
    new = ["--config", str(tmp_path / "niels_cache.toml"), "--cache-dir", str(tmp_path / "new")]
    assert main(["import", "megatron", str(tmp_path / "y"), "--name", "c", "--tokenizer", str(other), *new]) == 0
    meta = read_meta(str(tmp_path / "new/pretrain/c/meta.json"))
    assert (meta["tokenizer_sha256"], meta["special_token_ids"]["eot"]) == (sha256_file(str(other)), len(pieces()))


def test_the_settings_are_those_of_the_configured_model_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "torture_texts", torture_texts)  # `tokenizer prove` proves whole
    (tmp_path / "tokenizer.model").write_bytes(b"of another kind")
    registry = project(tmp_path, KINDS["tiktoken"])
    other = write_ranks(tmp_path / "other.tiktoken")
    ranks = tmp_path / "x.tiktoken"
    assert open_model_at(registry.tokenizer, ranks).special_tokens == {}
    linked = tmp_path / "link.tiktoken"
    linked.symlink_to(ranks)
    for path in (ranks, linked):
        assert open_model_at(registry.tokenizer, path, with_special_tokens=True).special_tokens == {"eot": EOT}
    with pytest.raises(NielsCacheError, match="cut into words"):
        open_model_at(registry.tokenizer, other)
    arguments = ["--config", str(tmp_path / "niels_cache.toml"), "--cache-dir", str(tmp_path / "cache")]
    assert main(["tokenizer", "prove", str(ranks), *arguments]) == 0
    assert main(["tokenizer", "prove", str(other), *arguments]) != 0
    (tmp_path / "cache").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)  # as by default, the root is a folder with the name that stands for its model
    assert main(["tokenizer", "prove", "cache", *arguments]) == 2
    build_tokenizer(registry, root=tmp_path / "cache")
    assert main(["tokenizer", "prove", "cache", *arguments]) == 0
    named = project(tmp_path, KINDS["other name"])  # the kind is a setting too
    assert open_model_at(named.tokenizer, tmp_path / "x.bin").kind == "tokenizer.json"
    assert main(["tokenizer", "prove", str(tmp_path / "x.bin"), *arguments]) == 0
    folder = project(tmp_path, KINDS["folder"])
    assert open_model_at(folder.tokenizer, tmp_path / "tokenizer.json", with_special_tokens=True).special_tokens == {"eot": EOT}
    beside = open_model_at(folder.tokenizer, tmp_path / "tokenizer.model", with_special_tokens=True)
    assert (beside.kind, beside.special_tokens) == ("sentencepiece", {})  # it is not the configured model


@needs_real
def test_import_takes_ranks_only_with_the_sha256_that_a_tokenizer_will_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project(tmp_path, KINDS["tokenizer.json"])
    ranks = shutil.copy(REAL / "gpt2.tiktoken", tmp_path / "gpt2.tiktoken")  # it opens without any setting
    write_indexed(tmp_path / "y", [[7, 8, 50_256]])
    root = tmp_path / "cache"
    arguments = ["--config", str(tmp_path / "niels_cache.toml"), "--cache-dir", str(root), "--tokenizer", str(ranks)]
    assert main(["import", "megatron", str(tmp_path / "y"), "--name", "y", *arguments]) == 2
    assert "[tokenizer]" in capsys.readouterr().err
    assert not (root / "pretrain/y").exists()
    registry = project(tmp_path, f'model = "gpt2.tiktoken"\n{NAMED}')
    assert main(["import", "megatron", str(tmp_path / "y"), "--name", "y", *arguments]) == 0
    meta = read_meta(str(root / "pretrain/y/meta.json"))
    assert meta["tokenizer_sha256"] == build_tokenizer(registry, root=root).meta["sha256"]


@pytest.mark.parametrize("model", ["tokenizer.json", "."])
def test_init_names_the_eot_of_a_model(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path, KINDS["tokenizer.json"])
    monkeypatch.chdir(tmp_path)
    assert main(["init", "sample.txt", "--tokenizer", model, "--out", "new.toml"]) == 0
    registry = load_registry(config="new.toml")
    assert registry.tokenizer.special_tokens == {"eot": EOT}
    assert build_tokenizer(registry, root=tmp_path / "new").meta["special_token_ids"] == {"eot": len(pieces())}


@pytest.mark.parametrize("kind", ["tokenizer.json", "tiktoken"])
def test_the_checks_of_a_tokenizer_pass_and_a_normalizer_is_told(tmp_path: Path, kind: str) -> None:
    from niels_cache_assets.defs.checks.tokenizer import _round_trip, _special_tokens

    registry, root = project(tmp_path, KINDS[kind]), tmp_path / "cache"
    build_tokenizer(registry, root=root)
    tokenizer = open_tokenizer(root)
    assert _special_tokens(tokenizer).passed
    assert _round_trip(tokenizer, imported=True).passed
    write_json(tmp_path / "lossy.json", normalizer={"type": "NFKC"})
    lossy = open_model(tmp_path / "lossy.json", special_tokens={"eot": EOT})
    assert _special_tokens(lossy).passed
    assert not _round_trip(lossy, imported=True).passed
    build_dataset(registry, "sample", root=root)
    assert open_cache(str(root)).tokenizer == str(build_tokenizer(registry, root=root).model)


def test_an_imported_model_that_loses_text_is_a_warning_and_its_meta_is_the_same(tmp_path: Path) -> None:
    registry = project(tmp_path, KINDS["tiktoken"])
    whole = build_tokenizer(registry, root=tmp_path / "whole")
    assert whole.warning is None
    letters = project(tmp_path, KINDS["tiktoken"].replace(WORDS_PATTERN, r"\p{L}+| "))
    lost = build_tokenizer(letters, root=tmp_path / "lost")
    assert lost.warning is not None
    assert "x.tiktoken" in lost.warning
    assert lost.meta.keys() == whole.meta.keys()
    model = {"type": "BPE", "vocab": {character: number for number, character in enumerate("abc ")}, "merges": []}
    few = project(tmp_path, KINDS["tokenizer.json"])
    write_json(tmp_path / "tokenizer.json", model=model, pre_tokenizer=None, decoder=None, added_tokens=[added(4, EOT)])
    assert "round trip" in str(build_tokenizer(few, root=tmp_path / "few").warning)


@needs_real
def test_a_sentencepiece_model_of_another_project_ends_documents_with_its_control_piece(tmp_path: Path) -> None:
    from niels_cache_assets.defs.checks.tokenizer import _special_tokens

    model = REAL.parent / "sentencepiece/mistral_tokenizer.model.v1"
    registry = project(tmp_path, f'model = "{model}"\nspecial_tokens = {{ eot = "</s>", bos = "<s>" }}')
    root = tmp_path / "cache"
    assert build_tokenizer(registry, root=root).meta["special_token_ids"] == {"eot": 2, "bos": 1}
    meta = build_dataset(registry, "sample", root=root).meta
    assert meta["documents"] == {"train": 1, "val": 0}
    assert verify_cache(str(root)) == []
    tokenizer = open_tokenizer(root)
    assert _special_tokens(tokenizer).passed
    assert not {1, 2} & set(tokenizer.encode("a</s><s>b"))
    ids = tokenizer.encode("the cache reads")
    assert tokenizer.decode_continued(ids[1:]).startswith(" "), "a blank is a part of the text"
    assert as_text([1, *ids, 2], tokenizer) == "<|bos|>the cache reads<|eot|>"


REAL_FILES = {
    "gpt2.tiktoken": (EOT, "", 2),
    "qwen.tiktoken": (EOT, 'encoding = "qwen"', 4),
    "deepseek_tokenizer.json": ("<｜end▁of▁sentence｜>", "", 4),
}


@pytest.mark.walk
@needs_real
@pytest.mark.parametrize("name", REAL_FILES)
def test_a_real_model_from_the_file_to_the_first_batch(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    eot, more, width = REAL_FILES[name]
    registry = project(tmp_path, f'model = "{REAL / name}"\nspecial_tokens = {{ eot = "{eot}" }}\n{more}')
    root = tmp_path / "cache"
    build_tokenizer(registry, root=root)
    made = build_dataset(registry, "sample", root=root)
    assert verify_cache(str(root)) == []
    shard = made.directory / "train/shard_00000.bin"
    assert shard.stat().st_size == width * made.meta["train_tokens"]
    batch = next(iter(TokenLoader(str(made.directory / "train"), T=12, B=2, seed=0)))
    text = open_tokenizer(root).decode(batch.x[0].tolist())
    assert set(text.lower().replace(".", " ").split()) & set(WORDS)
    arguments = ["--config", str(tmp_path / "niels_cache.toml"), "--cache-dir", str(root)]
    assert main(["tokenizer", "compare", "cache", str(REAL / "gpt2.tiktoken"), *arguments]) == 0


@pytest.mark.walk
@needs_real
def test_the_example_of_a_mixture_runs_with_the_ranks_of_gpt2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "mixture_share.py"))["main"]
    model = str(REAL / "gpt2.tiktoken")
    example(["--windows", "20", "-T", "64", "--out", str(tmp_path / "x.png"), "--tokenizer", model, "--eot", EOT])
    assert "20 windows of 64 tokens" in capsys.readouterr().out
    assert (tmp_path / "x.png").stat().st_size
    with pytest.raises(SystemExit, match="no eot"):
        example(["--tokenizer", model])
