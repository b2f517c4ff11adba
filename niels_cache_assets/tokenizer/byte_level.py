"""Byte-level BPE: the characters that stand for bytes, and training with the library `tokenizers`, which yields a tokenizer.json.

Text is split into words as in GPT-2, and each byte is a piece, so every text survives a round trip. The same sample gives the same bytes:
`tokenizers` orders pairs of equal frequency by their ids, and the ids do not depend on its threads. The distinct words of the sample are
held in memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from niels_cache_runtime.errors import NielsCacheError, panics_as_errors

BYTE_LEVEL = "bytelevel_bpe"
_FIRST_STAND_IN = 256
_MIN_FREQUENCY = 2  # a pair that occurs once is not worth a piece


def byte_characters() -> dict[str, int]:
    """Return the byte of each character in the pieces of a byte-level BPE.

    A byte that is a visible character of Latin-1 stands for itself. The other bytes, in order, are the characters from U+0100 on.
    """
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(_FIRST_STAND_IN + number): byte for number, byte in enumerate(hidden)}


def sample_lines(sample: str) -> Iterator[str]:
    """Yield the lines of a training sample, without their newlines."""
    with open(sample, encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.rstrip("\n")


def train_byte_level(spec: dict[str, Any]) -> None:
    """Train on the lines of the file `sample`, and write the file `model`. The special tokens get the lowest ids.

    Raises:
        NielsCacheError: If the sample has too few pairs for `vocab_size` pieces, or if `vocab_size` is too small for all bytes.
    """
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=spec["vocab_size"],
        min_frequency=_MIN_FREQUENCY,
        special_tokens=spec["special_tokens"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with panics_as_errors():
        tokenizer.train_from_iterator(sample_lines(spec["sample"]), trainer=trainer)
    size = tokenizer.get_vocab_size()
    setting = f"vocab_size = {spec['vocab_size']}"
    if size > spec["vocab_size"]:
        raise NielsCacheError(f"{setting} is below the {size} pieces of bytes and special tokens; raise it (--vocab-size)")
    if size < spec["vocab_size"]:
        raise NielsCacheError(f"the sample is too small for {setting}: it gives {size} pieces; lower it (--vocab-size) or add text")
    Path(spec["model"]).write_text(tokenizer.to_str(pretty=True), encoding="utf-8", newline="\n")
