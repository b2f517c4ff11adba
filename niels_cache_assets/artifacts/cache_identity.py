"""The identity of a cache, which is everything that decides its bytes.

A finished cache with the same fingerprint over its identity needs no build.
"""

from typing import TypeGuard

from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.build_cache.base import choose_token_dtype, token_dtype_identity
from niels_cache_assets.corpus.identity import held_out_identity
from niels_cache_assets.corpus.prepared import PreparedCorpus
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.project.tables import BuildSettings
from niels_cache_assets.sources.types import PretrainSource, Siblings, Source
from niels_cache_assets.streaming.decontaminate import decontamination_identity, references_identity
from niels_cache_assets.tokenizer.kinds import special_tokens_of


def cache_identity(
    registry: Registry,
    source: Source,
    build: BuildSettings,
    siblings: Siblings,
    *,
    tokenizer: tuple[str | None, int | None] = (None, None),
    revision: str | None = None,
    prepared: PreparedCorpus | None = None,
) -> Identity:
    """Return everything that decides the bytes of a cache.

    Args:
        registry: The configuration.
        source: The table of the data set.
        build: The table [build].
        siblings: The pretrain tables by name. A table with a corpus is replaced by a reader of this corpus.
        tokenizer: The sha256 of the tokenizer's model, or None if there is no tokenizer, and the size of its vocabulary, which decides the
            dtype of the tokens. If the size is None, only the setting counts.
        revision: The revision of the source. With `prepared`, it counts only with `decontaminate_against`, because it covers the texts that
            the key names.
        prepared: The corpus that is read instead of the source. The identity then has the content of the corpus and of its drop list (the
            list of duplicates), and not the settings that made them. None if the source is read.
    """
    tokenizer_sha256, vocab_size = tokenizer
    if prepared is None:
        members, read = getattr(source, "members", {}), source.identity()
    else:
        budgets = {key: getattr(prepared.source, key) for key in ("train_tokens", "val_tokens", "shuffle_buffer")}
        members, read = {}, {**prepared.identity(), **budgets}
    return {
        "source": read,
        "members": {member: siblings[member].identity() for member in members if member in siblings},
        "seed": build.seed,
        "shard_bytes": build.shard_bytes if source.family == "pretrain" else None,
        "special_tokens": special_tokens_of(registry.tokenizer),
        "tokenizer_sha256": tokenizer_sha256,
        "revision": revision if prepared is None or prepared.source.decontaminate_against else None,
        "code_version": CODE_VERSIONS[source.family],
        **_pretrain_identity(registry, source),
        **dtype_identity(build, vocab_size),
        **(held_out_identity(registry, source, seed=build.seed) if prepared is None else {}),
    }


def _pretrain_identity(registry: Registry, source: Source) -> Identity:
    if not isinstance(source, PretrainSource):
        return {}
    own = decontamination_identity(source.decontaminate, source.decontaminate_threshold, val_is_given=val_may_come_late(source))
    return {**own, **source.fim_identity, **references_identity(source, seed=registry.build.seed)}


def dtype_identity(build: BuildSettings, vocab_size: int | None) -> dict[str, str]:
    """Return the entry of the tokens' dtype in the identity of a cache. It is empty for uint16.

    Args:
        build: The table [build].
        vocab_size: The size of the tokenizer's vocabulary. If it is None, only the setting counts.
    """
    name = build.token_dtype if vocab_size is None else choose_token_dtype(vocab_size, build.token_dtype)
    return {} if name is None else token_dtype_identity(name)


def is_prepared(source: Source) -> TypeGuard[PretrainSource]:
    """Return whether a corpus is read instead of this source."""
    return isinstance(source, PretrainSource) and source.has_corpus


def val_may_come_late(source: PretrainSource) -> bool:
    """Return whether a document of val may come after the first document of train.

    This cannot happen with token budgets, because val comes first.
    """
    return source.has_own_splits or source.seeded_val_frac is not None
