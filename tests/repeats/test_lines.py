"""Repeated lines and paragraphs: what counts as a copy, which copy stays, and that poems, licences, lists and code are not torn."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from niels_cache_repeats.line_kernels import OFFSET_BITS, choose_cuts, collect_units, hash_bytes, mark_copies

BLANKS = "".join(map(chr, range(33)))
PROSE = "This paragraph is about the subject number {0} of the page {1}, and it has more than a hundred characters, so that it is long."
WRAPPED = """Subject {0} of page {1} is described in a paragraph that was wrapped
at about seventy characters, as mail and manuals do, and its last
line is short."""
FOOT = "Share this article with all of your friends today"
POEM = """Once upon a midnight dreary {0}
While I pondered weak and weary
Over many a quaint {0} volume
Quoth the raven nevermore, my friend

And the silken sad {0} rustling
Of each purple curtain ringing
Thrilled me, filled me {0} singing
Quoth the raven nevermore, my friend"""
LICENCE = """Copyright (c) {0} by the author number {0} of this program

Redistribution and use in source and binary forms, with or without modification, are permitted if these conditions are met:

1. Redistributions of source code must retain the above copyright notice.

2. Neither the name of holder {0} nor the names of contributors may be used to endorse products.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS", and any express or implied warranties are disclaimed."""
HEADER = """/*
 * This program is free software, and you can redistribute it.
 * Copyright {0} by the author of the file number {0}
 * There is no warranty at all, not even an implied warranty.
 */

#include <linux/module.h>
#include <linux/own_{0}.h>
#include <linux/kernel_and_more.h>

static int answer_{0}(void)
{{
        return -EINVAL_OR_ANOTHER_ERROR;
}}"""
LIST = """The ingredients of recipe {0} are:

* a spoonful of the finest sugar
* {0} grams of flour from the mill
* a pinch of salt from the sea

- a glass of water from a spring

- {0} glasses of milk from a cow

Temperature monitoring
----------------------

Recipe {0} needs an oven that keeps its temperature for more than {0} hours in the evening."""


def cuts_of(texts: Sequence[str], *, is_val: Sequence[bool] = (), parts: int = 1, **settings: int) -> list[list[tuple[int, int]]]:
    """Return the cuts of each text as (start, end) in bytes, searched in `parts` parts."""
    data, bounds, keys = as_batch(texts, is_val)
    marks, because = marks_of(texts, is_val=is_val, parts=parts, **settings)
    order = np.argsort(marks << np.uint64(1))
    numbers = ((marks[order] >> np.uint64(OFFSET_BITS)) & np.uint64(2**32 - 1)).astype(np.int64)
    mark_bounds = np.searchsorted(numbers, np.arange(len(texts) + 1))
    rows, starts, ends, *_ = choose_cuts(data, bounds, keys, marks[order], because[order], mark_bounds)
    found: list[list[tuple[int, int]]] = [[] for _ in texts]
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        found[row].append((start, end))
    return found


