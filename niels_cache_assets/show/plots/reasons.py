"""Why documents were dropped, as bars: of one cache, and of a corpus, where it shows who dropped them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from niels_cache_assets.show.labels import reason as in_words
from niels_cache_assets.show.plots.style import BAR, GRAY, INK, as_png, label_axes, label_bars, new_figure, say, set_title
from niels_cache_assets.show.wording import share_of

MAX_REASONS = 15


def reasons_plot(reasons: Sequence[tuple[str, int, str]], given: int, noun: str, colors: Mapping[str, str]) -> bytes:
    """One bar to each (reason, count, who), most frequent first, as the share of the `given`; the rarest are summed up.

    `colors`: of who dropped them. Where there are several, a legend tells them apart.
    """
    shown = [(in_words(reason), count, colors[who]) for reason, count, who in reasons[:MAX_REASONS]]
    if rest := reasons[MAX_REASONS:]:
        shown.append((f"{len(rest)} more", sum(count for _, count, _ in rest), GRAY))
    figure = new_figure(1.3 + 0.3 * max(1, len(shown)))
    axes = figure.subplots()
    set_title(axes, f"dropped, by reason (of {given:,} {noun})")
    values = [count for _, count, _ in shown]
    axes.barh(range(len(shown)), values, height=BAR, color=[color for *_, color in shown])
    axes.set_yticks(range(len(shown)), [reason for reason, *_ in shown])
    axes.set_ylim(max(len(shown), 2) - 0.5, -0.5)  # one bar stays a bar
    label_bars(axes, values, [f"{count:,}  {share_of(count / given)}" for count in values])
    label_axes(axes, f"{noun}, and their share", "")
    if not shown:
        say(axes, "nothing was dropped")
    droppers = {who for *_, who in reasons}
    if len(droppers) > 1:
        handles = [axes.barh(0, 0, color=color, label=who) for who, color in colors.items() if who in droppers]
        axes.legend(handles=handles, frameon=False, loc="lower right", fontsize=8, labelcolor=INK)
    return as_png(figure)
