"""The command `import megatron PREFIX --name NAME`, which makes a pretrain cache from tokens of another project.

It prints which facts about the tokens are unknown.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.defaults import ROLE_KEYS
from niels_cache_assets.base.wording import SHORT_SHA256, format_count
from niels_cache_assets.cli.command import TOKENIZER, WHERE, Command, failing, option, switch, whole_number
from niels_cache_assets.cli.console import display, print_facts
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.project.registry import Registry
    from niels_cache_runtime.format.layout import Split
    from niels_cache_runtime.format.meta import Meta

FORMATS = ("megatron",)


COMMAND = Command(
    options=(
        option("format", "FORMAT", "megatron", choices=FORMATS),
        option("prefix", "PREFIX", "path of the train files without .bin and .idx"),
        option("--name", "NAME", "name of the new data set, which must not be in the configuration", required=True),
        option("--val", "PREFIX", "path of the val files (default: val is empty)"),
        option("--tokenizer", "FILE", "the model that produced the tokens: SentencePiece, tokenizer.json or tiktoken ranks"),
        option("--tokenizer-sha256", "HEX", "sha256 of the tokenizer that produced the tokens"),
        option("--vocab-size", "N", "number of token ids in the vocabulary", type=whole_number),
        option("--eot", "ID", "token id that ends each document", type=whole_number),
        switch("--force", "replace an imported data set with this name"),
    ),
    usage="FORMAT PREFIX --name NAME ",
    description="""\
Create a pretrain cache from another project's tokens. `import megatron PREFIX` reads PREFIX.bin and
PREFIX.idx into the train split of a new cache NAME, with the same documents in the same order, and
verifies the result.

