"""The text of a first niels_cache.toml. Data sets that the user requests are tables; further possible settings are comments."""

import argparse
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.tokenizer_sample import spool_sample
from niels_cache_assets.base import defaults
from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.base.toml import as_toml
from niels_cache_assets.base.wording import file_size
from niels_cache_assets.chats.templates import find_template
from niels_cache_assets.cli.detection import DetectedKind, Proposal, SeenFiles, recognize
from niels_cache_assets.project.merging import SOURCES
from niels_cache_assets.project.registry import Registry, is_valid_name, load_registry
from niels_cache_assets.project.shipped import ABOUT, catalog
from niels_cache_assets.project.tables import BuildSettings
from niels_cache_assets.sources.reading.compressed import COMPRESSIONS
from niels_cache_assets.tokenizer.hub import fetch_model
from niels_cache_assets.tokenizer.kinds import eot_of, local_settings
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES

_BUDGETS = ("train_tokens", "val_tokens")
_BYTES_PER_PIECE = 250  # bytes of text for each piece; with less text, training often cannot find enough pieces
_MIN_PIECES = 400  # bytes and special tokens take 260 of these pieces
_FIXED_PIECES = 264  # bytes, special tokens, and the mark of a blank
_UNCERTAIN = 30  # words that may not become pieces
_LONG_WORD = 16  # characters of the longest piece
_SAMPLED = 1 << 22  # bytes of text that are read to see which vocabulary fits
_COMPRESSED = (*COMPRESSIONS, ".parquet")
_COMPRESSION = 3  # bytes of text for each byte of a compressed file, roughly
_TEMPLATE = ('template = "model"  # chats as the model of the tokenizer expects them; it learns only the words of the assistant',)
_FORMS = {
    "kto": "only the answers that people liked",
    "kind": "preference pairs",
    "messages_field": "conversations in {messages_field!r}",
    "instruction_field": "{instruction_field!r} and its answer in {output_field!r}",
    "text_field": "text in {text_field!r}",
}


def render(arguments: argparse.Namespace, seen: list[SeenFiles]) -> str:
    """Return the text of the file that the arguments of `init` request.

    Args:
        arguments: The arguments.
        seen: Receives the files that were found.

    Raises:
        NielsCacheError: If a file is missing, or contains neither text nor conversations.
    """
    return "\n\n".join(_sections(arguments, seen)) + "\n"


