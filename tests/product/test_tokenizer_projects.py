"""Whole projects with tokenizers of other projects: from the file to the first batch, and what each command makes of them."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.state import state_of
from niels_cache_assets.cli import main
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.tokenizer.decoding import as_text, open_tokenizer
from niels_cache_assets.tokenizer.kinds import open_model, open_model_at
from niels_cache_runtime import TokenLoader
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import read_meta, sha256_file
from niels_cache_runtime.verify import verify_cache
from tests.exchange.test_megatron_import import write_indexed
from tests.helpers.builds import build_dataset, build_tokenizer, prepare_corpus
from tests.helpers.tiny import sentences
from tests.helpers.tokenizer_files import EOT, REAL, WORDS_PATTERN, added, needs_real, pieces, write_json, write_ranks
from tests.tokenizer.test_training import configure

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


@pytest.mark.parametrize("swapped", ["file", "kind", "role"])
def test_what_is_swapped_makes_exactly_its_caches_stale(tmp_path: Path, swapped: str) -> None:
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
    elif swapped == "role":
        registry = project(tmp_path, KINDS["tokenizer.json"].replace(NAMED, roles.replace(" }", ', bos = "<|begin|>" }')), more)
    else:
        described = json.loads((tmp_path / "tokenizer.json").read_text())
        described["model"]["merges"].pop()
        (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    assert states(registry)["tokenizer"] != "in sync"
    build_tokenizer(registry, root=root)
    caches = {"pretrain/sample", "pretrain/prepared", "sft/chats"}
    stale = {key for key, state in states(registry).items() if state != "in sync"}
    assert stale == caches
    assert {key for key, state in states(registry).items() if state == "in sync"} == {"tokenizer", "corpus/prepared"}
    for name in names:
        assert build_dataset(registry, name, root=root).state == "built"
    assert set(states(registry).values()) == {"in sync"}


def test_special_tokens_that_were_edited_build_no_data_set_before_the_tokenizer(tmp_path: Path) -> None:
    kind = "tiktoken"
    registry, root = project(tmp_path, KINDS[kind]), tmp_path / "cache"
    build_tokenizer(registry, root=root)
    edited = project(tmp_path, KINDS[kind].replace(NAMED, f'special_tokens = {{ eot = "{EOT}", bos = "<|begin|>" }}'))
    with pytest.raises(NielsCacheError, match="other special tokens") as caught:
        build_dataset(edited, "sample", root=root)
    assert "materialize the tokenizer" in str(caught.value)
    bos = build_tokenizer(edited, root=root).meta["special_token_ids"]["bos"]
    shard = build_dataset(edited, "sample", root=root).directory / "train/shard_00000.bin"
    assert int(np.fromfile(shard, "<u2")[0]) == bos


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
        "import sys\nfrom tests.helpers.builds import build_tokenizer\n"
        "from niels_cache_assets.project.registry import load_registry\n"
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
    assert main(["tokenizer", "prove", str(other), *arguments]) != 0
    (tmp_path / "cache").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)  # as by default, the root is a folder with the name that stands for its model
    assert main(["tokenizer", "prove", "cache", *arguments]) == 2
    build_tokenizer(registry, root=tmp_path / "cache")
    assert main(["tokenizer", "prove", "cache", *arguments]) == 0
    named = project(tmp_path, KINDS["other name"])  # the kind is a setting too
    assert open_model_at(named.tokenizer, tmp_path / "x.bin").kind == "tokenizer.json"
    folder = project(tmp_path, KINDS["folder"])
    assert open_model_at(folder.tokenizer, tmp_path / "tokenizer.json", with_special_tokens=True).special_tokens == {"eot": EOT}
    with pytest.raises(NielsCacheError, match="not a SentencePiece model"):  # it is not the configured model, so its name tells its kind
        open_model_at(folder.tokenizer, tmp_path / "tokenizer.model", with_special_tokens=True)


@pytest.mark.parametrize("model", ["."])
def test_init_names_the_eot_of_a_model(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path, KINDS["tokenizer.json"])
    monkeypatch.chdir(tmp_path)
    assert main(["init", "sample.txt", "--tokenizer", model, "--out", "new.toml"]) == 0
    registry = load_registry(config="new.toml")
    assert registry.tokenizer.special_tokens == {"eot": EOT}
    assert build_tokenizer(registry, root=tmp_path / "new").meta["special_token_ids"] == {"eot": len(pieces())}


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
