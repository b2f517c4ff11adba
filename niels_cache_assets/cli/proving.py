"""`tokenizer prove`: compare every fast engine that is installed with the reference of a model, and show where they differ.

The texts are the fixed difficult ones (tokenizer/proof.py), and those of --files and --only. Memory holds one batch of texts at a time,
so the sources are read once for each model and engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.cli.console import output, print_json
from niels_cache_assets.cli.exit_codes import DONE, FAILED

if TYPE_CHECKING:
    from niels_cache_assets.tokenizer.engines import Engine
    from niels_cache_assets.tokenizer.kinds import TextTokenizer
    from niels_cache_assets.tokenizer.proof import Difference, Proof

Sources = Callable[[], Iterable[tuple[str, Iterable[str]]]]

DIFFICULT = "difficult texts"

_CHARACTERS = 60  # of a text that differs, on each side of the difference
_IDS = 6  # ids on each side of the first one that differs


@dataclass(frozen=True, kw_only=True)
class Proven:
    """The results of one engine: one proof for each source of texts. version: None if it is not installed. proofs: None if the engine is
    not installed or cannot load the model.
    """

    engine: str
    version: str | None
    proofs: dict[str, Proof] | None

    @property
    def differs(self) -> bool:
        return any(proof.differing for proof in (self.proofs or {}).values())

    def as_json(self) -> dict[str, Any]:
        sources = None if self.proofs is None else {name: asdict(proof) for name, proof in self.proofs.items()}
        return {"engine": self.engine, "version": self.version, "sources": sources}


def prove_models(models: Sequence[tuple[Path, TextTokenizer]], sources: Sources, *, as_json: bool) -> int:
    """Prove each engine for each model, and print the results. Return FAILED if any text differs. sources: opens the texts, by name."""
    from niels_cache_assets.tokenizer.engines import engines_for, reference_of

    results = [
        (path, tokenizer, [_proven(name, load(tokenizer), tokenizer, sources) for name, load in engines_for(tokenizer).items()])
        for path, tokenizer in models
    ]
    if as_json:
        rows = [
            {"model": path, "reference": reference_of(tokenizer), "engines": [each.as_json() for each in proven]}
            for path, tokenizer, proven in results
        ]
        print_json({"models": rows})
    else:
        for path, tokenizer, proven in results:
            _print(path, tokenizer, proven)
    return FAILED if any(each.differs for _, _, proven in results for each in proven) else DONE


def _proven(name: str, engine: Engine | None, tokenizer: TextTokenizer, sources: Sources) -> Proven:
    from niels_cache_assets.streaming.encode import has_lone_surrogate, normalize_newlines
    from niels_cache_assets.tokenizer.engines import installed_version, prove
    from niels_cache_assets.tokenizer.proof import compare

    if engine is None:
        return Proven(engine=name, version=installed_version(name), proofs=None)
    proofs = {DIFFICULT: prove(tokenizer, engine)}
    for source, texts in sources():
        valid = (normalize_newlines(text) for text in texts if not has_lone_surrogate(text))  # as in a build
        proofs[source] = compare(valid, reference=tokenizer.encode_flat, engine=engine.encode_flat)
    return Proven(engine=name, version=engine.version, proofs=proofs)


def _print(path: Path, tokenizer: TextTokenizer, proven: Sequence[Proven]) -> None:
    from niels_cache_assets.tokenizer.engines import reference_of

    console, reference = output(), reference_of(tokenizer)
    who = f"the reference is {reference}" if reference else f"no engine encodes for the kind {tokenizer.kind}"
    console.print(f"{path}: {tokenizer.vocab_size:,} ids; {who}", soft_wrap=True)
    for each in proven if reference else ():
        if each.proofs is None:
            why = f"{each.engine} {each.version} cannot load this model" if each.version else f"{each.engine} is not installed"
            console.print(f"  {why}; builds use {reference}", soft_wrap=True)
            continue
        for source, proof in each.proofs.items():
            said = "all have equal ids" if not proof.differing else f"{proof.differing:,} have other ids"
            if proof.unencodable:
                compared = "the others have equal ids" if not proof.differing else said
                said = f"{reference} cannot encode {proof.unencodable:,}, and {compared}"
            style = "red" if proof.differing else None
            console.print(f"  {each.engine} {each.version}, {source}: of {proof.texts:,} texts, {said}", soft_wrap=True, style=style)
            for line in () if proof.first is None else _lines(proof.first, tokenizer):
                console.print(f"    {line}", soft_wrap=True)


def _lines(difference: Difference, tokenizer: TextTokenizer) -> Iterator[str]:
    """Yield the text around the first id that differs, and the ids there."""
    first = difference.first
    yield f"text      {difference.excerpt(tokenizer.decode, characters=_CHARACTERS)}"
    for name, ids in (("reference", difference.expected), ("engine", difference.found)):
        shown = ids[max(0, first - _IDS) : first + _IDS]
        yield f"{name:9} {' '.join(map(str, shown))}   ({len(ids):,} ids; number {first:,} differs)"
