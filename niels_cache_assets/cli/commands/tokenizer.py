"""`tokenizer compare`: characters per token of two or more SentencePiece models, on the same text, source by source.

Text of a data set is what the tokens of its cache spell, so nothing is read again from where it came. Costs one encoding of `--characters`
of each source by each model; memory is that of one source's text.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.cli.command import WHERE, Command, refuse, whole_number
from niels_cache_assets.cli.console import new_table, output, print_json
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.show.wording import SHORT_SHA256
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    import sentencepiece

    from niels_cache_assets.config.registry import Registry
    from niels_cache_assets.show.tokenizers import Compared

ACTIONS = ("compare",)
CHARACTERS = 1_000_000
CACHE_MODEL = "cache"


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", help="compare")
    parser.add_argument("models", metavar="MODEL", nargs="+", help="SentencePiece .model files, two or more; `cache`: that of the caches")
    parser.add_argument("--only", metavar="NAME", nargs="+", help="on the text of these data sets only")
    parser.add_argument("--files", metavar="PATH", nargs="+", default=[], help="on text of yours, too: files and folders as `clean` takes")
    parser.add_argument(
        "--characters", metavar="N", type=whole_number, default=CHARACTERS, help=f"of each, from its start (default: {CHARACTERS:_})"
    )


COMMAND = Command(
    usage="compare MODEL MODEL ... ",
    description="""\
Compare tokenizers by what they make of the same text: characters per token, by source; more is
better, the same text being shorter. Newlines and blanks are characters of it; special tokens such as
EOT are not counted, here and wherever else this figure stands. The text is that of the data sets that
are built, as their tokens spell it (nothing is downloaded), and that of --files.""",
    examples="""\
  niels-cache tokenizer compare cache new.model
  niels-cache tokenizer compare 16k.model 32k.model --only wikitext dolly15k
  niels-cache tokenizer compare a.model b.model --files books/ --characters 10_000_000""",
    add_options=_add_options,
    offers={"action": ACTIONS},
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.show.tokenizers import Compared, compare
    from niels_cache_runtime.format.meta import sha256_file

    if arguments.action not in ACTIONS:
        refuse("", "tokenizer has no action", arguments.action, ACTIONS)
    if len(arguments.models) < 2 or arguments.characters < 1:
        raise NielsCacheError(f"{WHERE}: compare takes two models or more, and at least one character of each source")
    registry, root = open_registry(arguments)
    paths = [_model_path(model, root) for model in arguments.models]
    processors = [_open(path) for path in paths]
    sources = ((name, list(texts)) for name, texts in _texts(arguments, registry, root))
    compared = [compare(name, texts, processors) for name, texts in sources if texts]
    if not compared:
        raise NielsCacheError(f"{root}: no data set is built that there could be text of; build one, or give --files")
    whole = Compared(
        source="all",
        characters=sum(row.characters for row in compared),
        tokens=[sum(row.tokens[number] for row in compared) for number in range(len(paths))],
    )
    models = [
        {"path": path, "sha256": sha256_file(str(path)), "pieces": int(processor.get_piece_size())}
        for path, processor in zip(paths, processors, strict=True)
    ]
    if arguments.json:
        print_json({"models": models, "sources": [row.as_json() for row in (*compared, whole)]})
        return DONE
    _print(models, [*compared, whole] if len(compared) > 1 else compared)
    return DONE


def _model_path(given: str, root: Path) -> Path:
    from niels_cache_runtime.format.layout import TOKENIZER_MODEL_NAME, tokenizer_dir

    path = tokenizer_dir(root) / TOKENIZER_MODEL_NAME if given == CACHE_MODEL and not Path(given).is_file() else Path(given)
    if not path.is_file():
        raise NielsCacheError(f"{path}: no such file; give a SentencePiece .model file, or `{CACHE_MODEL}` for that of the caches")
    return path


def _open(path: Path) -> sentencepiece.SentencePieceProcessor:
    """Any SentencePiece model: it needs none of our special tokens."""
    from niels_cache_assets.tokenizer.kinds import load_model

    return load_model(path)[0]


def _texts(arguments: argparse.Namespace, registry: Registry, root: Path) -> Iterator[tuple[str, Iterator[str]]]:
    """Sources by name, each with the beginning of its text."""
    from niels_cache_assets.cli.context import find_place, find_places
    from niels_cache_assets.own_data.by_name import sources_of
    from niels_cache_assets.show.tokenizers import beginning, spelled_texts
    from niels_cache_assets.sources.types import StreamContext
    from niels_cache_assets.tokenizer.decoding import open_tokenizer
    from niels_cache_runtime.format.layout import FAMILIES

    if arguments.only is not None:
        places = [find_place(registry, root, name, kinds=FAMILIES) for name in arguments.only]
    else:
        places = [find_place(registry, root, name) for name, place in find_places(registry, root).items() if place.exists]
    for place in places:
        if place.kind != "tokenizer" and (place.meta().get("tokenizer_sha256") or arguments.only) and place.meta().get("built", True):
            yield place.name, beginning(arguments.characters, spelled_texts(place.directory, place.kind, open_tokenizer(root)))
    if arguments.files:
        streams = (chain.from_iterable(source.unconverted(StreamContext(seed=0))) for source in sources_of(arguments.files))
        yield "files", beginning(arguments.characters, (document.text for document in chain.from_iterable(streams)))


def _print(models: Sequence[dict[str, Any]], rows: Sequence[Compared]) -> None:
    console = output()
    letters = [chr(ord("A") + number) for number in range(len(models))]
    for letter, model in zip(letters, models, strict=True):
        console.print(f"{letter}  {model['path']}: {model['pieces']:,} pieces, sha256 {model['sha256'][:SHORT_SHA256]}", soft_wrap=True)
    against = [f"{letter} to A" for letter in letters[1:]]
    columns = ("characters", *letters, *against)
    table = new_table("characters per token", *columns, right=frozenset(columns))
    for row in rows:
        ratios = row.characters_per_token
        more = ["-" if not ratio or not ratios[0] else f"{ratio / ratios[0] - 1:+.1%}" for ratio in ratios[1:]]
        shown = ["-" if ratio is None else f"{ratio:.3f}" for ratio in ratios]
        table.add_row(row.source, f"{row.characters:,}", *shown, *more, style="bold" if row.source == "all" else None)
    console.print()
    console.print(table)