def marks_of(
    texts: Sequence[str], *, is_val: Sequence[bool] = (), parts: int = 1, min_characters: int = 20, max_copies: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    data, bounds, keys = as_batch(texts, is_val)
    each = [
        mark_copies(
            *collect_units(data, bounds, keys, min_characters=min_characters, parts=parts, first_part=part, last_part=part + 1),
            max_copies=max_copies,
        )
        for part in range(parts)
    ]
    return np.concatenate([marks for marks, _ in each]), np.concatenate([because for _, because in each])


def as_batch(texts: Sequence[str], is_val: Sequence[bool]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    encoded = [text.encode() for text in texts]
    keys = [number | (0 if is_val and is_val[number] else 1 << 32) for number in range(len(texts))]
    data = np.frombuffer(b"".join(encoded), np.uint8)
    return data, np.cumsum([0, *map(len, encoded)]), np.array(keys, dtype=np.uint64)


def left(text: str, cuts: Sequence[tuple[int, int]]) -> str:
    data = text.encode()
    for start, end in reversed(cuts):
        data = data[:start] + data[end:]
    return data.decode()


def plain_units(text: str, min_characters: int) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield (kind, byte offset, stripped lines) of each unit."""
    offset, block, begin = 0, list[str](), 0
    for line in [*text.split("\n"), ""]:
        stripped = line.strip(BLANKS)
        counts = len(stripped) if any(character.isalpha() for character in stripped) else 0
        if stripped and counts >= min_characters:
            yield 0, offset, (stripped,)
        if stripped:
            begin = begin if block else offset
            block.append(stripped)
        elif block:
            lengths = sum(len(each) for each in block if any(character.isalpha() for character in each))
            if len(block) > 1 and lengths >= min_characters:
                yield 1, begin, tuple(block)
            block = []
        offset += len(line.encode()) + 1


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        (b"", "0" * 32),
        (b"hello", "cbd8a7b341bd9b025b1e906a48ae1d19"),
        (b"The quick brown fox jumps over the lazy dog", "e34bbc7bbc071b6c7a433ca9c49a9347"),
    ],
)
def test_the_hash_is_murmurhash3(text: bytes, digest: str) -> None:
    first, second = hash_bytes(np.frombuffer(b"x" + text, np.uint8), 1, 1 + len(text))
    assert f"{int(first):016x}{int(second):016x}" == digest


@pytest.mark.parametrize("seed", range(3))
def test_marks_are_those_of_a_plain_search(seed: int) -> None:
    draw = random.Random(seed)
    copies_seen = 0
    for _ in range(60):
        texts = ["".join(draw.choices("aé\n\n\n 1", k=draw.randrange(90))) for _ in range(draw.randrange(1, 9))]
        is_val = [draw.random() < 0.3 for _ in texts]
        least, most = draw.randrange(1, 4), draw.randrange(1, 4)
        places = defaultdict(list)
        for number, text in enumerate(texts):
            for kind, offset, lines in plain_units(text, least):
                places[kind, lines].append(((0 if is_val[number] else 1 << 32) | number) << OFFSET_BITS | offset << 1 | kind)
        repeated = [found for found in places.values() if len({place >> OFFSET_BITS for place in found}) > most]
        expected = {place: min(found) for found in repeated for place in found if place != min(found)}
        copies_seen += len(expected)
        for parts in (1, 3):
            marks, because = marks_of(texts, is_val=is_val, parts=parts, min_characters=least, max_copies=most)
            assert dict(zip(marks.tolist(), because.tolist(), strict=True)) == expected
    assert copies_seen > 100


@pytest.mark.parametrize("whole", [POEM, LICENCE, HEADER, LIST], ids=["poem", "licence", "header", "list"])
@pytest.mark.parametrize("around", ["{0}", "{1}\n\n{0}", "{0}\n\n{1}", "{2}\n\n{0}\n\n{1}"])
def test_what_belongs_together_is_not_torn(whole: str, around: str) -> None:
    for text in (whole, "\n".join(filter(None, whole.split("\n"))), whole.replace("\n", "\n\n")):
        texts = [around.format(text.format(n), PROSE.format(n, 1), WRAPPED.format(n, 2)) for n in range(10, 20)]
        assert len(marks_of(texts)[0]) > 9  # without the rule, lines would go
        assert cuts_of(texts) == [[]] * 10


@pytest.mark.parametrize(
    ("page", "rest"),
    [
        ("{prose}\n{foot}\n{prose}\n", "{prose}\n{prose}\n"),
        ("{foot}\n{foot} again\n{prose}", "{prose}"),
        ("{prose}\n{foot}", "{prose}\n"),
        ("{foot}\n{foot} again\nA title\n{prose}", "A title\n{prose}"),
        ("{foot}\n\nA title\n\n{wrapped}", "A title\n\n{wrapped}"),
        ("{foot}\n\nA title\n\nA name\n\n{wrapped}", "{foot}\n\nA title\n\nA name\n\n{wrapped}"),
        ("{prose}\n\n{foot}\n\n{prose}", "{prose}\n\n{prose}"),
        ("{wrapped}\n\n{foot}\n\n{foot} again\n\n{wrapped}", "{wrapped}\n\n{wrapped}"),
        ("{prose}\r\n\r\n{foot}\r\nTwo\r\n\r\n{prose}", "{prose}\r\n\r\n{prose}"),
        ("{wrapped}\n{foot}\n{wrapped}", "{wrapped}\n{foot}\n{wrapped}"),  # in the middle of a paragraph
        ("{wrapped} Friends:\n\n{foot}\n\n{wrapped}", "{wrapped} Friends:\n\n{foot}\n\n{wrapped}"),
        ("{prose}\n    {foot}\n{prose}", "{prose}\n    {foot}\n{prose}"),
        ("{prose}\n----------------------\n{prose}", "{prose}\n----------------------\n{prose}"),
    ],
)
def test_repeated_lines_between_prose_go(page: str, rest: str) -> None:
    def filled(form: str, number: int) -> str:
        out, count = form, 0
        for name, text in (("{prose}", PROSE), ("{wrapped}", WRAPPED)):
            while name in out:
                out = out.replace(name, text.format(number, count), 1)
                count += 1
        return out.replace("{foot}", FOOT)

    texts = [filled(page, number) for number in range(5)]
    cuts = cuts_of(texts)
    assert [left(text, each) for text, each in zip(texts, cuts, strict=True)] == [
        texts[0],
        *(filled(rest, number) for number in range(1, 5)),
    ]


def test_a_whole_licence_goes_with_its_items_and_four_paragraphs_go_anywhere() -> None:
    licence = f"{WRAPPED.format(1, 1)}\n\n1. The first condition of the licence\n\n2. The second condition of it\n\n{PROSE.format(2, 2)}"
    texts = [f"{PROSE.format(number, 0)}\n\n{licence}" for number in range(5)]
    assert [left(text, cuts) for text, cuts in zip(texts, cuts_of(texts), strict=True)] == [
        texts[0],
        *(f"{PROSE.format(number, 0)}\n\n" for number in range(1, 5)),
    ]
    passage = "\n\n".join(PROSE.format(number, "all") for number in range(4))
    texts = [f"Verse {number}\n\n{passage}\n\nVerse of {number}" for number in range(5)]
    assert [left(text, cuts) for text, cuts in zip(texts, cuts_of(texts), strict=True)] == [
        texts[0],
        *(f"Verse {number}\n\nVerse of {number}" for number in range(1, 5)),
    ]


def test_val_keeps_its_copy_and_copies_up_to_the_limit_stay() -> None:
    texts = [f"{PROSE.format(number, 0)}\n{FOOT}" for number in range(4)]
    assert [bool(cuts) for cuts in cuts_of(texts, is_val=[False, False, True, True])] == [True, True, False, True]
    assert not any(cuts_of(texts[:3]))
    assert [bool(cuts) for cuts in cuts_of(texts[:3], max_copies=2)] == [False, True, True]
