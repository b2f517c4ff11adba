"""The scripts that are written without spaces between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan.

In such a script, a run of characters between two spaces is a sentence and not a word. Deduplication and the cleaning filters therefore
treat each character as a unit. Hangul is written with spaces, so it is not here. This module reads no files and keeps no state.
"""

import re

# Ranges of code points (first, end). The names are those of the Unicode blocks.
UNSPACED = (
    (0x0E00, 0x0E80),  # Thai
    (0x0E80, 0x0F00),  # Lao
    (0x0F00, 0x1000),  # Tibetan
    (0x1000, 0x10A0),  # Myanmar
    (0x1780, 0x1800),  # Khmer
    (0x3005, 0x3008),  # the iteration mark, the closing mark and the zero of ideographs
    (0x3040, 0x3100),  # Hiragana, Katakana
    (0x31F0, 0x3200),  # Katakana Phonetic Extensions
    (0x3400, 0x4DC0),  # CJK Unified Ideographs Extension A
    (0x4E00, 0xA000),  # CJK Unified Ideographs
    (0xF900, 0xFB00),  # CJK Compatibility Ideographs
    (0xFF66, 0xFFA0),  # Katakana of half width
    (0x20000, 0x323B0),  # CJK Unified Ideographs Extensions B to H
)

_UNSPACED_CHARACTER = re.compile("[" + "".join(f"{chr(first)}-{chr(end - 1)}" for first, end in UNSPACED) + "]")


def unspaced_characters(text: str) -> int:
    """Return the number of characters of `text` in a script that is written without spaces."""
    return 0 if text.isascii() else len(_UNSPACED_CHARACTER.findall(text))
