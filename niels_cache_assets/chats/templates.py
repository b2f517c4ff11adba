"""Chat templates and where they come from: `chatml` is in this package, `model` comes with a tokenizer, and others are files.

Nothing is rendered here. A template is text, and the strings of special tokens that it may use.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_cache_assets.tokenizer.kinds import local_settings
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import CHAT_TEMPLATE_NAME
from niels_cache_runtime.format.meta import sha256_text

CODE_VERSION = "1"  # raise this by hand if the same template would give other tokens or targets
MAX_BYTES = 1 << 20  # of a template

_CONFIG_NAME = "tokenizer_config.json"
_MAP_NAME = "special_tokens_map.json"  # of older tokenizers
_CHATML = r"""{%- for message in messages %}
{%- if message['tool_calls'] or message['content'] is not string %}
{{- raise_exception('ChatML has no form for a call of a tool, or for a message without text') }}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{- message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else %}
{{- message['content'] + '<|im_end|>' }}
{%- endif %}
{{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
_MARKERS = {"chatml": ("<|im_start|>", "<|im_end|>")}


@dataclass(frozen=True, kw_only=True)
class Template:
    """A chat template.

    Attributes:
        name: "chatml", "model", or the name of a file.
        text: The template in jinja2.
        variables: Strings of special tokens by the names that templates use, such as `eos_token`.
        where: Where the text comes from, for messages.
    """

    name: str
    text: str
    variables: Mapping[str, str]
    where: str

    @property
    def sha256(self) -> str:
        return sha256_text(self.text)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything of the template that determines tokens and targets, for fingerprints."""
        return {"sha256": self.sha256, "variables": dict(self.variables), "code_version": CODE_VERSION}

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings that the tokenizer must have as tokens, because text could otherwise imitate them."""
        return _MARKERS.get(self.name, ())

    def require_tokens(self, has: Callable[[str], bool], where: str) -> None:
        """Check that a tokenizer has each marker, and each special token that the template writes by its name.

        Args:
            has: Returns whether the tokenizer has a token.
            where: The tokenizer, for the message.

        Raises:
            NielsCacheError: If a token is missing.
        """
        named = {name: token for name, token in self.variables.items() if re.search(rf"\b{name}\b", self.text)}
        for token in (*self.markers, *named.values()):
            if not has(token):
                raise NielsCacheError(f"{self.where}: {where} has no token {token!r}; choose another template, or a tokenizer that has it")


def find_template(name: str, settings: TokenizerSettings) -> Template | None:
    """Return the template that a data set names, or None for `sentinels`, which is not a template.

    Args:
        name: `sentinels`, `chatml`, `model`, or the path of a file.
        settings: Settings in [tokenizer], whose `model` may have files beside it.

    Raises:
        NielsCacheError: If a file is missing or cannot be a template.
    """
    if name == "sentinels":
        return None
    settings = local_settings(settings)
    variables = _variables(settings)
    if name == "chatml":
        text, where = _CHATML, "template chatml"
    elif name == "model":
        text, where = _template_of_model(settings)
    else:
        text, where = _read(Path(name)), name
    return Template(name=Path(name).name, text=text, variables=variables, where=where)


def _folder(settings: TokenizerSettings) -> Path | None:
    """Return the folder of the imported tokenizer, or None if a tokenizer is trained."""
    if settings.model is None:
        return None
    path = Path(settings.model)
    return path if path.is_dir() else path.parent


def _template_of_model(settings: TokenizerSettings) -> tuple[str, str]:
    """Return the template that comes with the tokenizer, and where it is."""
    folder = _folder(settings)
    if folder is None:
        raise NielsCacheError('template = "model": [tokenizer] names no model, so there is no template of a model; name a model or a file')
    if (folder / CHAT_TEMPLATE_NAME).is_file():
        return _read(folder / CHAT_TEMPLATE_NAME), str(folder / CHAT_TEMPLATE_NAME)
    path = folder / _CONFIG_NAME
    found = _json(path).get("chat_template")
    if isinstance(found, list):  # several templates by name
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
        if found is None:
            raise NielsCacheError(
                f"{path}: its templates are {', '.join(map(str, named))}, none is the default; write one to a .jinja file"
            )
    if not isinstance(found, str):
        raise NielsCacheError(
            f"{folder}: has no {CHAT_TEMPLATE_NAME}, and no chat_template in {_CONFIG_NAME}; give the path of a .jinja file"
        )
    return found, str(path)


def _variables(settings: TokenizerSettings) -> dict[str, str]:
    found = {"eos_token": settings.special_tokens["eot"]}
    if "bos" in settings.special_tokens:
        found["bos_token"] = settings.special_tokens["bos"]
    folder = _folder(settings)
    for path in (folder / _MAP_NAME, folder / _CONFIG_NAME) if folder is not None else ():
        for key, value in _json(path).items():
            text = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(text, str):
                found[key] = text
    return dict(sorted(found.items()))


def _json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty one if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise NielsCacheError(f"{path}: not readable as JSON; copy the file again") from error
    return value if isinstance(value, dict) else {}


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NielsCacheError(f"{path}: the template cannot be read: {error.strerror or error}; correct the path") from error
    if len(content) > MAX_BYTES:
        raise NielsCacheError(f"{path}: has more than {MAX_BYTES:,} bytes, which no chat template has; correct the path")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise NielsCacheError(f"{path}: is not UTF-8 text, so it is no chat template; correct the path") from error
