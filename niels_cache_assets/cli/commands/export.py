"""The command `export FORMAT NAME`, which writes a pretrain cache as files of another project, or the documents of a corpus as text.

niels_cache_formats defines the formats of tokens, and exchange/corpus_text.py defines the files of text.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.wording import file_size, format_count
from niels_cache_assets.cli.command import (
    PRETRAIN,
    WHERE,
    Command,
    failing,
    option,
    refuse_options,
    switch,
    whole_number,
)
from niels_cache_assets.cli.console import display, new_table, print_facts
from niels_cache_assets.exchange import FORMATS
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.exchange.formats import ExportSettings

TEXT = "text"

COMMAND = Command(
    options=(
        option("format", "FORMAT", "megatron, nanogpt, llmc, datatrove, olmo, npy or text", choices=(*FORMATS, TEXT)),
        option("name", "NAME", "a built pretrain data set"),
        option("--out", "PATH", "folder to write to; for megatron, the PREFIX of the files", required=True),
        option(
            "--split", "SPLIT", "train, val or all (default: all splits that are not empty)", choices=("train", "val", "all"), default="all"
        ),
        option(
            "--max-bytes",
            "N",
            "maximum size of the tokens per file (default: megatron 512 GB, datatrove 200 GB, olmo 1 GiB, llmc and npy 100 million tokens)",
            type=whole_number,
        ),
        option("--key", "KEY", "megatron: name the files PREFIX_KEY_document, as preprocess_data.py does"),
        option(
            "--link",
            "HOW",
            "megatron, if a .bin equals one shard: reflink (default: a copy that shares disk blocks, if the file system can), "
            "hardlink (a second name of the cache's file) or copy",
            choices=("reflink", "hardlink", "copy"),
        ),
        option("--file-type", "TYPE", "text: jsonl.zst (default) or parquet", choices=("jsonl.zst", "parquet")),
        switch("--force", "replace an older export at the same path"),
        switch("--dry-run", "print the files, their sizes, and the files that --force would delete; write nothing"),
    ),
    usage="FORMAT NAME --out PATH ",
    description="""\
Write a pretrain cache as the files that other projects train from. FORMAT is one of

  megatron   Megatron-LM: PREFIX.bin and PREFIX.idx, where PREFIX is --out; with several splits
             PREFIX_train and PREFIX_val; over --max-bytes PREFIX_00000, PREFIX_00001, ...
  nanogpt    nanoGPT: train.bin and val.bin
  llmc       llm.c: NAME_train_000000.bin, ... of 100 million tokens
  datatrove  datatrove, nanotron: train/NAME_00000_unshuffled.ds, ... with .index and .metadata
  olmo       OLMo-core: NAME_train/part-00000.npy, ... without a header, with .csv.gz
  npy        train/NAME_train_000000.npy, ... of 100 million tokens, for numpy.load, build-nanogpt
             and our DatasetLoader (OLMo-core does not read them: its .npy have no header)

  text       the documents of a data set with `prepare`, cleaned, without duplicates and repeated text:
             NAME-00000.jsonl.zst, ... (or .parquet) with id, text, title, file, row and split,
             and NAME.json with counts and sha256; if interrupted, the same command resumes

