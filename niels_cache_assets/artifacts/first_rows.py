"""The first rows of a data set as training would see them, before anything is built.

A chat template costs some tenths of a second, and `ROWS` rows are in memory. Nothing is tokenized.
"""

from collections import Counter

from niels_cache_assets.artifacts.input_problems import is_remote
from niels_cache_assets.base.reasons import DROP_REASONS
from niels_cache_assets.chats.rendering import Chat, RenderedChat, RendererPool, UnusableChat, check_template
from niels_cache_assets.chats.templates import Template, find_template
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.text_column import TEXT_FIELD_FACT
from niels_cache_assets.sources.tool_arguments import convert_arguments
from niels_cache_assets.sources.types import PretrainSource, StreamContext

ROWS = 50
_LONG_NAME = 5  # words in the name of a column, which may be a text
_SENTINELS = """{%- for message in messages %}{{- '<' + message['role'] + '>' }}{%- if message['role'] == 'assistant' %}
{%- generation %}{{- message['content'] + '<eot>' }}{% endgeneration %}
{%- else %}{{- message['content'] + '<eot>' }}{%- endif %}{%- endfor %}"""


def try_first_rows(registry: Registry, name: str) -> tuple[list[str], list[str]]:
    """Return what training would see of the first rows of a data set in which `input_problems` finds no problem.

    Returns:
        The texts of the usable rows, with targets of SFT data in [[ ]], and notes on the other rows and on the template, each with advice
        after a semicolon. Both are empty for a data set without local files.

    Raises:
        NielsCacheError: If a build would fail.
    """
    source = registry.source(name)
    if is_remote(source) or not source.input_files():
        return [], []
    if isinstance(source, PretrainSource):
        context = StreamContext(seed=0, siblings=registry.pretrain)
        batch = next(iter(source.unconverted(context)), [])
        texts = [document.text for document in source.convert([*batch])[0]]
        field = str(context.report.facts.get(TEXT_FIELD_FACT))
        is_unclear = source.source == "csv" and len(field.split()) >= _LONG_NAME
        note = f"[pretrain.{name}] the text is in the column {field!r}; if that is a record and no header, set columns"
        return texts, [note] if is_unclear else []
    rows = source.first_examples(ROWS)
    chats = [row for row in rows if not isinstance(row, str)]
    template = find_template(source.template, registry.tokenizer)
    with RendererPool(template or Template(name="", text=_SENTINELS, variables={}, where="")) as pool:
        form = lambda arguments: pool.argument_form(arguments)  # noqa: E731  (found only if there are calls)
        results = pool.render(
            [Chat([convert_arguments(each, form) for each in chat.messages], chat.source_id, chat.tools) for chat in chats]
        )
    texts = []
    for each in results:
        if isinstance(each, RenderedChat):
            texts.append(each.text)
            for start, end in reversed(each.spans):
                texts[-1] = f"{texts[-1][:start]}[[{texts[-1][start:end]}]]{texts[-1][end:]}"
    notes = list[str]()
    if lacking := check_template(source.template, registry.tokenizer):
        notes.append(f"the template writes {', '.join(lacking)}, which are no tokens of the tokenizer; use a tokenizer that has them")
    reasons = Counter(each if isinstance(each, str) else each.reason for each in (*rows, *results) if isinstance(each, str | UnusableChat))
    advice = "choose another template, or leave such rows out"
    refused = {each.reason: f"{each.explanation}; {advice}" for each in results if isinstance(each, UnusableChat)}
    for reason, count in reasons.items():
        found = DROP_REASONS[reason]
        if found.is_asked:
            continue
        why = refused.get(reason) or f"{found.meaning}; {found.advice}"
        notes.append(f"{count} of the first {len(rows)} rows will be left out: {why}")
    return texts, [f"[sft.{name}] {note}" for note in notes]
