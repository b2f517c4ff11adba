"""Speed and time left of a build, on the command line and in Dagster's log from one calculation."""

import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from niels_cache_assets.artifacts.corpus import CorpusProgress
from niels_cache_assets.build_cache import Progress
from niels_cache_assets.cli import progress
from niels_cache_assets.cli.progress import BarListener, transfer_progress
from niels_cache_assets.show.progress import HowFar, Pace, describe


def told(progress: HowFar, pace: Pace, now: float) -> str:
    return describe(progress, pace.estimate(progress, now), with_share=True)


def test_nothing_is_guessed_without_a_share_or_before_the_second_report() -> None:
    pace = Pace()
    assert told(Progress(documents=1, tokens=1_000, share=None), pace, 0.0) == "1 documents, 1.0k tokens"
    assert told(Progress(documents=2, tokens=3_000, share=None), pace, 2.0) == "2 documents, 3.0k tokens, 1.0k tokens/s"
    assert told(Progress(documents=2, tokens=3_000, share=0.5), pace, 2.0) == "50%, 2 documents, 3.0k tokens, 1.0k tokens/s, 0:02 left"
    corpus = Pace()
    first = told(CorpusProgress(documents=10, kept=9, characters=5_000, share=0.1), corpus, 0.0)
    assert first == "10%, 10 documents, 9 kept, 5.0k characters"
    assert told(CorpusProgress(documents=30, kept=25, characters=15_000, share=0.3), corpus, 4.0) == (
        "30%, 30 documents, 25 kept, 15.0k characters, 2.5k characters/s, 0:14 left"
    )


def test_a_bar_has_share_speed_time_left_and_the_memory_of_this_process_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"[\d.]+ (MB|GB)", progress.memory_now() or "")
    monkeypatch.setattr(progress, "memory_now", lambda: "512.0 MB")
    console, now = Console(force_terminal=True, width=160, record=True), [0.0]
    listener = BarListener(console, clock=lambda: now[0])

    def shown() -> str:
        console.print(listener.bars.get_renderable())
        return console.export_text()

    listener.started("notes", "pretrain")
    for now[0], share in ((0.0, 0.1), (4.0, 0.3)):
        listener.progressed("notes", CorpusProgress(documents=30, kept=25, characters=round(50_000 * share), share=share))
    line = shown()
    for part in ("notes", "30%", "25 kept", "2.5k characters/s, 0:14 left", "512.0 MB"):
        assert part in line
    listener.finished(SimpleNamespace(name="notes", state="built"))  # type: ignore[arg-type]
    done = shown()
    assert "built" in done
    assert "512.0 MB" not in done


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
