"""Checks of `tokenizer`, which block, because no cache should be built with a tokenizer that fails a check."""

from collections.abc import Iterator

import dagster as dg

from niels_cache_assets.defs.keys import names_of
from niels_cache_assets.defs.metadata.entries import table, without_empty
from niels_cache_assets.defs.progress import readable_failures
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.tokenizer.kinds import TextTokenizer, load_tokenizer
from niels_cache_assets.tokenizer.training import ROUND_TRIP_TEXTS, round_trip_losses

SPECIAL_TOKENS = "special_tokens_are_one_id_each"
ROUND_TRIP = "text_survives_a_round_trip"
_DESCRIPTIONS = {
    SPECIAL_TOKENS: "Each special token is exactly one id, and these ids differ.",
    ROUND_TRIP: "decode(encode(text)) == text for newlines, tabs, code, runs of blanks, CJK and emoji. An error for a tokenizer that was "
    "trained here. For an imported one, a warning that shows the losses.",
}


def tokenizer_checks(registry: Registry) -> dg.AssetChecksDefinition:
    """Return the checks."""
    names = names_of(registry)

    @dg.multi_asset_check(
        name=names.name("check_tokenizer"),
        specs=[
            dg.AssetCheckSpec(name, asset=names.tokenizer, blocking=True, description=description)
            for name, description in _DESCRIPTIONS.items()
        ],
        can_subset=True,  # each check has its own button
        required_resource_keys=names.resources,
    )
    def check_tokenizer(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        with readable_failures():
            tokenizer = load_tokenizer(registry.tokenizer, root_of(context, names))
            results = {
                SPECIAL_TOKENS: _special_tokens(tokenizer),
                ROUND_TRIP: _round_trip(tokenizer, imported=registry.tokenizer.model is not None),
            }
        for key in sorted(context.selected_asset_check_keys):
            yield results[key.name]

    return check_tokenizer


def _special_tokens(tokenizer: TextTokenizer) -> dg.AssetCheckResult:
    ids = tokenizer.special_token_ids()
    found = {role: _ids_of_special(role, tokenizer) for role in tokenizer.special_tokens}
    problems = [f"{role} becomes {found[role]}, not its one id {ids[role]}" for role in ids if found[role] != [ids[role]]]
    if len(set(ids.values())) != len(ids):
        problems.append(f"two special tokens share an id: {ids}")
    rows = [{"role": role, "id": ids[role], "piece": tokenizer.special_tokens[role]} for role in ids]
    return dg.AssetCheckResult(
        check_name=SPECIAL_TOKENS,
        passed=not problems,
        description="; ".join(problems) or None,
        metadata={"special_tokens": table(rows), "vocab_size": tokenizer.vocab_size},
    )


def _ids_of_special(role: str, tokenizer: TextTokenizer) -> list[int]:
    """Return the ids that become the string of a special token.

    A user-defined piece of SentencePiece is found in text, so its string is encoded, without the blank that SentencePiece adds before any
    text. Any other special token is never found in text, so its id is decoded.
    """
    piece, token = tokenizer.special_tokens[role], tokenizer.special_token_ids()[role]
    ids = tokenizer.encode_unchecked([piece])[0].tolist()
    if token not in ids and tokenizer.piece_bytes()[token] in (piece.encode(), b""):  # a control piece of SentencePiece has no bytes
        return [token]
    return [token for token in ids if tokenizer.decode([token]).strip()]


def _round_trip(tokenizer: TextTokenizer, *, imported: bool) -> dg.AssetCheckResult:
    losses = round_trip_losses(tokenizer)
    rows = [{"text": repr(text), "decoded": repr(decoded)} for text, decoded in losses.items()]
    return dg.AssetCheckResult(
        check_name=ROUND_TRIP,
        passed=not losses,
        severity=dg.AssetCheckSeverity.WARN if imported else dg.AssetCheckSeverity.ERROR,
        description=f"{len(losses)} of {len(ROUND_TRIP_TEXTS)} texts change in a round trip" if losses else None,
        metadata=without_empty({"texts": len(ROUND_TRIP_TEXTS), "changed": len(losses), "losses": table(rows)}),
    )
