"""Prints of texts: a shared passage is found whatever stands around it, and without the text."""

import html
import json
import random

import numpy as np
import pytest

from niels_cache_inspection.erasure.prints import (
    GRAM,
    RUN,
    KeyedTexts,
    TextPrints,
    WantedTexts,
    keyed_prints,
    normalize,
    prints_of,
    unescape,
)

TEXT = (
    'The harbour master\'s \u00e9clair, "twice" & again: 17 <ships>\nwent out on the first of March, and Ottoline counted '
    "them \U0001f600 home."
)
WANTED = WantedTexts((TextPrints.of([TEXT]),))


def noise(length: int, seed: int) -> bytes:
    return bytes(random.Random(seed).choices(b"abcdefghijklmnopqrstuvwxyz", k=length))


def test_every_run_that_two_texts_share_has_a_print_of_both() -> None:
    text = noise(2000, 0)
    known = prints_of(text)
    assert len(known) < len(text) / 8
    chosen = random.Random(1)
    for trial in range(300):
        start = chosen.randrange(len(text) - RUN)
        other = noise(chosen.randrange(60), trial) + text[start : start + RUN] + noise(chosen.randrange(60), -trial)
        assert len(np.intersect1d(prints_of(other), known)), (trial, start)
    assert not len(np.intersect1d(prints_of(noise(2000, 2)), known))


def test_a_print_does_not_depend_on_the_block_in_which_it_is() -> None:
    text = noise(200_000, 3)  # three blocks
    middle = text[60_000:70_000]
    assert set(prints_of(middle).tolist()) - set(prints_of(text).tolist()) == set()


@pytest.mark.parametrize("form", ["plain", "shouted", "wrapped", "json", "json in ASCII", "html", "repr of a log"])
def test_a_text_is_found_in_every_form(form: str) -> None:
    forms = {
        "plain": TEXT,
        "shouted": TEXT.replace("\u00e9", "").upper(),
        "wrapped": "\n\t".join(TEXT.split()),
        "json": json.dumps({"text": TEXT}, ensure_ascii=False),
        "json in ASCII": json.dumps({"text": TEXT}),
        "html": html.escape(TEXT),
        "repr of a log": f"value = {TEXT!r}",
    }
    content = f"before it {forms[form]} and after it".encode()
    shares = [WANTED.share(WANTED.found_in(normalize(each))) for each in (content, unescape(content))]
    assert max(shares) >= (0.4 if form == "shouted" else 0.999)


def test_short_texts_are_found_as_they_are_and_very_short_ones_are_not_searched() -> None:
    short, shorter = TextPrints.of(["Ottoline Vexley, 4 March"]), TextPrints.of(["yes."])
    assert (short.is_searchable, shorter.is_searchable) == (True, False)
    wanted = WantedTexts((short, shorter))
    for content, share in ((b"by ottoline vexley, 4 march 1999", 1.0), (b"yes. ottoline said so", 0.0)):
        assert wanted.share(wanted.found_in(normalize(content))) == share


def test_keyed_hashes_find_the_same_and_say_nothing_without_the_key() -> None:
    key, other = b"k" * 32, b"o" * 32
    groups = [[*keyed_prints(key, WANTED.prints)]]
    content = normalize(f"before it {TEXT} after it".encode())
    found = KeyedTexts(key, groups)
    assert found.share(found.found_in(content)) == WANTED.share(WANTED.found_in(content)) == 1
    assert not len(KeyedTexts(other, groups).found_in(content))
    assert len(WANTED.prints) > 3
    assert GRAM < RUN


def test_only_an_equal_document_is_a_copy_of_a_short_one() -> None:
    wanted = WantedTexts((TextPrints.of(["Thank you, captain."], is_whole=True),))
    for content, share in ((b"thank you captain", 1.0), (b"Thank you, captain, and good bye.", 0.0)):
        normalized = normalize(content)
        assert wanted.share(wanted.found_in(normalized), normalized) == share
