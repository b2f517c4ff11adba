"""Speed and time left of a build, on the command line and in Dagster's log from one calculation."""

import pytest

from niels_cache_assets.build_cache import Progress
from niels_cache_assets.cli.progress import describe
from niels_cache_assets.cli.transfers import transfer_progress
from niels_cache_assets.progress import Pace


def test_what_the_first_report_brings_is_not_counted_as_done_in_the_time_since() -> None:
    pace = Pace()
    assert pace.estimate(Progress(documents=5, tokens=5_000, share=0.5), 100.0) == (None, None)
    rate, seconds_left = pace.estimate(Progress(documents=6, tokens=6_000, share=0.6), 110.0)
    assert rate == 100.0
    assert seconds_left is not None
    assert round(seconds_left, 6) == 40


def test_nothing_is_guessed_without_a_share_or_before_the_second_report() -> None:
    pace = Pace()
    assert describe(Progress(documents=1, tokens=1_000, share=None), pace, 0.0) == "1 documents, 1.0k tokens"
    assert describe(Progress(documents=2, tokens=3_000, share=None), pace, 2.0) == "2 documents, 3.0k tokens, 1.0k tokens/s"
    assert describe(Progress(documents=2, tokens=3_000, share=0.5), pace, 2.0).endswith("1.0k tokens/s, 0:02 left")


def test_bytes_are_a_line_every_ten_seconds_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with transfer_progress("exporting notes", clock=lambda: now[0]) as progress:
        for seconds, done in ((3, 100_000), (10, 250_000), (12, 300_000), (20, 500_000), (21, 1_000_000)):
            now[0] = seconds
            progress(done, 1_000_000)
    output, errors = capsys.readouterr()
    assert not output
    assert errors.splitlines() == [
        "exporting notes: 25%, 250.0 kB of 1.0 MB",
        "exporting notes: 50%, 500.0 kB of 1.0 MB",
    ]
