"""The commands `tokenizer compare` and `tokenizer prove`.

`compare` prints the characters per token of two or more models on the same text, source by source. `prove` compares every installed fast
engine with the reference of a model, and shows where they differ.

The text of a data set is decoded from the tokens of its cache, so no source is read again. Each model encodes the first `--characters`
characters of each source once. The text of one source at a time is in memory.

A proof takes the fixed difficult texts (tokenizer/proof.py), and those of --files and --only. One batch of texts at a time is in memory, so
the sources are read once for each model and engine.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.wording import SHORT_SHA256
from niels_cache_assets.cli.command import DONE, FAILED, WHERE, Command, integer_at_least, option
from niels_cache_assets.cli.console import display, new_table, print_facts
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.project.registry import Registry
    from niels_cache_assets.tokenizer.engines import Engine
    from niels_cache_assets.tokenizer.kinds import TextTokenizer
    from niels_cache_assets.tokenizer.proof import Difference, EngineProof
    from niels_cache_runtime.format.layout import Family

CHARACTERS = 1_000_000
CACHE_MODEL = "cache"
_BLOCK_TOKENS = 1 << 16
DIFFICULT = "difficult texts"

_EXCERPT_CHARACTERS = 60  # of a text that differs, on each side of the difference
_IDS = 6  # ids on each side of the first one that differs

TextSources = Callable[[], Iterable[tuple[str, Iterable[str]]]]


COMMAND = Command(
    options=(
        option("action", "ACTION", "compare or prove", choices=("compare", "prove")),
        option(
            "models",
            "MODEL",
            "two or more models (SentencePiece, tokenizer.json or its folder, tiktoken ranks); `cache` is the one in the cache directory",
            nargs="+",
        ),
        option("--only", "NAME", "use only the text of these data sets", nargs="+"),
        option("--files", "PATH", "also use your own text: files and folders, as for `clean`", nargs="+", default=[]),
        option(
            "--characters",
            "N",
            f"characters to use from the start of each source (default: {CHARACTERS:_} for compare, all for prove)",
            type=integer_at_least(1),
        ),
    ),
    usage="compare|prove MODEL ... ",
    description="""\
compare: show characters per token on the same text, by source. Higher is better: the same text needs
fewer tokens. Spaces and newlines count as characters; special tokens do not. The text is decoded from
the built data sets; --files adds more text.

