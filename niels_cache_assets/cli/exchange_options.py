"""Options and help of the commands that meet other projects' files: export, import."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.overrides import whole_number


def _add_export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("format", metavar="FORMAT", help="megatron, nanogpt, llmc, datatrove, olmo or npy")
    parser.add_argument("name", metavar="NAME", help="a pretrain data set that is built")
    parser.add_argument("--out", metavar="PATH", required=True, help="the folder to write into; for megatron, the files' PREFIX")
    parser.add_argument("--split", metavar="SPLIT", default="all", help="train, val or all (default: all that are not empty)")
    parser.add_argument(
        "--max-bytes",
        metavar="N",
        type=whole_number,
        help="tokens in one file, in bytes (default: megatron 512 GB, datatrove 200 GB, olmo 1 GiB, llmc and npy 200 MB)",
    )
    parser.add_argument("--key", metavar="KEY", help="megatron: name the files PREFIX_KEY_document, as its preprocess_data.py does")
    parser.add_argument(
        "--link",
        metavar="HOW",
        help="megatron, where .bin is exactly one shard: reflink (default: a copy that shares its blocks, where the disk can), "
        "hardlink (another name of the cache's own file) or copy",
    )
    parser.add_argument("--force", action="store_true", help="replace an older export to the same place")
    parser.add_argument("--dry-run", action="store_true", help="print the files, their sizes, and what --force would delete; write nothing")


def _add_import_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("format", metavar="FORMAT", help="megatron")
    parser.add_argument("prefix", metavar="PREFIX", help="the files without .bin and .idx: what becomes train")
    parser.add_argument("--name", metavar="NAME", required=True, help="name of the new data set, none that is configured")
    parser.add_argument("--val", metavar="PREFIX", help="what becomes val (default: val is empty)")
    parser.add_argument("--tokenizer", metavar="FILE", help="the SentencePiece model that the tokens are of")
    parser.add_argument("--tokenizer-sha256", metavar="HEX", help="sha256 of the tokenizer that the tokens are of")
    parser.add_argument("--vocab-size", metavar="N", type=whole_number, help="how many ids there are")
    parser.add_argument("--eot", metavar="ID", type=whole_number, help="the id that ends documents")
    parser.add_argument("--force", action="store_true", help="replace an imported data set of that name")


EXPORT = Command(
    name="export",
    module="export",
    usage="FORMAT NAME --out PATH ",
    summary="write a cache as the files of Megatron-LM, nanoGPT, llm.c, datatrove, OLMo-core or NumPy",
    description="""\
Write a pretrain cache as the files that other projects train from. FORMAT is one of

  megatron   Megatron-LM: PREFIX.bin and PREFIX.idx, PREFIX being --out; with several splits
             PREFIX_train and PREFIX_val; over --max-bytes PREFIX_00000, PREFIX_00001, ...
  nanogpt    nanoGPT: train.bin and val.bin
  llmc       llm.c: NAME_train_000000.bin, ... of 100 million tokens
  datatrove  datatrove, nanotron: train/NAME_00000_unshuffled.ds, ... with .index and .metadata
  olmo       OLMo-core: NAME_train/part-00000.npy, ... without a header, with .csv.gz
  npy        train/NAME_train_000000.npy, ... of 100 million tokens, as numpy.load, build-nanogpt
             and our DatasetLoader read them (OLMo-core does not: its .npy have no header)

EOT stands after each document, as in the cache; for llm.c it is moved before each one. Files
appear when all of them are complete, with a list of their names (*.files) by which a later export
to the same place knows what to replace. For nanogpt and olmo the lines that the other project's
code needs are printed.""",
    examples="""\
  niels-cache export megatron wikitext --split train --out data/wikitext --key text
  niels-cache export nanogpt wikitext --out ../nanoGPT/data/wikitext
  niels-cache export llmc wikitext --out data/llmc --dry-run
  niels-cache export npy wikitext --out data/npy --max-bytes 20_000_000 --force""",
    add_options=_add_export_options,
    has_json=True,
)


IMPORT = Command(
    name="import",
    module="import",
    usage="FORMAT PREFIX --name NAME ",
    summary="make a cache of Megatron-LM's tokens",
    description="""\
Make a pretrain cache of another project's tokens: `import megatron PREFIX` reads PREFIX.bin and
PREFIX.idx into the train split of a new cache NAME, document by document as they are there. What is
written is verified before it takes its place.

What tokens mean is not in those files. Say it with --tokenizer or --tokenizer-sha256 (where that is
the tokenizer of the cache directory, it is known with its vocabulary and EOT), or with --vocab-size
and --eot; else the cache says that it is unknown, and shows ids instead of text.""",
    examples="""\
  niels-cache import megatron data/pile_text_document --name pile --vocab-size 50257 --eot 50256
  niels-cache import megatron data/wiki_train --val data/wiki_val --name wiki --tokenizer cache/tokenizer/spm.model""",
    add_options=_add_import_options,
    has_json=True,
)
