"""Checks of `tokenizer`. The checks block, because no cache should be built with a tokenizer that fails a check."""

from collections.abc import Iterator

import dagster as dg

from niels_cache_assets.config.registry import Registry
from niels_cache_assets.defs.keys import TOKENIZER
from niels_cache_assets.defs.metadata.entries import table, without_empty
from niels_cache_assets.defs.progress import readable_failures
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer, load_tokenizer
from niels_cache_assets.tokenizer.training import ROUND_TRIP_TEXTS, round_trip_losses
from niels_cache_runtime.format.layout import MAX_UINT16_VOCAB_SIZE

SPECIAL_TOKENS = "special_tokens_are_one_id_each"
ROUND_TRIP = "text_survives_a_round_trip"


def tokenizer_checks(registry: Registry) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        name="check_tokenizer",
        specs=[
            dg.AssetCheckSpec(
                SPECIAL_TOKENS,
                asset=TOKENIZER,
                blocking=True,
                description="Each special token is exactly one id, the four differ, and every id fits uint16.",
            ),
            dg.AssetCheckSpec(
                ROUND_TRIP,
                asset=TOKENIZER,
                blocking=True,
                description="decode(encode(text)) == text for newlines, tabs, code, runs of blanks, CJK and emoji. "
                "An error for a tokenizer that was trained here. For an imported one, a warning that shows the losses.",
            ),
        ],
        can_subset=True,  # each check has its own button
    )
    def check_tokenizer(context: dg.AssetCheckExecutionContext, cache_root: dg.ResourceParam[CacheRoot]) -> Iterator[dg.AssetCheckResult]:
        with readable_failures():
            tokenizer = load_tokenizer(registry, cache_root.path)
            results = {
                SPECIAL_TOKENS: _special_tokens(tokenizer),
                ROUND_TRIP: _round_trip(tokenizer, imported=registry.tokenizer.model is not None),
            }
        for key in sorted(context.selected_asset_check_keys):
            yield results[key.name]

    return check_tokenizer


def _special_tokens(tokenizer: SentencePieceTokenizer) -> dg.AssetCheckResult:
    ids = tokenizer.special_token_ids()
    found = {role: _special_ids_in(piece, tokenizer) for role, piece in tokenizer.special_tokens.items()}
    problems = [f"{role} becomes {found[role]}, not its one id {ids[role]}" for role in ids if found[role] != [ids[role]]]
    if len(set(ids.values())) != len(ids):
        problems.append(f"two special tokens share an id: {ids}")
    if tokenizer.vocab_size > MAX_UINT16_VOCAB_SIZE:
        problems.append(f"{tokenizer.vocab_size:,} ids do not fit uint16")
    rows = [{"role": role, "id": ids[role], "piece": tokenizer.special_tokens[role]} for role in ids]
    return dg.AssetCheckResult(
        check_name=SPECIAL_TOKENS,
        asset_key=TOKENIZER,
        passed=not problems,
        description="; ".join(problems) or None,
        metadata={"special_tokens": table(rows, role="string", id="int", piece="string"), "vocab_size": tokenizer.vocab_size},
    )


def _special_ids_in(piece: str, tokenizer: SentencePieceTokenizer) -> list[int]:
    """Return the ids of the string of a special token. Omit the blank that SentencePiece adds before any text."""
    ids = tokenizer.encode_unchecked([piece])[0].tolist()
    return [token for token in ids if tokenizer.decode([token]).strip()]


def _round_trip(tokenizer: SentencePieceTokenizer, *, imported: bool) -> dg.AssetCheckResult:
    losses = round_trip_losses(tokenizer)
    rows = [{"text": repr(loss.text), "decoded": repr(loss.decoded)} for loss in losses]
    return dg.AssetCheckResult(
        check_name=ROUND_TRIP,
        asset_key=TOKENIZER,
        passed=not losses,
        severity=dg.AssetCheckSeverity.WARN if imported else dg.AssetCheckSeverity.ERROR,
        description=f"{len(losses)} of {len(ROUND_TRIP_TEXTS)} texts change in a round trip" if losses else None,
        metadata=without_empty(
            {
                "texts": len(ROUND_TRIP_TEXTS),
                "changed": len(losses),
                "losses": table(rows, text="string", decoded="string"),
            }
        ),
    )
