"""A folder like that of a model that exists: a tokenizer, its settings and its chat template. Trained in a moment on made-up text."""

import json
from collections.abc import Sequence
from pathlib import Path

from niels_cache_assets.chats.templates import Template, find_template
from niels_cache_assets.config.tables import TokenizerSettings
from niels_cache_assets.tokenizer.tokenizer_json import HuggingFaceTokenizer
from tests.tiny import sentences

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


def opened_model(folder: Path) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(folder, special_tokens=ROLES)


def template_of(text: str, *, where: str = "test.jinja") -> Template:
    return Template(name="test.jinja", text=text, variables={"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>"}, where=where)


def chatml() -> Template:
    found = find_template("chatml", TokenizerSettings())
    assert found is not None
    return found