Megatron-LM's files do not record the tokenizer. Pass --tokenizer or --tokenizer-sha256; if this is the
tokenizer of the cache directory, its vocabulary size and EOT are also known. Alternatively, pass
--vocab-size and --eot. Otherwise, the cache records both as unknown, and commands show token ids instead
of text.""",
    examples="""\
  niels-cache import megatron data/pile_text_document --name pile --vocab-size 50257 --eot 50256
  niels-cache import megatron data/wiki_train --val data/wiki_val --name wiki --tokenizer cache/tokenizer/spm.model""",
    offers={"name": ()},
)


def run(arguments: argparse.Namespace) -> None:
    """Import, and print a summary."""
    from niels_cache_assets.base.beside import load_beside
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.cli.progress import transfer_steps
    from niels_cache_runtime.format.layout import dataset_dir

    registry, root = open_registry(arguments)
    _require_free_name(arguments, registry, root)
    megatron = load_beside("formats", "megatron_import")
    vocabulary = megatron.Vocabulary(**_vocabulary(arguments, registry, root))
    vocabulary.check()
    prefixes: dict[Split, str] = {"train": megatron.as_prefix(arguments.prefix)}
    if arguments.val is not None:
        prefixes["val"] = megatron.as_prefix(arguments.val)
    megatron.require_prefixes(prefixes)
    directory = dataset_dir(root, "pretrain", arguments.name)
    with failing(), transfer_steps(f"importing {arguments.name}") as on_step:
        meta = megatron.import_megatron(
            prefixes,
            directory,
            vocabulary=vocabulary,
            shard_bytes=registry.build.shard_bytes,
            token_dtype=registry.build.token_dtype,
            progress=lambda doing, done, total: on_step(f"{doing} {arguments.name}", done, total),
        )
    if not print_facts(arguments, {"name": arguments.name, "directory": directory, "meta": meta}):
        for line in _summary(arguments.name, directory, meta):
            display(line)


def _require_free_name(arguments: argparse.Namespace, registry: Registry, root: Path) -> None:
    from niels_cache_assets.cli.context import find_caches
    from niels_cache_assets.project.registry import is_valid_name

    name = arguments.name
    if not is_valid_name(name):
        raise NielsCacheError(f"{WHERE}: --name {name!r}: use letters, digits, _ - . with no leading dot and no two in a row")
    if name in (TOKENIZER, *registry.sources):
        raise NielsCacheError(
            f"{WHERE}: --name {name}: is the name of a configured data set, whose build would overwrite it; choose another name"
        )
    cache = find_caches(registry, root).get(name)
    if cache is None or not cache.exists:
        return
    imported = cache.kind == "pretrain" and (cache.meta().get("source") or {}).get("kind") in FORMATS
    if not imported:
        raise NielsCacheError(f"{cache.directory}: exists and was not imported; choose another --name")
    if not arguments.force:
        raise NielsCacheError(f"{cache.directory}: exists; choose another --name, or replace it with --force")


def _vocabulary(arguments: argparse.Namespace, registry: Registry, root: Path) -> dict[str, Any]:
    """Return the facts about the tokens that the options give: the fields of `Vocabulary`.

    Raises:
        NielsCacheError: If the options contradict each other or the tokenizer of the cache root.
    """
    from niels_cache_runtime.format.layout import META_NAME, tokenizer_dir
    from niels_cache_runtime.format.meta import read_meta, sha256_file

    sha256, size, ids = arguments.tokenizer_sha256, None, dict[str, int | None].fromkeys(ROLE_KEYS)
    if sha256 is not None and not re.fullmatch("[0-9a-f]{64}", sha256):
        raise NielsCacheError(f"{WHERE}: --tokenizer-sha256 {sha256}: must be 64 digits 0-9a-f, as sha256sum prints them")
    meta_path = tokenizer_dir(root) / META_NAME
    known = read_meta(meta_path) if meta_path.exists() else None
    if arguments.tokenizer is not None:
        file = _model_file(arguments.tokenizer)
        found: str | None = sha256_file(file)
        if known is not None and found in (entry["sha256"] for entry in known.get("files", {}).values()):
            found = known["sha256"]  # the ranks of tiktoken alone do not show which tokenizer they belong to
        elif known is None:
            found, size, ids = _read_model(file, registry)
        if sha256 not in (None, found):
            raise NielsCacheError(f"{arguments.tokenizer}: has sha256 {found}, not the --tokenizer-sha256 given")
        sha256 = found
    if sha256 is not None and known is not None:
        if known["sha256"] != sha256:
            other = f"has another tokenizer ({known['sha256'][:SHORT_SHA256]})"
            raise NielsCacheError(f"{tokenizer_dir(root)}: {other}, and a cache directory has only one; give another --cache-dir")
        size, ids = known["vocab_size"], {role: known["special_token_ids"].get(role) for role in ROLE_KEYS}
    if arguments.vocab_size is not None and size is not None and arguments.vocab_size != size:
        raise NielsCacheError(f"{WHERE}: --vocab-size {arguments.vocab_size}: the tokenizer has {size}; leave it out")
    if arguments.eot is not None:  # documents may end with an id that is not the EOT of this tokenizer
        ids["eot"] = arguments.eot
    return {"tokenizer_sha256": sha256, "vocab_size": arguments.vocab_size if size is None else size, "special_ids": ids}


def _model_file(given: str) -> Path:
    from niels_cache_assets.tokenizer.tokenizer_json import json_file

    file = Path(given)
    if file.is_dir():
        try:
            file = json_file(file)
        except NielsCacheError as error:
            raise NielsCacheError(f"{WHERE}: --tokenizer {error}") from error
    if not file.is_file():
        raise NielsCacheError(f"{WHERE}: --tokenizer {given}: no such file; give the path of a model")
    return file


def _read_model(path: Path, registry: Registry) -> tuple[str | None, int, dict[str, int | None]]:
    """Return the sha256 of a tokenizer, its number of ids, and the ids of the configured special tokens.

    An id is None if the model lacks this token.
    """
    from niels_cache_assets.tokenizer.kinds import is_configured_model, open_model_at
    from niels_cache_assets.tokenizer.settings import infer_model_kind

    settings = registry.tokenizer
    if infer_model_kind(path) == "tiktoken" and not is_configured_model(settings, path):
        reason = "its sha256 depends on its special tokens and its pattern; name this file in [tokenizer], with special_tokens"
        raise NielsCacheError(f"{WHERE}: --tokenizer {path}: is a rank file; {reason}")
    tokenizer = open_model_at(settings, path, with_special_tokens=True)
    ids = {role: tokenizer.token_id(settings.special_tokens[role]) for role in ROLE_KEYS if role in settings.special_tokens}
    return tokenizer.model_sha256, tokenizer.vocab_size, {**dict.fromkeys(ROLE_KEYS), **ids}


def _summary(name: str, directory: Path, meta: Meta) -> Iterator[str]:
    from niels_cache_runtime.format.layout import token_dtype_of

    documents, facts = meta["documents"], meta["facts"]
    yield (
        f"{name}: {format_count(meta['train_tokens'], 'token')} in {format_count(documents['train'], 'document')} for train, "
        f"{meta['val_tokens']:,} in {documents['val']:,} for val, verified, in {directory}"
    )
    if meta["dropped"]:
        yield f"dropped: {format_count(meta['dropped']['empty'], 'document')} without tokens"
    if "documents_of_several_sequences" in facts:
        yield f"joined: the sequences of {format_count(facts['documents_of_several_sequences'], 'document')} that had several"
    sha256, size, eot = meta["tokenizer_sha256"], meta["vocab_size"], meta["special_token_ids"]["eot"]
    yield f"tokenizer: {sha256 or 'unknown (--tokenizer, --tokenizer-sha256): commands show ids instead of text'}"
    unknown = f"unknown (--vocab-size): ids were only checked to fit {token_dtype_of(meta).name}"
    yield f"vocabulary: {f'{size:,} ids' if size else unknown}"
    if eot is None:
        hint = f"; every document ends with {facts['every_document_ends_with']}" if "every_document_ends_with" in facts else ""
        yield f"EOT: unknown (--eot){hint}"
    elif meta["append_eot"]:
        yield f"EOT: {eot}, after each document"
    else:
        yield (
            f"EOT: {eot}; {format_count(facts['documents_without_eot'], 'document')} without it at the end, and "
            f"{facts['eot_inside_documents']:,} times inside documents; documents are separated by their recorded ends only"
        )