def fit_vocabulary(text: str, registry: Registry, arguments: argparse.Namespace) -> str:
    """Return the text of the file with a vocabulary that a tokenizer can be trained for on the data.

    Each character needs a piece, even if there are thousands. If the text repeats itself, it has few other pieces: about as many as it has
    words more than once, or pairs of characters in long words, since some scripts have no blanks. Builds of repetitive, Chinese and other
    texts showed that three quarters of them are always found, apart from the first.

    Nothing changes if the arguments decide the vocabulary, or if some text is not on this machine.

    Raises:
        NielsCacheError: If there is no text.
    """
    if arguments.tokenizer or arguments.vocab_size or not _is_known(arguments):
        return text
    settings = registry.tokenizer.model_copy(update={"sample_bytes": _SAMPLED // len(registry.sources)})
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder, "sample")
        spool_sample(replace(registry, tokenizer=settings), Path(folder), sample, {}, lambda line: None)
        found = sample.read_text(encoding="utf-8", errors="replace")
    words = Counter(found.split())
    pairs = Counter(word[start : start + 2] for word in words if len(word) > _LONG_WORD for start in range(0, len(word) - 1, 2))
    repeated = sum(count > 1 for counts in (words, pairs) for count in counts.values())
    needed = _FIXED_PIECES + len({*found} - {*" \n"})
    most = needed + max(0, repeated - _UNCERTAIN) * 3 // 4
    fitting = min(max(registry.tokenizer.vocab_size, needed + _UNCERTAIN), most)
    if fitting == registry.tokenizer.vocab_size:
        return text
    return re.sub(r"^(# )?vocab_size = \w+", f"vocab_size = {fitting:_}", text, count=1, flags=re.MULTILINE)


def catalog_table(name: str) -> str:
    """Return the table of a shipped data set, as it would be in a configuration file.

    Raises:
        NielsCacheError: If the catalog does not have this name.
    """
    if name not in catalog():
        raise_unknown_choice("catalog", "no data set", name, catalog())
    family, table = catalog()[name]
    model = SOURCES[family][table["source"]]
    lines = [f"[{family}.{name}]  # {ABOUT[name].what}", *(f"{key} = {as_toml(value)}" for key, value in table.items())]
    for key in _BUDGETS:
        default = model.model_fields[key].default if key in model.model_fields else None
        if default is not None:
            lines.append(f"# {key} = {default:_}  # {'less for a first try' if key == 'train_tokens' else 'kept for val'}")
    return "\n".join(lines)


def _sections(arguments: argparse.Namespace, seen: list[SeenFiles]) -> Iterator[str]:
    yield "# What niels-cache builds here. Every key is explained in docs/configuration.md; paths are relative to this file."
    if arguments.profile:
        yield f"profile = {as_toml(arguments.profile)}  # its data sets are built, and this file adds to them"
    shipped = load_registry(profile=arguments.profile, config=os.devnull)
    default_dir = os.path.relpath(shipped.build.cache_dir, os.path.dirname(os.devnull)) if arguments.profile else BuildSettings().cache_dir
    cache_dir = f"# cache_dir = {as_toml(default_dir)}"
    if arguments.cache_dir is not None:
        cache_dir = f"cache_dir = {as_toml(_path(arguments.cache_dir, arguments))}"
    yield f"""\
[build]
{cache_dir}  # root of all caches
# seed = {shipped.build.seed}  # of shuffles and splits; the same seed makes the same bytes"""
    proposals = recognize(arguments.data, text_field=arguments.text_field, seen=seen)
    yield _tokenizer(arguments, shipped.tokenizer.vocab_size if arguments.profile else TokenizerSettings().vocab_size, seen)
    taken = {*shipped.sources}
    if "roam" in arguments.catalog:
        raise NielsCacheError("--from roam: does not say which folder holds your notes; give it to init: niels-cache init PATH")
    tables = [catalog_table(name) for name in dict.fromkeys(arguments.catalog)]
    tables += _own_tables(arguments, proposals, taken.union(arguments.catalog))
    yield from tables
    if any(table.startswith("[pretrain.") for table in tables):
        yield """\
[dedup]
verify = "jaccard"  # near duplicates, if prepare names "dedup", are found by their texts too (docs/cleaning.md)"""
    if arguments.profile:
        yield """\
# A data set of your own is a table with a name of your choice (niels-cache init PATH looks into your files and writes it):
#
# [pretrain.books]
# source = "text"  # or jsonl, parquet, markdown_folder, huggingface, wikipedia, ...
# files = ["books/*.txt"]
#
# [sft.chats]
# source = "chat_jsonl"
# files = ["chats.jsonl"]"""


def _tokenizer(arguments: argparse.Namespace, default: int, seen: Sequence[SeenFiles]) -> str:
    if arguments.tokenizer is not None:
        settings = TokenizerSettings(model=arguments.tokenizer)
        model, where, revision = _path(arguments.tokenizer, arguments), "on this machine", []
        if settings.hub_name is not None:
            model, where = arguments.tokenizer, "of the hub"
            revision = [f"revision = {as_toml(fetch_model(settings.hub_name, None).parent.name)}"]
        elif not Path(str(settings.model)).exists():
            raise NielsCacheError(f"{arguments.tokenizer}: does not exist; correct --tokenizer")
        lines = ["[tokenizer]", f"model = {as_toml(model)}  # {where}, used unchanged, instead of training one", *revision]
        local = local_settings(settings)
        if (eot := eot_of(str(local.model))) is not None:  # a model of another project
            note = "" if _has_template(local) else "; SFT data also needs sys, usr, asst"
            lines.append(f"special_tokens = {{ eot = {as_toml(eot)} }}  # follows each document: check its name{note}")
        return "\n".join(lines)
    setting = f"# vocab_size = {default:_}" if arguments.vocab_size is None else f"vocab_size = {arguments.vocab_size:_}"
    why = "pieces in all; up to 65_536, a token takes two bytes, otherwise four"
    text_bytes = sum(
        each.bytes * (_COMPRESSION if each.ending.lower().endswith(_COMPRESSED) else 1)
        for each in seen
        if isinstance(each.outcome, DetectedKind)
    )
    if arguments.vocab_size is None and _is_known(arguments) and text_bytes < default * _BYTES_PER_PIECE:
        fitting = max(text_bytes // _BYTES_PER_PIECE // 100 * 100, _MIN_PIECES)
        setting, why = f"vocab_size = {fitting:_}", f"pieces in all: for {file_size(text_bytes)} of text; with more of it, {default:_}"
    return f"""\
[tokenizer]
{setting}  # {why}
# model = "my.model"  # a model to use instead of training one: SentencePiece, tokenizer.json, tiktoken ranks"""


def _is_known(arguments: argparse.Namespace) -> bool:
    """Return whether all text is on this machine."""
    return not (arguments.profile or arguments.catalog or arguments.hub or any("://" in path for path in arguments.data))


def _has_template(settings: TokenizerSettings) -> bool:
    try:
        return find_template("model", settings) is not None
    except NielsCacheError:
        return False


def _own_tables(arguments: argparse.Namespace, proposals: Sequence[Proposal], taken: set[str]) -> Iterator[str]:
    hints = f"""\
# val_frac = {defaults.VAL_FRAC:g}  # share of the documents that goes to val
# prepare = ["clean", "dedup"]  # filter and deduplicate first (docs/cleaning.md)"""
    families = [proposal.kind.family for proposal in proposals]
    for proposal in sorted(proposals, key=lambda proposal: FAMILIES.index(proposal.kind.family)):
        default = _default_name(proposal.kind, alone=families.count("pretrain") == 1)
        yield _own_table(proposal, _unique_name(default, taken), arguments, hints)
    for dataset in arguments.hub:
        owner_name, _, config = dataset.partition(":")
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", owner_name):
            raise NielsCacheError(f"--hub {dataset}: is not the name of a hub data set; write OWNER/NAME or OWNER/NAME:CONFIG")
        name = _unique_name(re.sub(r"[^A-Za-z0-9_]+", "_", owner_name.rpartition("/")[2]).lower(), taken)
        chosen = f"config = {as_toml(config)}" if config else '# config = "en"  # if the data set has several'
        yield f"""\
[pretrain.{name}]
source = "huggingface"
dataset = {as_toml(owner_name)}
{chosen}
# text_field = "text"  # which column is read
train_tokens = 10_000_000  # budgets: so much of the stream is read; without budgets all of it
val_tokens = 100_000
# pinned_revision = "main"  # a commit, to always read the same text"""


def _default_name(kind: DetectedKind, *, alone: bool) -> str:
    if kind.family == "sft":
        return "chats"
    return {"markdown_folder": "my_notes", "roam": "roam"}.get(kind.source, "my_text" if alone else f"my_{kind.source}")


def _own_table(proposal: Proposal, name: str, arguments: argparse.Namespace, hints: str) -> str:
    kind, keys = proposal.kind, dict(proposal.kind.keys)
    paths = [_path(path, arguments) for path in proposal.paths]
    form = describe_fields(keys)
    lines = [
        f"[{kind.family}.{name}]{f'  # {form}' if form else ''}",
        f"source = {as_toml(kind.source)}",
        f"{kind.path_key} = {as_toml(paths if kind.path_key == 'files' else paths[0])}",
        *(f"{key} = {as_toml(value)}" for key, value in keys.items()),
        *(_TEMPLATE if kind.family == "sft" and _has_template(TokenizerSettings(model=arguments.tokenizer)) else ()),
        hints if kind.family == "pretrain" else f"# val_frac = {defaults.VAL_FRAC:g}  # share of the conversations that goes to val",
    ]
    return "\n".join(lines)


def describe_fields(keys: Mapping[str, Any]) -> str:
    """Return a note on the fields that a table reads, such as `text in 'body'`, empty if the table sets no key for a field."""
    return next((words.format(**keys) for key, words in _FORMS.items() if key in keys), "")


def _unique_name(default: str, taken: set[str]) -> str:
    base = default if is_valid_name(default) else "my_data"
    name = next(name for name in (base, *(f"{base}_{number}" for number in range(2, 1000))) if name not in taken)
    taken.add(name)
    return name


def _path(path: str, arguments: argparse.Namespace) -> str:
    """Return the path as the configuration file must write it."""
    if "://" in path or path.startswith("~") or os.path.isabs(path):
        return path
    return os.path.relpath(path, Path(arguments.out).parent)