EOT follows each document, as in the cache; for llm.c, EOT precedes each document. The files appear only
when all of them are complete. The list in *.files tells --force which files to replace. For nanogpt and
olmo, export prints the lines to add to the code of that project.""",
    examples="""\
  niels-cache export megatron wikitext --split train --out data/wikitext --key text
  niels-cache export nanogpt wikitext --out ../nanoGPT/data/wikitext
  niels-cache export text books --out data/books --file-type parquet""",
    offers={"name": PRETRAIN},
)


def run(arguments: argparse.Namespace) -> None:
    """Plan the export, and write it unless this is a dry run."""
    from niels_cache_assets.cli.context import find_cache, open_registry
    from niels_cache_assets.cli.progress import transfer_progress
    from niels_cache_assets.exchange.formats import plan_export
    from niels_cache_assets.exchange.writing import write_export

    arguments.out = os.path.expanduser(arguments.out)  # the shell leaves `~` as it is after --out=
    if arguments.format == TEXT:
        _export_text(arguments)
        return
    settings = _settings(arguments)
    registry, root = open_registry(arguments)
    cache = find_cache(registry, root, arguments.name, kinds=("pretrain",))
    plan = plan_export(cache.name, cache.directory, settings)
    _refuse_inside_caches(plan.folder, root)
    if not arguments.dry_run:
        if not arguments.force:
            plan.require_free()
        with failing(), transfer_progress(f"exporting {cache.name}") as progress:
            write_export(plan, force=arguments.force, progress=progress)
    facts = {
        "format": arguments.format,
        "written": not arguments.dry_run,
        "files": [{**vars(file), "name": plan.folder / file.name} for file in plan.files],
        "notes": plan.notes,
        "lines": plan.lines,
        "would_be_deleted": [plan.folder / name for name in plan.deleted()] if arguments.dry_run else [],
    }
    if print_facts(arguments, facts):
        return
    table = new_table("file", "documents", "tokens", "size", right=["documents", "tokens", "size"])
    for file in plan.files:
        cells = ["-" if number is None else f"{number:,}" for number in (file.documents, file.tokens)]
        table.add_row(str(plan.folder / file.name), *cells, f"{file.bytes:,} B")
    display(table)
    verb = "would be written" if arguments.dry_run else "written"
    display(f"\n{format_count(len(plan.files), 'file')}, {file_size(plan.bytes)}, {verb} for {arguments.format}")
    for note in plan.notes:
        display(note)
    if arguments.dry_run and (existing := plan.existing()):
        display(f"{format_count(len(existing), 'file')} of an older export exist: --force would replace them")
        for name in plan.deleted():
            display(f"--force would delete {plan.folder / name}")
    if plan.lines:
        display("\n".join(("", *plan.lines)))


def _export_text(arguments: argparse.Namespace) -> None:
    """Write the documents of a corpus."""
    from niels_cache_assets.artifacts.prepared_corpora import open_prepared
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.cli.progress import transfer_progress
    from niels_cache_assets.exchange.corpus_text import TextExport

    refuse_options(arguments, ("max_bytes", "key", "link"), "text does not take it; leave it out")
    if arguments.split != "all":
        raise NielsCacheError(f"{WHERE}: --split: text does not take it; leave it out")
    registry, root = open_registry(arguments)
    folder = Path(arguments.out)
    _refuse_inside_caches(folder, root)
    prepared = open_prepared(registry, arguments.name, root=root)
    export = TextExport(prepared=prepared, folder=folder, file_type=arguments.file_type or "jsonl.zst")
    if arguments.dry_run:
        manifest: dict[str, Any] = {"documents": export.prepared.kept, "files": [{"name": name} for name in export.names()]}
    else:
        with failing(), transfer_progress(f"exporting {arguments.name}") as progress:
            manifest = export.write(force=arguments.force, progress=progress)
    if print_facts(arguments, {"format": TEXT, "written": not arguments.dry_run, "folder": export.folder, **manifest}):
        return
    for entry in manifest["files"]:
        counts = f": {format_count(entry['documents'], 'document')}, {file_size(entry['bytes'])}" if "documents" in entry else ""
        display(f"{export.folder / entry['name']}{counts}")
    verb = "would be written" if arguments.dry_run else "written"
    display(f"\n{format_count(manifest['documents'], 'document')} in {format_count(len(manifest['files']), 'file')} {verb}")
    if arguments.dry_run and export.existing():
        display(f"{format_count(len(export.existing()), 'file')} of an older export exist: --force would replace them")


def _settings(arguments: argparse.Namespace) -> ExportSettings:
    from niels_cache_assets.exchange.formats import ExportSettings
    from niels_cache_runtime.format.layout import SPLITS

    format = arguments.format
    refuse_options(arguments, ["file_type"], f"only text takes it; leave it out for {format}")
    if format != "megatron":
        refuse_options(arguments, ("key", "link"), f"only megatron takes it; leave it out for {format}")
    elif os.path.basename(arguments.out) in ("", ".", ".."):
        prefix = os.path.join(arguments.out, "notes")
        raise NielsCacheError(f"{WHERE}: --out {arguments.out}: is a folder; megatron needs a prefix, such as {prefix}")
    return ExportSettings(
        format=format,
        out=Path(arguments.out),
        splits=SPLITS if arguments.split == "all" else (arguments.split,),
        max_bytes=arguments.max_bytes,
        key=arguments.key,
        link=arguments.link or ("reflink" if format == "megatron" else "copy"),
    )


def _refuse_inside_caches(folder: Path, root: Path) -> None:
    """Refuse a folder inside a cache or a corpus, where `verify` reports foreign files, and the next build deletes them.

    Raises:
        NielsCacheError: If the folder is inside one.
    """
    from niels_cache_assets.corpus.layout import corpus_dir, duplicates_dir
    from niels_cache_runtime.format.layout import FAMILIES, tokenizer_dir

    for caches in (*(root / family for family in FAMILIES), tokenizer_dir(root), corpus_dir(root, ""), duplicates_dir(root)):
        if folder.resolve().is_relative_to(caches.resolve()):
            raise NielsCacheError(f"{WHERE}: --out: {folder} is inside {caches}, which is only for caches; choose another folder")
