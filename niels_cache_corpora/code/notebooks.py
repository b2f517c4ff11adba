"""Jupyter notebooks as scripts in the percent format, which Jupytext, VS Code and Spyder read.

    # %% [markdown]
    # The text of a cell, as comments.

    # %%
    the_code = "of a cell"

Outputs and raw cells are left out. In another language than Python, its comments begin the lines.

Some data sets have such scripts under the name of the notebook. They are recognized by the mark of a cell, also that of nbconvert
(`# In[1]:`), and stay as they are.
"""

import json
import re

from niels_cache_assets.base.beside import load_beside

_CELL = re.compile(r"^(?:#|//|--|%|;) ?(?:%%|In ?\[[\d ]*\]:)", re.MULTILINE)


def notebook_script(text: str) -> str | None:
    """Return a notebook of Jupyter, version 3 or 4, as a script, or a script as it is. Return None if the text is neither."""
    if not text.lstrip().startswith(("{", "[")) and _CELL.search(text):
        return text
    try:
        notebook = json.loads(text)
        cells = notebook["cells"] if "cells" in notebook else [cell for sheet in notebook["worksheets"] for cell in sheet["cells"]]
        comment = _comment_of(notebook)
        parts = [_cell(cell, comment) for cell in cells]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return "\n\n".join(filter(None, parts)) + "\n"


def _comment_of(notebook: dict[str, dict[str, dict[str, str]]]) -> str:
    metadata = notebook.get("metadata", {})
    name = metadata.get("kernelspec", {}).get("language") or metadata.get("language_info", {}).get("name") or "python"
    language = load_beside("cleaning", "code_languages").LANGUAGES.get(str(name).lower())
    return (language.comment if language else "") or "#"


def _cell(cell: dict[str, str | list[str]], comment: str) -> str | None:
    source = cell["source"] if "source" in cell else cell["input"]
    text = (source if isinstance(source, str) else "".join(source)).strip("\n")
    if not text.strip() or cell["cell_type"] not in ("code", "markdown", "heading"):
        return None
    if cell["cell_type"] == "code":
        return f"{comment} %%\n{text}"
    lines = [f"{comment} {line}".rstrip() for line in text.split("\n")]
    return "\n".join([f"{comment} %% [markdown]", *lines])
