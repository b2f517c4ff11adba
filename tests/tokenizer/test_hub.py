"""Tokenizers of models on the hub, by name: fetched once at a commit, refused in one line, and never run as code."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from niels_cache_assets.tokenizer.sentencepiece_model import SentencePieceTokenizer
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from tests.helpers import programs
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.tiny import WORDS
from tests.helpers.tokenizer_files import described, write_ranks
from tests.tokenizer.test_bpe_json import tekken

EOT, ASKS, ENDS = "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}" + ASKS + "{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}" + ENDS + "{% endgeneration %}"
    "{% else %}{{ message.content }}" + ENDS + "{% endif %}{% endfor %}"
)
TOKENIZER = json.dumps(described(tokens=dict.fromkeys(["<|begin_of_text|>", EOT, ASKS, ENDS], True))).encode()
LLAMA = {
    "config.json": b"{}",
    "model.safetensors": b"weights" * 100,
    "tokenization_llama.py": b"raise SystemExit('code of the hub was run')",
    "tokenizer.json": TOKENIZER,
    "tokenizer.model": b"never read",
    "tokenizer_config.json": json.dumps({"bos_token": "<|begin_of_text|>", "eos_token": ENDS, "auto_map": {}}).encode(),
    "chat_template.jinja": TEMPLATE.encode(),
}
FOUR_LINES = """\
[tokenizer]
model = "meta/llama"
[sft.chats]
source = "chat_jsonl"
files = ["chats.jsonl"]
template = "model"
"""

Run = Callable[..., str]


@pytest.fixture
def run(hub: LoopbackHub, tmp_path: Path) -> Run:
    """Run a command in a folder with chats, and return its output, once it has ended with the expected status."""
    hub.repositories = {"meta/llama": LLAMA}
    rows = [[{"role": "user", "content": " ".join(WORDS)}, {"role": "assistant", "content": f"{WORDS[0]} {n}"}] for n in range(20)]
    (tmp_path / "chats.jsonl").write_text("".join(f"{json.dumps({'messages': row})}\n" for row in rows))

    def run(*arguments: str, status: int = 0, **env: str) -> str:
        full = {**hub.env, "DAGSTER_HOME": str(tmp_path / "home"), **env}
        done = programs.run("-m", "niels_cache_assets.cli", *arguments, env=full, cwd=tmp_path, timeout=300)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return f"{done.stdout}{done.stderr}"

    return run


def test_init_pins_a_model_whose_builds_then_need_no_hub(
    hub: LoopbackHub, run: Run, tmp_path: Path, tokenizer: SentencePieceTokenizer
) -> None:
    commit = hub.commit("meta/llama")
    run("init", "chats.jsonl", "--tokenizer", "meta/llama")
    text = (tmp_path / "niels_cache.toml").read_text()
    assert 'model = "meta/llama"' in text
    assert f'revision = "{commit}"' in text
    assert f'eot = "{EOT}"' in text
    assert 'template = "model"' in text
    fetched = {path for method, path, _ in hub.requests if method == "GET" and "/resolve/" in path}
    assert {path.rpartition("/")[2] for path in fetched} == {
        *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "chat_template.jinja"),
    }, "neither weights nor code are fetched"
    hub.repositories["meta/pieces"] = {"tokenizer.model": Path(tokenizer.model_path).read_bytes()}
    run("init", "chats.jsonl", "--tokenizer", "meta/pieces", "--out", "pieces.toml")
    assert "special_tokens" not in (tmp_path / "pieces.toml").read_text(), "this model has the default ones"
    hub.repositories["meta/tekken"] = {"tekken.json": tekken(tmp_path / "tekken.json", write_ranks(tmp_path / "a.tiktoken")).read_bytes()}
    (tmp_path / "text.txt").write_text(" ".join(WORDS))
    run("init", "text.txt", "--tokenizer", "meta/tekken", "--out", "tekken.toml")
    assert '"</s>"' in (tmp_path / "tekken.toml").read_text()
    hub.close()
    run("build-all", HF_HUB_OFFLINE="1")
    meta = json.loads((tmp_path / "cache/tokenizer/meta.json").read_text())
    assert (meta["imported"], meta["revision"], meta["special_tokens"]) == ("meta/llama", commit, {"eot": EOT})


def test_four_lines_build_chats_of_a_model(hub: LoopbackHub, run: Run, tmp_path: Path) -> None:
    (tmp_path / "niels_cache.toml").write_text(FOUR_LINES)
    first = run("build-all")
    commit = hub.commit("meta/llama")
    assert f'revision = "{commit}"' in first, "the log says how to pin what was fetched"
    assert EOT in first, "the log says which token was chosen to follow each document"
    sft = json.loads((tmp_path / "cache/sft/chats/meta.json").read_text())
    assert sft["template"]["name"] == "model"
    hub.repositories["meta/llama"] = {**LLAMA, "tokenizer.json": TOKENIZER.replace(b"<|eot_id|>", b"<|another|>")}
    assert run("build-all").count("cache hit in") == 2, "a new commit on main changes nothing here"


def test_files_that_something_else_fetched_are_completed_once_the_hub_answers(hub: LoopbackHub, run: Run, tmp_path: Path) -> None:
    folder = Path(hub.env["HF_HOME"], "hub/models--meta--llama/snapshots", commit := hub.commit("meta/llama"))
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    (tmp_path / "text.txt").write_text(" ".join(WORDS))
    keys = f'[tokenizer]\nmodel = "meta/llama"\nrevision = "{commit}"\n[pretrain.text]\nsource = "text"\nfiles = ["text.txt"]\n'
    (tmp_path / "niels_cache.toml").write_text(keys)
    for hub.down, side_files in ((True, set()), (False, {"tokenizer_config.json"})):
        told = run("build-all", "--only", "tokenizer")
        assert ("only those on this machine" in told) == hub.down
        files = json.loads((tmp_path / "cache/tokenizer/meta.json").read_text())["files"]
        assert files.keys() == {"tokenizer.json", *side_files}
    shutil.rmtree(hub.env["HF_HOME"])
    hub.close()
    assert "cache hit in" in run("build-all", "--only", "tokenizer", HF_HUB_OFFLINE="1"), "the built tokenizer is of the pinned commit"


def test_a_model_that_cannot_be_used_is_refused_in_one_line(hub: LoopbackHub, run: Run, tmp_path: Path) -> None:
    code = {"tokenization_qwen.py": LLAMA["tokenization_llama.py"], "qwen.tiktoken": b"IQ== 0\n"}
    hub.repositories |= {"meta/gated": LLAMA, "meta/code": code}
    hub.gated.add("meta/gated")
    for name, status, facts in [
        ("meta/gated", 2, ("https://huggingface.co/meta/gated", "hf auth login", "licence")),
        ("meta/code", 2, ("no tokenizer.json and no tokenizer.model and no tekken.json", "never run")),
        ("meta/nothing", 2, ("no such model", "https://huggingface.co/meta/nothing", "correct its path")),
        ("my.model", 2, ("does not exist",)),
        ("models/my.json", 2, ("does not exist",)),
    ]:
        told = run("init", "chats.jsonl", "--tokenizer", name, status=status)
        assert len(told.splitlines()) == 1
        assert all(fact in told for fact in facts), told
    hub.down = True
    for env in ({}, {"HF_HUB_OFFLINE": "1"}):
        told = run("init", "chats.jsonl", "--tokenizer", "meta/llama", status=2, **env)
        assert re.search(r"hf download meta/llama --revision main tokenizer\.json .*chat_template\.jinja$", told.strip()), told


def test_a_folder_of_that_name_wins_and_this_is_said(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "meta/llama"
    folder.mkdir(parents=True)
    for name, content in LLAMA.items():
        (folder / name).write_bytes(content)
    (tmp_path / "niels_cache.toml").write_text(FOUR_LINES.replace("[sft", f'revision = "main"\nspecial_tokens = {{eot = "{EOT}"}}\n[sft'))
    told = run("build-all", "--only", "tokenizer")
    assert "meta/llama on this machine" in told
    assert "revision" in told
    run("init", "chats.jsonl", "--tokenizer", "meta/llama", "--out", "other.toml")
    assert "on this machine" in (tmp_path / "other.toml").read_text()
    assert "revision" not in (tmp_path / "other.toml").read_text()


@pytest.mark.parametrize("path", ["/a/b", "./a/b", "../b", "a/b/c", "b.model", "a/b.json", "a/b.tiktoken", "~/b"])
def test_a_path_is_no_name(path: str) -> None:
    assert TokenizerSettings(model=path).hub_name is None
    assert TokenizerSettings(model="hf://a/b").hub_name == TokenizerSettings(model="a/b").hub_name == "a/b"
