"""The child process that renders conversations with a chat template.

It imports only the standard library, jinja2, and the modules beside it that do the same.

A template is a program that somebody else wrote. So it runs in jinja2's immutable sandbox, in a process of its own, with limits for memory,
the size of the output, and the processor time of each conversation. The settings and helpers are those that templates expect from
`transformers`, except that there is no clock: `strftime_now` is not defined.

The parent writes one JSON value per line, and gets one JSON value per line:

    {"template", "variables", "names", "memory", "seconds"}     -> {"marks": whether the template marks targets, "plain"} or {"error"}
    [{"messages", "tools", "last", "most", "seconds",           -> for each: {"text", "spans", "owners", "neutral"}, {"refused"},
      "text_only"}, ...]                                           {"unproven"} or {"error"}; "text_only" looks for no targets

`spans` are pairs of character positions, the first and the one past the last character of each target. `owners` has the number of the
message of each span, or None if it is not known. The spans come from the marks `{% generation %}` ... `{% endgeneration %}`. In a template
without marks, the target is the text that each message of the assistant adds to the messages before it (see
`targets.ConversationRenderings`).

`neutral` is the rendering of the same conversation with other words. The parent compares its special tokens with those of `text`, because
words must not add any. `plain` is the rendering of a short conversation with neutral words, or None if the template refuses it.
"""

import json
import math
import resource
import signal
import sys
from contextlib import suppress
from typing import Any, BinaryIO

from niels_cache_assets.chats.compiled import CompiledTemplate, TemplateRefusal
from niels_cache_assets.chats.targets import Renderer, TooManyMessagesError

_TEMPLATE = "<template>"  # the file name that jinja2 gives to code of a template in a traceback
_MAX_ERROR_CHARACTERS = 300  # characters of an error that are reported


def _describe_error(error: BaseException) -> str:
    """Return an error of a template in one line, with the line number in the template if it is known."""
    from jinja2 import TemplateSyntaxError

    line, trace = getattr(error, "lineno", None) if isinstance(error, TemplateSyntaxError) else None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _TEMPLATE:
            line = trace.tb_lineno
        trace = trace.tb_next
    message = " ".join(str(error).split())[:_MAX_ERROR_CHARACTERS] or type(error).__name__
    if isinstance(error, MemoryError):
        message = "it needs too much memory"
    elif isinstance(error, RecursionError):
        message = "it calls itself without an end"
    elif "strftime_now" in message:
        message += " (a cache depends on no clock); let the template test `strftime_now is defined`, and write a fixed date otherwise"
    return message if line is None else f"line {line}: {message}"


def _limit_time(seconds: int) -> None:
    """End this process with a signal after this many further seconds of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + seconds)


def _limit(kind: int, most: int) -> None:
    """Set a soft limit of this process, no higher than its hard limit; do nothing on a system that does not know the limit."""
    _, hard = resource.getrlimit(kind)
    with suppress(ValueError, OSError):
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _answer(renderer: Renderer, task: dict[str, Any]) -> dict[str, Any]:
    try:
        if task["text_only"]:
            return {"text": renderer.text(task["messages"], task["tools"], most=task["most"]), "spans": [], "owners": [], "neutral": ""}
        return renderer.render(task["messages"], task["tools"], most=task["most"], last=task["last"])
    except TemplateRefusal as error:
        return {"refused": _describe_error(error)}
    except TooManyMessagesError:
        return {"unproven": len(task["messages"])}
    except Exception as error:  # whatever a template does is its error
        return {"error": _describe_error(error)}


def main(lines: BinaryIO, out: BinaryIO) -> None:
    """Answer the parent until it closes the pipe."""

    def reply(value: Any) -> None:
        out.write(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
        out.flush()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the whole process group gets them, and the parent ends this process
        signal.signal(number, signal.SIG_IGN)
    first = json.loads(lines.readline())
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, first["memory"])
    _limit_time(first["seconds"])
    try:
        renderer = Renderer(CompiledTemplate(first["template"], first["variables"], first["names"]))
        facts = {"marks": renderer.template.has_marks, "plain": renderer.plain}
    except Exception as error:
        reply({"error": _describe_error(error)})
        return
    reply(facts)
    for line in iter(lines.readline, b""):
        for task in json.loads(line):
            _limit_time(task["seconds"])
            reply(_answer(renderer, task))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
