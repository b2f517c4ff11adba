"""The prose of wikitext."""

from niels_cache_corpora.wikipedia.markup import Form, text_or_list


def plain_text(wikitext: str, form: Form = Form()) -> str:  # noqa: B008 (a named tuple)
    """Return the prose of a page, or an empty string for a page that only lists names or works."""
    text, only_lists = text_or_list(wikitext, form)
    return "" if only_lists else text
