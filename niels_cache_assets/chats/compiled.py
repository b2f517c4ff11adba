"""A chat template in jinja2's immutable sandbox: its text, its marks, and where it begins to write each message.

It runs in the child process (child.py), and imports only the standard library and jinja2.
"""

import json
import re
from collections.abc import Collection, Mapping
from itertools import count
from typing import Any, NamedTuple

WORD = "zq"  # the beginning of neutral words
TAG = re.compile(r"(</?\w+>|\[/?\w+\])")
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class NeutralWords:
    """Neutral words in place of the texts of a conversation, equal words for equal texts.

    What the template itself uses is kept: roles, keys that it reads, texts that it compares, and tags that it looks for in texts.

    Args:
        strings: All strings in the template.
        compared: Those that it compares.
        names: Strings of special tokens, which are never kept.
    """

    def __init__(self, strings: frozenset[str], compared: frozenset[str], names: frozenset[str]) -> None:
        self._keys, self._compared = strings, compared - _ROLES
        self._tags = frozenset(tag for text in strings for tag in TAG.findall(text)) - names
        self._words: dict[str, str] = {}

    def of(self, value: Any) -> Any:
        """Return a JSON value with neutral words."""
        if isinstance(value, str):
            return value if value in self._compared else self._of_text(value)
        if isinstance(value, Mapping):
            return {self._of_key(key): each if key == "role" else self.of(each) for key, each in value.items()}
        return [self.of(each) for each in value] if isinstance(value, list | tuple) else value

    def _of_key(self, key: str) -> str:
        return key if key in self._keys or key in ("role", "content") else self._word(key)

    def _of_text(self, text: str) -> str:
        if not self._tags or ("<" not in text and "[" not in text):
            return self._word(text)
        return "".join(piece if piece in self._tags else self._word(piece) for piece in TAG.split(text))  # texts and tags in turn

    def _word(self, text: str) -> str:
        return text if not text or text.isspace() else self._words.setdefault(text, f"{WORD}{len(self._words)}q")


_BEGUN, _ENDED = " begun", " ended"
Messages = list[dict[str, Any]]


class TemplateRefusal(Exception):
    """The error for a conversation that the template refuses with `raise_exception`."""


class UnusableOutputError(Exception):
    """The error for an output of the template that cannot be used."""


class RenderedTemplate(NamedTuple):
    """A rendering.

    Attributes:
        text: The text.
        marked: For each block `generation`, its position, its text, and the number of its message or None.
        begins: Where the template begins to write each message, by the number of the message. Empty for a template that does not write
            messages one after the other in a loop.
    """

    text: str
    marked: list[tuple[int, str, int | None]]
    begins: dict[int, int]


