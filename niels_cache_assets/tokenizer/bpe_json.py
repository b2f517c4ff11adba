"""BPE models of tiktoken and of SentencePiece as a tokenizer.json, for a fast engine that reads such files.

These models have no list of merges: they join any two neighbours whose join is a piece, the best piece first. So each way to divide a piece
into two others is a merge, and the ids stay the same. Only if one piece can be made at two overlapping places may a tokenizer.json choose
another place; the proof of an engine (proof.py) and the comparison during builds would find this. Cost: three seconds for 150,000 pieces.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from niels_cache_assets.tokenizer.byte_level import byte_characters
from niels_cache_assets.tokenizer.sentencepiece_model import BLANK, BPE, BYTE, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, DescribedModel


def ranks_as_json(ranks: Mapping[bytes, int], pattern: str | None) -> str:
    """Return the tokenizer.json of a rank file.

    Args:
        ranks: The rank of each piece.
        pattern: The regular expression that splits text into words. None for the words of GPT-2.
    """
    characters = {byte: character for character, byte in byte_characters().items()}
    pieces = {"".join(characters[byte] for byte in piece): rank for piece, rank in ranks.items()}
    words: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pattern is None}
    if pattern is not None:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": True}
        words = {"type": "Sequence", "pretokenizers": [split, words]}
    return _as_json(pieces, sorted(pieces, key=pieces.__getitem__), words, ignore_merges=True)


def sentencepiece_as_json(model: DescribedModel) -> str:
    """Return the tokenizer.json of a BPE model of SentencePiece, for the texts that `normalized` of the tokenizer returns.

    Raises:
        ValueError: If the model is not a BPE model, or changes texts in another way.
    """

    def ids_of(wanted: int) -> dict[str, int]:
        return {piece.replace(BLANK, " "): number for number, (piece, _, kind) in enumerate(model.pieces) if kind == wanted}

    if model.type != BPE or not model.keeps_text or ids_of(UNUSED):
        raise ValueError("it changes text, lacks pieces for bytes, or is no BPE model")
    normal, added = ids_of(NORMAL), ids_of(USER_DEFINED)
    ordered = sorted(normal, key=lambda piece: -model.pieces[normal[piece]][1])
    vocabulary = {**normal, **added, **ids_of(BYTE), BLANK: next(iter(ids_of(UNKNOWN).values()))}  # no text has U+2581
    tokens = [{"id": number, "content": piece, "special": False, "normalized": False} for piece, number in added.items()]
    # fastokens finds the name of a byte, such as <0x0A>, in a text, unless all its characters are pieces or it is split there
    alone = "".join(sorted({*"<0x123456789ABCDEF>"} - {*normal}))
    words = {"type": "Split", "pattern": {"Regex": f"[{alone}]"}, "behavior": "Isolated", "invert": False} if alone else None
    return _as_json(vocabulary, ordered, words, added=tokens, byte_fallback=True, fuse_unk=True, unk_token=BLANK)


def _as_json(vocabulary: Mapping[str, int], ordered: Iterable[str], words: Any, *, added: Iterable[Any] = (), **model: Any) -> str:
    """Return a tokenizer.json.

    Args:
        vocabulary: Ids of all pieces.
        ordered: The pieces that merges make, the best first.
        words: The pre_tokenizer.
        added: The added tokens.
        model: Other keys of the model.
    """
    known = {*ordered}
    holes = {f"{BLANK}{number}": number for number in {*range(max(vocabulary.values()))} - {*vocabulary.values()}}  # no text has these
    merges = [
        [piece[:end], piece[end:]] for piece in ordered for end in range(1, len(piece)) if piece[:end] in known and piece[end:] in known
    ]
    bpe = {"type": "BPE", "vocab": {**vocabulary, **holes}, "merges": merges, **model}
    return json.dumps({"version": "1.0", "added_tokens": [*added], "pre_tokenizer": words, "model": bpe})
