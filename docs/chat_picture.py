"""Draws the pictures of the spans of targets in docs/howto.md, with templates that the code renders, the same ones every time.

python -m docs.chat_picture
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from docs.runtime_pictures import COLOURS, GREY, TARGET, bare, figure_of
from niels_cache_assets.chats.rendering import Chat, RenderedChat, RendererPool
from niels_cache_assets.chats.templates import Template, find_template
from niels_cache_assets.tokenizer.settings import TokenizerSettings

CHAT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "Four."},
]
SENTINELS = """\
{%- for message in messages %}
{{- {'user': '<usr>', 'assistant': '<asst>'}[message.role] }}
{%- if message.role == 'assistant' %}
{%- generation %}{{- message.content + '<eot>' }}{% endgeneration %}
{%- else %}{{- message.content + '<eot>' }}{% endif %}
{%- endfor %}
"""
INSTRUCTIONS = """\
{%- for message in messages %}
{{- '[INST] ' + message.content + ' [/INST]' if message.role == 'user' else ' ' + message.content + '</s>' }}
{%- endfor %}
"""
WIDTH = 141  # characters of the longest text


def templates() -> list[tuple[str, Template]]:
    chatml = find_template("chatml", TokenizerSettings())
    assert chatml is not None
    drawn = {"sentinels": SENTINELS, "a template without marks": INSTRUCTIONS}
    own = [(name, Template(name=name, text=text, variables={}, where=name)) for name, text in drawn.items()]
    return [own[0], ("chatml", chatml), own[1]]


def rendered(template: Template) -> RenderedChat:
    with RendererPool(template) as ready:
        (found,) = ready.render([Chat(CHAT, template.name)])
    assert isinstance(found, RenderedChat)
    return found


def line(panel: Axes, y: float, found: RenderedChat, *, colour: str = COLOURS[0]) -> None:
    """Draw a text character by character, its spans in colour."""
    targets = {place for start, end in found.spans for place in range(start, end)}
    for place, character in enumerate(found.text):
        if place in targets:
            panel.add_patch(Rectangle((place, y - 0.34), 1, 0.62, facecolor=colour, alpha=0.25, linewidth=0))
        shown = "↵" if character == "\n" else character
        ink = "black" if place in targets else GREY
        panel.text(place + 0.5, y, shown, ha="center", va="center", fontsize=7, family="monospace", color=ink)
    for start, end in found.spans:
        panel.plot([start, end], [y - 0.36, y - 0.36], color=colour, linewidth=1.6)


def chat_spans() -> Figure:
    """Draw one conversation in three forms, with the spans of targets."""
    figure, (panel,) = figure_of(11.5, 2.6)
    bare(panel, x=(-1, WIDTH), y=(-0.7, 5.4))
    for row, (name, template) in enumerate(templates()):
        y = 4.0 - 2 * row
        panel.text(0, y + 0.75, name, ha="left", va="center", fontsize=9)
        line(panel, y, rendered(template))
    return figure


PROMPT = [*CHAT[:2], {"role": "user", "content": "2+2?"}]
ANSWERS = {"chosen": "Four.", "rejected": "About five."}


def pair_spans() -> Figure:
    """Draw both sides of a preference pair, with the spans of targets: those after the prompt."""
    figure, (panel,) = figure_of(11.5, 1.9)
    bare(panel, x=(-1, WIDTH + 8), y=(-0.7, 3.4))
    bare(panel, x=(-1, WIDTH + 8), y=(-0.7, 3.4))
    template = templates()[1][1]
    with RendererPool(template) as ready:
        sides = ready.render([Chat([*PROMPT, {"role": "assistant", "content": answer}], side) for side, answer in ANSWERS.items()])
    for row, (side, found) in enumerate(zip(ANSWERS, sides, strict=True)):
        assert isinstance(found, RenderedChat)
        y = 2.0 - 2 * row
        panel.text(0, y + 0.75, side, ha="left", va="center", fontsize=9)
        line(panel, y, found._replace(spans=found.spans[1:]), colour=COLOURS[row])
    return figure


def main(folder: Path = TARGET) -> None:
    chat_spans().savefig(folder / "chat_spans.png", dpi=130, metadata={"Software": None})
    pair_spans().savefig(folder / "pair_spans.png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