class CompiledTemplate:
    """A compiled template.

    Args:
        text: The template.
        variables: Values that the template may use, such as the strings of special tokens.
        names: Strings of all special tokens; by default none.

    Raises:
        jinja2.TemplateError: If the template has a syntax error.
    """

    def __init__(self, text: str, variables: dict[str, Any], names: Collection[str]) -> None:
        from jinja2 import nodes, pass_context
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from jinja2.utils import Namespace
        from jinja2.visitor import NodeTransformer

        template, numbers = self, count()
        self.passes = LoopPasses({})
        blocks: list[nodes.Node] = []

        class Marks(Extension):
            """The parser of the block `generation`, whose text is a target."""

            tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

            def parse(self, parser: Any) -> Any:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                blocks.append(nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line))
                return blocks[-1]

            def _marked(self, caller: Any) -> str:
                target = str(caller())
                template.passes.mark(target)
                return target

        class Loops(NodeTransformer):
            """A transformer of all loops, which then report the message of each iteration, and their end."""

            def visit_For(self, node: nodes.For) -> Any:
                self.generic_visit(node)
                if not isinstance(node.target, nodes.Name):
                    return node
                loop = nodes.Const(next(numbers))
                begun = nodes.Filter(nodes.Name(node.target.name, "load"), _BEGUN, [loop], [], None, None).set_lineno(node.lineno)
                ended = nodes.Filter(loop, _ENDED, [], [], None, None).set_lineno(node.lineno)
                node.body.insert(0, nodes.ExprStmt(begun).set_lineno(node.lineno))
                return [node, nodes.ExprStmt(ended).set_lineno(node.lineno)]

        class Names(Namespace):
            """A namespace without names that begin with an underscore."""

            def __setitem__(self, name: str, value: Any) -> None:
                if str(name).startswith("_"):
                    raise UnusableOutputError(f"a namespace cannot have the name {name!r}")
                super().__setitem__(name, value)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Marks, loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.filters |= {  # cheaper than functions; no template can use such a name
            _BEGUN: lambda value, loop: template.passes.begin(loop, value),
            _ENDED: pass_context(lambda context, loop: template.passes.end(loop)),  # with a context, it is not called while compiling
        }
        environment.globals |= {"raise_exception": _refuse, "namespace": Names}
        for table in (environment.globals, environment.filters):  # without jinja2's functions with random output
            table.pop("lipsum", None)
            table.pop("random", None)
        tree = environment.parse(text)
        for outer in tree.find_all((nodes.AssignBlock, nodes.Macro, nodes.FilterBlock, nodes.CallBlock)):
            if any(inner is block for inner in outer.find_all(nodes.CallBlock) for block in blocks):
                raise UnusableOutputError(
                    f"line {outer.lineno}: a generation block is inside a macro or a set block, so the place of its text is not known"
                )
        self._words = (template_strings(tree), compared_strings(tree), frozenset(names))
        self.has_marks = bool(blocks)
        self._variables = variables
        tree = Loops().visit(tree)
        self._template = environment.from_string(tree.set_environment(environment))

    def neutral(self, messages: Messages, tools: Any) -> tuple[Messages, Any]:
        words = NeutralWords(*self._words)
        return [words.of(message) for message in messages], words.of(tools)

    def render(self, messages: Messages, tools: Any, *, most: int, prompt: bool = False) -> RenderedTemplate:
        """Render messages.

        Args:
            messages: Messages of the conversation.
            tools: JSON schemas of tools, or None.
            most: Maximum number of characters of the text.
            prompt: Whether the text ends with the prompt for a reply; by default no.

        Raises:
            TemplateRefusal: If the template refuses the conversation.
            UnusableOutputError: If the text is too long.
        """
        pieces: list[str] = []
        self.passes = LoopPasses({id(message): number for number, message in enumerate(messages)})
        values = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt}
        for piece in self._template.generate(**{**self._variables, **values}):
            pieces.append(piece)
            self.passes.written += len(piece)
            if self.passes.written > most:
                raise UnusableOutputError(f"it makes more than {most:,} characters of one conversation")
        return RenderedTemplate("".join(pieces), self.passes.marked, self.passes.begins)


class LoopPasses:
    """The iterations of loops over the messages of one rendering.

    Args:
        numbers: Number of each message by its `id`.
    """

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self.written = 0  # characters of the conversation that are already rendered
        self.marked: list[tuple[int, str, int | None]] = []
        self.begins: dict[int, int] = {}
        self._numbers = numbers
        self._open: list[tuple[int, dict[int, int]]] = []  # loops that are running, and the positions of their messages
        self._most = 0

    def begin(self, loop: int, value: Any) -> None:
        number = self._numbers.get(id(value))
        if number is None:
            return
        if not self._open or self._open[-1][0] != loop:
            self._open.append((loop, {}))
        self._open[-1][1][number] = self.written

    def end(self, loop: int) -> None:
        """End a loop. The loop that writes the most is the one that writes the messages."""
        if not self._open or self._open[-1][0] != loop:
            return
        _, begins = self._open.pop()
        grown = self.written - next(iter(begins.values()))
        if grown > self._most:
            self._most, self.begins = grown, begins

    def mark(self, target: str) -> None:
        self.marked.append((self.written, target, next(reversed(self._open[-1][1])) if self._open else None))


def template_strings(tree: Any) -> frozenset[str]:
    """Return all strings in the code of a template, and the names of attributes."""
    from jinja2 import nodes

    texts = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return frozenset(texts | {node.attr for node in tree.find_all(nodes.Getattr)})


def compared_strings(tree: Any) -> frozenset[str]:
    """Return the strings with which a template compares others."""
    from jinja2 import nodes

    found: set[str] = set()
    for node in tree.find_all((nodes.Compare, nodes.Test, nodes.Filter)):
        if not isinstance(node, nodes.Filter) or node.name in ("selectattr", "rejectattr"):
            found |= {each.value for each in node.find_all(nodes.Const) if isinstance(each.value, str)}
    return frozenset(found)


def _refuse(message: Any) -> None:
    raise TemplateRefusal(str(message))


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
