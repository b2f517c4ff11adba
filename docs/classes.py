"""Writes docs/classes.md, the public classes and functions with their docstrings, so that it cannot differ from the code.

python docs/classes.py            (a test fails while the file is out of date)

Signatures are taken from the source as it is written, not from objects, whose annotations differ between versions of Python.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

TARGET = Path(__file__).with_suffix(".md")

INTRODUCTION = """\
# Classes and functions

<!-- Made by docs/classes.py from the code; edit that. -->

What other code may rely on; all else may change. Wrong settings, and files that are missing or damaged, raise `NielsCacheError` with one
line that says what to do, unless another error is named.
"""

# Title, module that it is imported from, names; those that only come out of others are named where they are defined.
SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Training",
        "niels_cache_runtime",
        ("TokenLoader", "Batch", "PretrainTokenStreamDataset", "SFTExampleDataset", "DatasetLoader"),
    ),
    ("What a loader gives", "niels_cache_runtime.map_style", ("SampleDataset",)),
    ("", "niels_cache_runtime.mixture_report", ("MixtureReport", "SourceShare")),
    ("", "niels_cache_runtime.packed_examples", ("PackingReport",)),
    ("", "niels_cache_runtime.trace", ("BatchTrace", "TokenOrigin")),
    ("Attention and targets", "niels_cache_runtime", ("document_mask", "flex_block_mask", "assistant_target_mask")),
    ("A cache by name", "niels_cache_runtime", ("open_cache",)),
    ("", "niels_cache_runtime.catalog", ("Cache", "CacheFamily", "CacheDataset", "MissingDatasetError")),
    ("", "niels_cache_runtime.catalog_split", ("CacheSplit", "TokenStream")),
    ("Files", "niels_cache_runtime", ("read_meta", "write_meta", "sha256_file", "NielsCacheError")),
    ("", "niels_cache_runtime.verify", ("verify_cache", "verify_dataset", "Finding")),
    (
        "Megatron-LM",
        "niels_cache_runtime.megatron",
        (
            "open_blend",
            "prebuild_blend",
            "MegatronBlendedDataset",
            "MegatronGPTDataset",
            "IndexCache",
            "split_ranges",
            "open_indexed",
            "IndexedDataset",
            "CacheSplit",
            "IndexedWriter",
            "plan_indexed",
            "write_indexed",
        ),
    ),
    ("Building", "niels_cache_assets.build_cache", ("build_pretrain_cache", "build_sft_cache", "Provenance", "Progress", "Resume")),
    ("", "niels_cache_assets.build_cache", ("write_unbuilt_cache", "fingerprint_of")),
    ("", "niels_cache_assets.documents", ("Document", "Message", "Conversation", "SourceReport")),
    ("", "niels_cache_assets.tokenization", ("SentencePieceTokenizer", "view_tokenizer")),
    ("For the datasets library", "niels_cache_assets", ("to_hf_dataset",)),
)

_WIDTH = 120
_SPECIAL = ("__len__", "__getitem__", "__iter__")
_PARAMETER = re.compile(r"^(?:[a-z]\w*|[A-Z])(?:, [a-zA-Z]\w*)*: ")  # a sentence begins with a word in capitals

Definition = ast.ClassDef | ast.FunctionDef


def definition_of(module: str, name: str) -> Definition:
    """The statement that defines what `module` calls `name`."""
    found = getattr(importlib.import_module(module), name)
    tree = ast.parse(inspect.getsource(inspect.getmodule(found)))  # type: ignore[arg-type]
    return next(node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == found.__name__)


def parameters(function: ast.FunctionDef, *, bound: bool) -> list[str]:
    """As they are written, without self."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    found = [_parameter(argument, default) for argument, default in zip(plain, defaults, strict=True)][1 if bound else 0 :]
    if arguments.vararg or arguments.kwonlyargs:
        found.append(f"*{ast.unparse(arguments.vararg)}" if arguments.vararg else "*")
    found += [_parameter(argument, default) for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        found.append(f"**{ast.unparse(arguments.kwarg)}")
    return found


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    given = f" = {_code(default)}" if default is not None else ""
    return f"{argument.arg}: {_annotation(argument.annotation)}{given}" if argument.annotation else f"{argument.arg}{given}"


def _field(field: ast.AnnAssign) -> str:
    given = f" = {_code(field.value)}" if field.value is not None else ""
    return f"{_code(field.target)}: {_annotation(field.annotation)}{given}"


def _annotation(node: ast.expr) -> str:
    """Without the quotes of one that is looked up later."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else _code(node)


def _code(node: ast.expr) -> str:
    return ast.unparse(node).replace("'", '"')


def call(name: str, given: list[str], returns: ast.expr | None) -> str:
    end = f" -> {_annotation(returns)}" if returns is not None else ""
    line = f"{name}({', '.join(given)}){end}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in given), f"){end}"])


def described(node: Definition, where: str) -> list[str]:
    text = ast.get_docstring(node)
    if not text:
        raise ValueError(f"{where}: has no docstring")
    return [*as_markdown(text), ""]


def as_markdown(text: str) -> Iterator[str]:
    """A docstring's paragraphs; what explains parameters (`name: ...` at the beginning of a line) becomes a list."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.split("\n")
        yield ""
        if lines[0].startswith("    "):  # code, or a picture
            yield from ["```text", *textwrap.dedent(paragraph).split("\n"), "```"]
            continue
        items = bool(_PARAMETER.match(lines[0]))
        for line in lines:
            if items and line.startswith("Raises "):
                items = False
                yield ""
            begins = items and not line.startswith(" ") and _PARAMETER.match(line)
            yield escaped(f"* {line}" if begins else f"  {line.strip()}" if items else line.strip())


def escaped(line: str) -> str:
    """Stars, underscores around words and angle brackets as they are, outside code."""
    bullet, rest = ("* ", line[2:]) if line.startswith("* ") else ("", line)
    parts = rest.split("`")
    plain = [re.sub(r"([*<\[])", r"\\\1", part) if number % 2 == 0 else part for number, part in enumerate(parts)]
    return bullet + "`".join(plain)


def members(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for member in node.body:
        if (
            isinstance(member, ast.FunctionDef)
            and ast.get_docstring(member)
            and (not member.name.startswith("_") or member.name in _SPECIAL)
        ):
            yield member


def of_class(module: str, name: str, node: ast.ClassDef) -> list[str]:
    bases = ", ".join(map(_code, node.bases))
    made = next((member for member in node.body if isinstance(member, ast.FunctionDef) and member.name == "__init__"), None)
    fields = [member for member in node.body if isinstance(member, ast.AnnAssign) and not ast.unparse(member.target).startswith("_")]
    if made is not None:
        head = "class " + call(name, parameters(made, bound=True), None)
    else:
        head = "\n".join([f"class {name}({bases})" if bases else f"class {name}", *(f"    {_field(field)}" for field in fields)])
    lines = [f"### {name}", "", "```text", head, "```", *described(node, f"{module}.{name}")]
    for member in members(node):
        decorators = {ast.unparse(decorator) for decorator in member.decorator_list}
        if decorators & {"property", "cached_property"}:
            head = f"{member.name}: {_annotation(member.returns)}" if member.returns else member.name
        else:
            head = call(member.name, parameters(member, bound="staticmethod" not in decorators), member.returns)
        kind = "classmethod " if "classmethod" in decorators else ""
        lines += [f"#### `{name}.{member.name}`", "", "```text", kind + head, "```", *described(member, f"{module}.{name}.{member.name}")]
    return lines


def of_function(module: str, name: str, node: ast.FunctionDef) -> list[str]:
    head = call(name, parameters(node, bound=False), node.returns)
    return [f"### {name}", "", "```text", head, "```", *described(node, f"{module}.{name}")]


def page() -> str:
    lines = [INTRODUCTION]
    for title, module, names in SECTIONS:
        lines += [f"## {title}", ""] if title else []
        lines += [f"From `{module}`:", ""]
        for name in names:
            node = definition_of(module, name)
            lines += of_class(module, name, node) if isinstance(node, ast.ClassDef) else of_function(module, name, node)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