prove: compare the ids of every fast engine that supports the model with those of the reference library,
on difficult texts and on the text of --only and --files. If ids differ, the command shows the first
such text and exits with 1. A build runs the same comparison before it uses a fast engine ([tokenizer]
engine = "auto").""",
    examples="""\
  niels-cache tokenizer compare cache new.model
  niels-cache tokenizer compare 16k.model 32k.model --only wikitext dolly15k
  niels-cache tokenizer prove cache --files books/       check whether fast engines match the reference""",
)


@dataclass(frozen=True, kw_only=True)
class TokenizerComparison:
    """The result for one source: its number of characters, and the number of tokens that each model needs for these characters."""

    source: str
    characters: int
    tokens: list[int]

    @property
    def characters_per_token(self) -> list[float | None]:
        from niels_cache_assets.tokenizer.measures import characters_per_token

        return [characters_per_token(self.characters, tokens) for tokens in self.tokens]


def run(arguments: argparse.Namespace) -> int:
    """Compare the models, or prove the engines."""
    from niels_cache_assets.cli.context import open_registry

    if arguments.action == "compare" and len(arguments.models) < 2:
        raise NielsCacheError(f"{WHERE}: compare needs at least two models; name another one")
    registry, root = open_registry(arguments)
    opened = [open_model(model, registry, root) for model in arguments.models]
    if arguments.action == "prove":
        arguments.only = arguments.only or []  # without names, no data set is decoded
        return _prove(opened, lambda: _texts(arguments, registry, root), arguments)
    paths, tokenizers = zip(*opened, strict=True)
    arguments.characters = arguments.characters or CHARACTERS
    read = ((name, list(texts)) for name, texts in _texts(arguments, registry, root))
    compared = [_compare(name, texts, tokenizers) for name, texts in read if texts]
    if not compared:
        raise NielsCacheError(f"{root}: no built data set has text to compare on; build one, or give --files")
    whole = TokenizerComparison(
        source="all",
        characters=sum(row.characters for row in compared),
        tokens=[sum(row.tokens[number] for row in compared) for number in range(len(paths))],
    )
    models = [
        {"path": path, "sha256": tokenizer.model_sha256, "pieces": tokenizer.vocab_size}
        for path, tokenizer in zip(paths, tokenizers, strict=True)
    ]
    sources = [{**vars(row), "characters_per_token": row.characters_per_token} for row in (*compared, whole)]
    if print_facts(arguments, {"models": models, "sources": sources}):
        return DONE
    _print(models, [*compared, whole] if len(compared) > 1 else compared)
    return DONE


def open_model(given: str, registry: Registry, root: Path) -> tuple[Path, TextTokenizer]:
    """Return the path of a model that an option names, and its tokenizer."""
    from niels_cache_assets.tokenizer.kinds import open_built_model, open_model_at
    from niels_cache_runtime.format.layout import tokenizer_dir

    if given == CACHE_MODEL and not any(path.is_file() for path in (Path(given), Path(given, "tokenizer.json"))):
        return tokenizer_dir(root), open_built_model(tokenizer_dir(root))
    if not os.path.exists(given):
        kinds = f"a SentencePiece .model file, a tokenizer.json, tiktoken ranks, or `{CACHE_MODEL}`, the model of the cache directory"
        raise NielsCacheError(f"{given}: no such file; give {kinds}")
    return Path(given), open_model_at(registry.tokenizer, given)


def _compare(name: str, texts: Sequence[str], tokenizers: Sequence[TextTokenizer]) -> TokenizerComparison:
    from niels_cache_runtime.format.reading import available_threads

    threads = available_threads()
    tokens = [tokenizer.count_tokens(texts, threads) for tokenizer in tokenizers]
    return TokenizerComparison(source=name, characters=sum(map(len, texts)), tokens=tokens)


def _texts(arguments: argparse.Namespace, registry: Registry, root: Path) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the name of each source with its text, or the beginning of its text."""
    from niels_cache_assets.base.documents import truncate_texts
    from niels_cache_assets.cli.context import find_cache, find_caches
    from niels_cache_assets.cli.detection import sources_of
    from niels_cache_assets.sources.types import StreamContext
    from niels_cache_assets.tokenizer.decoding import open_tokenizer
    from niels_cache_runtime.format.layout import FAMILIES

    if arguments.only is not None:
        caches = [find_cache(registry, root, name, kinds=FAMILIES) for name in arguments.only]
    else:
        caches = [find_cache(registry, root, name) for name, cache in find_caches(registry, root).items() if cache.exists]
    for cache in caches:
        if cache.kind != "tokenizer" and (cache.meta().get("tokenizer_sha256") or arguments.only) and cache.meta().get("built", True):
            texts = _spelled_texts(cache.directory, cache.kind, open_tokenizer(root))
            yield cache.name, truncate_texts(texts, arguments.characters)
    if arguments.files:
        streams = (chain.from_iterable(source.unconverted(StreamContext(seed=0))) for source in sources_of(arguments.files))
        yield "files", truncate_texts((document.text for document in chain.from_iterable(streams)), arguments.characters)


def _spelled_texts(directory: Path, family: Family, tokenizer: TextTokenizer) -> Iterator[str]:
    """Yield the texts between the special tokens of a train split. A text is a document, or a turn of a conversation."""
    import numpy as np

    from niels_cache_assets.facts.split_tokens import SplitTokens
    from niels_cache_runtime.cache.opening import open_meta

    meta = open_meta(directory)  # raises for a cache of a different tokenizer
    if not meta:
        return
    special = np.array(sorted(tokenizer.special_token_ids().values()))
    rest: list[int] = []
    for shard in SplitTokens(directory, family, "train", meta).shards:
        for first in range(0, len(shard), _BLOCK_TOKENS):
            block = shard[first : first + _BLOCK_TOKENS]
            begin = 0
            for end in np.flatnonzero(np.isin(block, special)).tolist():
                yield tokenizer.decode([*rest, *block[begin:end].tolist()])
                rest, begin = [], end + 1
            rest += block[begin:].tolist()
    yield tokenizer.decode(rest)


