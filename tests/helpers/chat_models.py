"""A folder like that of a model that exists: a tokenizer, its settings and its chat template. Trained in a moment on made-up text."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.chats.templates import Template, find_template
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from niels_cache_assets.tokenizer.tokenizer_json import HuggingFaceTokenizer
from tests.helpers.tiny import sentences

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|sys|>", "<|usr|>", "<|asst|>")
ROLES = {"eot": "<|endoftext|>", "sys": "<|sys|>", "usr": "<|usr|>", "asst": "<|asst|>"}
MARKED = """\
{{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
[A] {% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{%- else %}
[{{ message.role }}] {{ message.content }}
{% endif %}
{%- endfor %}
"""
UNMARKED = """\
{%- for message in messages %}
{{- '[' + message.role + '] ' + message.content + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '[assistant] ' }}{% endif %}
"""


def model_folder(folder: Path, *, template: str = MARKED, texts: Sequence[str] = (), vocab_size: int = 500) -> Path:
    """Write the folder of a model with a byte-level BPE and all of SPECIAL."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[*SPECIAL], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*sentences(200), *texts], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "bos_token": {"content": "<|endoftext|>", "special": True}, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model, which no test changes."""
    return model_folder(tmp_path_factory.mktemp("model") / "model")


def opened_model(folder: Path) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(folder, special_tokens=ROLES)


def chat_project(folder: Path, model: Path, tables: str, **rows: Sequence[dict[str, Any]]) -> Registry:
    """Write a configuration with the tokenizer of the model and these tables, and the rows of each NAME to NAME.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in values), encoding="utf-8")
    tokens = ", ".join(f"{role} = {json.dumps(token)}" for role, token in ROLES.items())
    config = f"[tokenizer]\nmodel = {json.dumps(str(model))}\nspecial_tokens = {{ {tokens} }}\n{tables}"
    (folder / "niels_cache.toml").write_text(config, encoding="utf-8")
    return load_registry(profile="quickstart", config=str(folder / "niels_cache.toml"))


def examples_on_disk(folder: Path, split: str) -> list[tuple[list[int], list[bool]]]:
    """Return the tokens of each example of a cache with spans, and which of them the spans make targets."""
    tokens = np.fromfile(folder / f"{split}_tokens.bin", "<u2").tolist()
    starts = [*np.load(folder / f"{split}_idx.npy").tolist(), len(tokens)]
    mask = np.zeros(len(tokens), dtype=bool)
    for begin, end in np.load(folder / f"{split}_targets.npy").tolist():
        mask[begin:end] = True
    return [(tokens[begin:end], mask[begin:end].tolist()) for begin, end in pairwise(starts)]


def template_of(text: str, *, where: str = "test.jinja") -> Template:
    return Template(name="test.jinja", text=text, variables={"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>"}, where=where)


def chatml() -> Template:
    found = find_template("chatml", TokenizerSettings())
    assert found is not None
    return found
