"""Figures read the same wherever they are shown."""

import pytest

from niels_cache_assets.base.wording import abbreviate, file_size, format_count, format_duration, format_list, format_share
from niels_cache_assets.facts.contents import content_cells, counts_of


@pytest.mark.parametrize(("number", "text"), [(0, "0 tokens"), (1, "1 token"), (1_234, "1,234 tokens")])
def test_a_count_has_its_unit_and_groups_of_digits(number: int, text: str) -> None:
    assert format_count(number, "token") == text


@pytest.mark.parametrize(
    ("count", "text"), [(1, "0"), (3, "0, 1, 2"), (10, "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"), (1_500, "0, 1, 2, 3, 4, 5, 6, 7, 8 and 1,491 more")]
)
def test_of_many_names_the_first_are_told(count: int, text: str) -> None:
    assert format_list([str(number) for number in range(count)]) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (2 * 10**9, "2.0 GB")]
)
def test_bytes_are_shown_as_people_read_them(number: int, text: str) -> None:
    assert file_size(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (12_345, "12.3k"), (4_500_000, "4.5M"), (200e6, "200.0M"), (1.2e9, "1.2G")]
)
def test_abbreviated_numbers(number: float, text: str) -> None:
    assert abbreviate(number) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.9, "0:01"), (67, "1:07"), (3723, "1:02:03")])
def test_durations_are_as_on_a_clock(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("part", "whole", "digits", "text"),
    [(1, 8, 1, "12.5%"), (0, 8, 1, "0.0%"), (1, 10_000, 1, "<0.1%"), (1, 10_000, 2, "0.01%"), (1, 10**6, 2, "<0.01%"), (0, 0, 1, "-")],
)
def test_what_is_there_is_never_a_share_of_nothing(part: int, whole: int, digits: int, text: str) -> None:
    assert format_share(part, whole, digits=digits) == text


@pytest.mark.parametrize(
    ("meta", "cells"),
    [
        ({"train_tokens": 1234, "val_tokens": 56, "vocab_size": 500}, ("1,234 tokens", "56")),
        ({"train_examples": 1, "val_examples": 0, "train_tokens": 9, "val_tokens": 0}, ("1 example", "0")),
        ({"train_tokens": 7, "vocab_size": None}, ("7 tokens", "-")),
        ({"vocab_size": 500}, ("500 pieces", "-")),
        ({"built": False, "train_tokens": 7}, ("-", "-")),
        ({}, ("-", "-")),
    ],
)
def test_a_folder_is_counted_in_what_it_is_made_of(meta: dict[str, object], cells: tuple[str, str]) -> None:
    assert content_cells(counts_of(meta)) == cells