def _print(models: Sequence[dict[str, Any]], rows: Sequence[TokenizerComparison]) -> None:
    letters = [chr(ord("A") + number) for number in range(len(models))]
    for letter, model in zip(letters, models, strict=True):
        display(f"{letter}  {model['path']}: {model['pieces']:,} pieces, sha256 {model['sha256'][:SHORT_SHA256]}")
    against = [f"{letter} to A" for letter in letters[1:]]
    columns = ("characters", *letters, *against)
    table = new_table("characters per token", *columns, right=columns)
    for row in rows:
        ratios = row.characters_per_token
        more = ["-" if not ratio or not ratios[0] else f"{ratio / ratios[0] - 1:+.1%}" for ratio in ratios[1:]]
        shown = ["-" if ratio is None else f"{ratio:.3f}" for ratio in ratios]
        table.add_row(row.source, f"{row.characters:,}", *shown, *more, style="bold" if row.source == "all" else None)
    display()
    display(table)


@dataclass(frozen=True, kw_only=True)
class EngineResult:
    """The results of one engine.

    Attributes:
        engine: Name of the engine.
        version: Its version, or None if it is not installed.
        sources: One proof for each source of texts, or None if the engine is not installed or cannot load the model.
        problem: Why `sources` is None.
    """

    engine: str
    version: str | None
    sources: dict[str, EngineProof] | None
    problem: str | None = None


def _prove(models: Sequence[tuple[Path, TextTokenizer]], sources: TextSources, arguments: argparse.Namespace) -> int:
    """Prove each engine for each model, and print the results. Return FAILED if any text differs.

    Args:
        models: Paths and tokenizers of the models.
        sources: Opens the texts, by name.
        arguments: The arguments.
    """
    from niels_cache_assets.tokenizer.engines import engines_for, reference_of

    results = [
        (path, tokenizer, [_prove_engine(name, load(tokenizer), tokenizer, sources) for name, load in engines_for(tokenizer).items()])
        for path, tokenizer in models
    ]
    rows = [{"model": path, "reference": reference_of(tokenizer), "engines": proven} for path, tokenizer, proven in results]
    if not print_facts(arguments, {"models": rows}):
        for path, tokenizer, proven in results:
            _print_proofs(path, tokenizer, proven)
    found = (proof for _, _, proven in results for each in proven for proof in (each.sources or {}).values())
    return FAILED if any(proof.differing for proof in found) else DONE


def _prove_engine(name: str, engine: Engine | str, tokenizer: TextTokenizer, sources: TextSources) -> EngineResult:
    from niels_cache_assets.streaming.encode import has_lone_surrogate, normalize_newlines
    from niels_cache_assets.tokenizer.engines import installed_version, prove
    from niels_cache_assets.tokenizer.proof import compare

    if isinstance(engine, str):
        return EngineResult(engine=name, version=installed_version(name), sources=None, problem=engine)
    proofs = {DIFFICULT: prove(tokenizer, engine)}
    for source, texts in sources():
        valid = (normalize_newlines(text) for text in texts if not has_lone_surrogate(text))  # as in a build
        proofs[source] = compare(valid, reference=tokenizer.encode_flat, engine=engine.encode_flat)
    return EngineResult(engine=name, version=engine.version, sources=proofs)


def _print_proofs(path: Path, tokenizer: TextTokenizer, proven: Sequence[EngineResult]) -> None:
    from niels_cache_assets.tokenizer.engines import reference_of

    reference = reference_of(tokenizer)
    who = f"the reference is {reference}" if reference else f"no engine encodes for the kind {tokenizer.kind}"
    display(f"{path}: {tokenizer.vocab_size:,} ids; {who}")
    for each in proven if reference else ():
        if each.sources is None:
            display(f"  {each.problem}; builds use {reference}")
            continue
        for source, proof in each.sources.items():
            result = f"{proof.differing:,} have other ids" if proof.differing else "all have equal ids"
            if proof.unencodable:
                result = f"{reference} cannot encode {proof.unencodable:,}, and of the others, {result}"
            line = f"  {each.engine} {each.version}, {source}: of {proof.texts:,} texts, {result}"
            display(line, style="red" if proof.differing else None)
            for line in () if proof.first is None else _lines(proof.first, tokenizer):
                display(f"    {line}")


def _lines(difference: Difference, tokenizer: TextTokenizer) -> Iterator[str]:
    """Yield the text around the first id that differs, and the ids there."""
    first = difference.first
    yield f"text      {difference.excerpt(tokenizer.decode, characters=_EXCERPT_CHARACTERS)}"
    for name, ids in (("reference", difference.expected), ("engine", difference.found)):
        shown = ids[max(0, first - _IDS) : first + _IDS]
        yield f"{name:9} {' '.join(map(str, shown))}   ({len(ids):,} ids; number {first:,} differs)"
