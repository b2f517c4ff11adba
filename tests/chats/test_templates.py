"""Chat templates: their tokens and targets are those of transformers, and a hostile template is one clear line."""

import errno
import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.base.documents import Conversation
from niels_cache_assets.build_cache import build_sft_cache
from niels_cache_assets.chats import rendering
from niels_cache_assets.chats.encoding import ChatEncoder, EncodedChat, UnusableChat
from niels_cache_assets.chats.rendering import Chat, RenderedChat, RendererPool
from niels_cache_assets.chats.templates import Template, find_template
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.tokenizer.kinds import open_model
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from niels_cache_assets.tokenizer.tokenizer_json import HuggingFaceTokenizer
from niels_cache_corpora.oasst1 import Oasst1
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.chat_models import MARKED, ROLES, UNMARKED, chatml, opened_model, template_of

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Read the cache."},
    {"role": "assistant", "content": "It reads every byte 😀"},
    {"role": "user", "content": "And the seed?"},
    {"role": "assistant", "content": "The order.\nÉ"},
]
_TRL = importlib.util.find_spec("trl")
_FOLDER = Path(_TRL.submodule_search_locations[0]) / "chat_templates" if _TRL and _TRL.submodule_search_locations else None
# gptoss writes a date, muse_glimmer too if it can, and llava_next wants contents as lists.
_NOT_HERE = ("gptoss", "muse_glimmer", "llava_next")
SHIPPED = sorted(path.stem for path in _FOLDER.glob("*_training.jinja")) if _FOLDER else []
COMPARED = [name for name in SHIPPED if not name.startswith(_NOT_HERE)]
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"


def rendered(template: Template, messages: list[dict[str, Any]] = TURNS) -> RenderedChat:
    with RendererPool(template) as ready:
        (found,) = ready.render([Chat(messages, "example 1")])
    assert isinstance(found, RenderedChat)
    return found


def words(found: RenderedChat) -> list[str]:
    return [found.text[start:end] for start, end in found.spans]


def encoded(template: Template, tokenizer: HuggingFaceTokenizer, *chats: list[dict[str, Any]]) -> list[EncodedChat | UnusableChat]:
    with ChatEncoder(template, tokenizer) as encoder:
        return encoder.encode([Chat(messages, f"example {number}") for number, messages in enumerate(chats)])


@pytest.fixture(scope="module")
def real() -> tuple[Any, Any, list[list[dict[str, Any]]]]:
    """A tokenizer of a model, opened by us and by transformers, and real chats."""
    pytest.importorskip("transformers")
    if _FOLDER is None:
        pytest.skip("trl is not installed: its chat templates are compared")
    data = Path(os.environ.get("NIELS_CACHE_REAL_DATA", ""))
    path, chats = data / "tokenizers/deepseek_tokenizer.json", data / "oasst1/en_trees_60.jsonl"
    if not os.environ.get("NIELS_CACHE_REAL_DATA") or not path.exists() or not chats.exists():
        pytest.skip("NIELS_CACHE_REAL_DATA is not set: real chats and a real tokenizer are compared")
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token=BOS, eos_token=EOS)
    source = Oasst1.model_validate({"files": [str(chats)]})
    found = [each.messages for batch in source.conversations(StreamContext(seed=0)) for each in batch]
    long = sorted(found, key=len, reverse=True)[:15]
    return open_model(path, special_tokens={"eot": EOS, "bos": BOS}), theirs, [*long, *found[:15]]


@pytest.mark.parametrize("name", COMPARED or ["none"])
def test_ids_and_masks_are_those_of_transformers(name: str, real: tuple[Any, Any, list[list[dict[str, Any]]]]) -> None:
    ours, theirs, chats = real
    assert len(COMPARED) >= 8
    assert _FOLDER is not None
    text = (_FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    template = Template(name=name, text=text, variables={"bos_token": BOS, "eos_token": EOS}, where=name)
    learned = 0
    for messages, found in zip(chats, encoded(template, ours, *chats), strict=True):
        assert isinstance(found, EncodedChat)
        wanted = theirs.apply_chat_template(messages, chat_template=text, return_dict=True, return_assistant_tokens_mask=True)
        mask = np.zeros(len(found.ids), dtype=int)
        for start, end in found.spans.tolist():
            mask[start:end] = 1
        assert found.ids.tolist() == wanted["input_ids"]
        assert mask.tolist() == wanted["assistant_masks"]
        learned += int(mask.sum())
    assert learned > 100


CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}


def test_chatml_refuses_calls_because_it_would_lose_them(model: Path) -> None:
    asked = {"role": "user", "content": "q"}
    rows = [
        [asked, {"role": "assistant", **said}] for said in ({"content": None, "tool_calls": [CALL]}, {"content": "a", "tool_calls": [CALL]})
    ]
    with ChatEncoder(chatml(), opened_model(model)) as encoder:
        found = encoder.encode([Chat(row, "row") for row in rows])
    assert [getattr(each, "reason", None) for each in found] == ["refused_by_template"] * 2


def test_chatml_marks_the_words_and_the_end_of_each_reply() -> None:
    found = rendered(chatml())
    assert found.text == "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in TURNS)
    assert words(found) == [f"{TURNS[2]['content']}<|im_end|>", f"{TURNS[4]['content']}<|im_end|>"]


def test_a_template_without_marks_is_compared_with_its_prefixes() -> None:
    assert words(rendered(template_of(UNMARKED))) == [f"{TURNS[2]['content']}\n", f"{TURNS[4]['content']}\n"]
    with RendererPool(template_of(UNMARKED)) as plain, RendererPool(template_of(MARKED)) as marked:
        assert (plain.has_marks, marked.has_marks) == (False, True)


def test_a_first_message_of_the_assistant_is_found_after_all_that_the_template_adds() -> None:
    greeting = [{"role": "assistant", "content": "Hello."}, *TURNS[1:3]]
    default = "{% if messages[0].role != 'system' %}{{ '[system] Be kind.\\n' }}{% endif %}" + UNMARKED
    assert words(rendered(template_of(default), greeting)) == ["Hello.\n", f"{TURNS[2]['content']}\n"]
    without_prompt = UNMARKED.replace("add_generation_prompt", "false")
    assert words(rendered(template_of(without_prompt), greeting))[0] == "[assistant] Hello.\n"
    other_prompt = UNMARKED.replace("'[assistant] '", "'[reply] '")
    with pytest.raises(NielsCacheError, match=r"odd\.jinja: .*generation"):
        rendered(template_of(other_prompt, where="odd.jinja"), greeting)


def test_an_ambiguous_template_is_an_error_that_names_it() -> None:
    backwards = "{% for message in messages|reverse %}{{ message.content }}{% endfor %}"
    with pytest.raises(NielsCacheError, match=r"odd\.jinja: .*generation"):
        rendered(template_of(backwards, where="odd.jinja"))


@pytest.mark.parametrize("where", ["content", "name", "tool_calls"])
def test_a_message_that_would_yield_a_special_token_is_not_used(model: Path, where: str) -> None:
    forged = {"role": "user", "content": "Hello.", where: "x <|im_end|> y" if where != "tool_calls" else [{"f": {"<|usr|>": 1}}]}
    bad, good = encoded(chatml(), opened_model(model), [forged, TURNS[2]], TURNS)
    assert isinstance(bad, UnusableChat)
    assert bad.reason == "special_token_collision"
    assert isinstance(good, EncodedChat)


def test_a_look_alike_that_a_normalizer_changes_is_found_too(model: Path, tmp_path: Path) -> None:
    described = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    described["normalizer"] = {"type": "NFKC"}
    described["added_tokens"] = [{**each, "normalized": True} for each in described["added_tokens"]]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(described), encoding="utf-8")
    tokenizer = HuggingFaceTokenizer(path, special_tokens=ROLES)
    assert tokenizer.yields_special(["\uff1c|im_end|\uff1e", "<|im_end|>", "<|im_end", "plain"]) == [True, True, False, False]
    assert opened_model(model).yields_special(["\uff1c|im_end|\uff1e", "<|im_end|>"]) == [False, True]


def test_other_kinds_of_tokenizers_find_spans_too(tiny_model: Path, tmp_path: Path) -> None:
    data = Path(os.environ.get("NIELS_CACHE_REAL_DATA", "")) / "tokenizers/gpt2.tiktoken"
    tokenizers = [open_model(tiny_model)]
    if os.environ.get("NIELS_CACHE_REAL_DATA") and data.exists():
        tokenizers.append(open_model(data, encoding="gpt2", special_tokens={"eot": "<|endoftext|>"}))
    text = "[user] Read it. [A] É 😀 the cache reads<|endoftext|>"
    start = text.index("É")
    for tokenizer in tokenizers:
        ((ids, spans),) = tokenizer.encode_rendered([text], [[(start, len(text))]])
        first, end = spans[0].tolist()
        assert tokenizer.decode(ids).strip() == text
        assert tokenizer.decode(ids[first:end]).strip() == text[start:]


HOSTILE = {
    "an endless constant": ("{{ 9 ** (9 ** (9 ** 9)) }}", "processor time"),
    "much output in pieces": ("{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "characters"),
    "10 GB of memory": ("{{ ('x' * 10000000000)|length }}", "memory"),
    "an import": ("{% import 'os' as os %}{{ os.system('true') }}", "import|loader"),
    "an import by a function": ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "__init__|unsafe|undefined"),
    "a change of the messages": ("{{ messages.append(1) }}", "append|safe"),
    "a wrong syntax": ("line one\n{% for %}", "line 2"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "without an end"),
    "a clock": ("{{ strftime_now('%Y') }}", "strftime_now"),
    "a draw": ("{{ messages|random }}", "random"),
    "made-up text": ("{{ lipsum() }}", "lipsum"),
    "a mark in a set block": ("{% set x %}b{% generation %}a{% endgeneration %}{% endset %}cc{{ x }}", "set block"),
    "a lying namespace": ("{% set n = namespace() %}{% set n.__class__ = 1 %}", "namespace"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, keyword = HOSTILE[name]
    if keyword == "processor time":  # the others would reach a limit of a second as well, on a slow machine
        monkeypatch.setattr(rendering, "MAX_SECONDS", 1)
    with pytest.raises(NielsCacheError, match=rf"odd\.jinja: (?s:.)*({keyword})") as raised:
        rendered(template_of(text, where="odd.jinja"))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_what_a_template_refuses_is_counted_and_said(model: Path) -> None:
    text = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}" + MARKED
    refused, used = encoded(template_of(text), opened_model(model), TURNS, TURNS[1:])
    assert isinstance(refused, UnusableChat)
    assert refused.reason == "refused_by_template"
    assert "no system here" in refused.explanation
    assert isinstance(used, EncodedChat)
    (nothing,) = encoded(template_of("{% generation %}{% endgeneration %}x"), opened_model(model), TURNS)
    assert isinstance(nothing, UnusableChat)
    assert nothing.reason == "no_target"


def test_a_child_that_is_killed_is_an_error_and_the_next_one_works(model: Path) -> None:
    with RendererPool(chatml()) as ready:
        ready.render([Chat(TURNS, "example 1")])
        (child,) = ready._started
        os.kill(child._process.pid, signal.SIGKILL)
        with pytest.raises(NielsCacheError, match="SIGKILL"):
            ready.render([Chat(TURNS, "example 1")])
        assert len(ready.render([Chat(TURNS, "example 1")])) == 1


def test_a_signal_to_the_group_leaves_the_child_to_its_parent() -> None:
    with RendererPool(chatml()) as ready:
        ready.render([Chat(TURNS, "example 1")])
        (child,) = ready._started
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(child._process.pid, number)
        assert len(ready.render([Chat(TURNS, "example 1")])) == 1


def test_a_child_that_cannot_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(rendering.subprocess, "Popen", refuse)
    with pytest.raises(NielsCacheError, match="cannot start"):
        rendered(chatml())


def test_the_tokenizer_must_have_the_markers(tiny_model: Path) -> None:
    with pytest.raises(NielsCacheError, match=r"<\|im_start\|>"):
        ChatEncoder(chatml(), open_model(tiny_model))


def test_the_template_of_a_model_is_beside_its_tokenizer(model: Path, tmp_path: Path) -> None:
    settings = TokenizerSettings(model=str(model), special_tokens=ROLES)
    found = find_template("model", settings)
    assert found is not None
    assert found.text == MARKED
    assert found.variables == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    other = tmp_path / "older"
    other.mkdir()
    (other / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    config = {"chat_template": [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]}
    (other / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    older = find_template("model", TokenizerSettings(model=str(other), special_tokens=ROLES))
    assert older is not None
    assert older.text == "b"
    assert find_template("sentinels", settings) is None
    for name, keyword, table in [
        ("model", "names no model", TokenizerSettings()),
        (str(tmp_path / "none.jinja"), "none.jinja", settings),
        ("model", "chat_template", TokenizerSettings(model=str(tmp_path / "x.model"))),
    ]:
        with pytest.raises(NielsCacheError, match=keyword):
            find_template(name, table)


# No text of a conversation forges a special token, whatever the template does with it.


END, START = "<|im_end|>", "<|im_start|>"
TURN = (
    "{% for message in messages %}{{ '<|im_start|>' ~ message.role ~ '\\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content ~ '<|im_end|>' }}{% endgeneration %}{% else %}"
    "{{ TEXT ~ '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
)
FORGED: dict[str, tuple[str, dict[str, Any]]] = {
    "a removed tag": ("message.content|replace('</think>', '')", {"content": f"<|im_</think>end|>\n{START[:5]}</think>start|>"}),
    "a replaced word": ("message.content|replace('LT', '<')|replace('GT', '>')", {"content": "LT|im_end|GT"}),
    "joined pieces": ("message.content.split('*')|join('')", {"content": "<|im_*end|>"}),
    "joined lines": ("message.content.split('\\n')|map('trim')|join", {"content": "<|im_\n end|>"}),
    "entities without tags": ("message.content|striptags", {"content": "&lt;|im_end|&gt;"}),
    "lower case": ("message.content|lower", {"content": "<|IM_END|>"}),
    "a name before the text": ("(message.name or '') ~ message.content", {"name": "<|im_", "content": "end|> hello"}),
    "thoughts before the text": (
        "(message.reasoning_content or '') ~ message.content",
        {"reasoning_content": "a<|im", "content": "_end|>"},
    ),
    "a reversed text": ("message.content|reverse", {"content": END[::-1]}),
    "the brackets of the template": ("'<' ~ message.name ~ '>' ~ message.content", {"name": "|im_end|", "content": "x"}),
    "a key before its value": ("message.extra.items()|map('join')|join", {"content": "x", "extra": {"<|im_": "end|>"}}),
    "a format": ("message.content|replace('%s', 'im_end')", {"content": "<|%s|>"}),
    "characters with an escape": ("message.content.encode().decode('unicode_escape')", {"content": "\\x3c|im_end|\\x3e"}),
    "two messages": ("message.content ~ (loop.nextitem.content if loop.nextitem else '')", {"content": "<|im_"}),
}
ANSWER = {"role": "assistant", "content": "end|> yes"}


def encoded_once(text: str, tokenizer: HuggingFaceTokenizer, *messages: dict[str, Any]) -> EncodedChat | UnusableChat:
    with ChatEncoder(template_of(text), tokenizer) as encoder:
        (found,) = encoder.encode([Chat(list(messages), "example 1")])
    return found


@pytest.mark.parametrize("form", FORGED)
def test_a_forged_token_drops_its_conversation(form: str, model: Path) -> None:
    expression, message = FORGED[form]
    tokenizer, template = opened_model(model), TURN.replace("TEXT", expression)
    assert not any(tokenizer.yields_special([str(value) for value in message.values() if isinstance(value, str)]))
    bad = encoded_once(template, tokenizer, {"role": "user", **message}, ANSWER)
    assert isinstance(bad, UnusableChat), tokenizer.decode(bad.ids)
    assert bad.reason == "special_token_collision"
    harmless = {key: "im end, <b> & [x]" if isinstance(value, str) else {"a": "b"} for key, value in message.items()}
    good = encoded_once(template, tokenizer, {"role": "user", **harmless}, ANSWER)
    assert isinstance(good, EncodedChat)


def test_a_pair_with_a_forged_side_is_dropped(tmp_path: Path, model: Path) -> None:
    asked = {"role": "user", "content": "q"}
    pairs = [
        Conversation([asked, {"role": "assistant", "content": "good"}], rejected=[asked, {"role": "assistant", "content": bad}])  # type: ignore[list-item]
        for bad in ("bad", "worse", "<|im_</b>end|>")
    ]
    template = template_of(TURN.replace("message.content ~ '<|im_end|>'", "message.content|replace('</b>', '') ~ '<|im_end|>'"))
    build_sft_cache(pairs, str(tmp_path / "x"), tokenizer=opened_model(model), val_frac=0, seed=1, template=template, preference=True)
    meta = read_meta(str(tmp_path / "x" / "meta.json"))
    assert meta["dropped"] == {"special_token_collision": 1}
    assert meta["train_examples"] == 2


def with_added(model: Path, folder: Path, *names: str) -> HuggingFaceTokenizer:
    """The tokenizer with further added tokens, which it does not call special."""
    described = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    rest = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    first = max(described["model"]["vocab"].values()) + 1
    described["added_tokens"] += [{"id": first + number, "content": name, **rest} for number, name in enumerate(names)]
    (folder / "tokenizer.json").write_text(json.dumps(described), encoding="utf-8")
    return HuggingFaceTokenizer(folder / "tokenizer.json", special_tokens=ROLES)


def test_a_marker_of_the_template_is_guarded_even_if_it_is_not_special(model: Path, tmp_path: Path) -> None:
    tokenizer = with_added(model, tmp_path, "<｜User｜>", "<｜Other｜>")
    marked = "{% generation %}{{ m.content }}{% endgeneration %}"
    template = "{% for m in messages %}{{ '<｜User｜>' if m.role == 'user' else '<|asst|>' }}" + marked + "{% endfor %}"
    asked = [
        encoded_once(template, tokenizer, {"role": "user", "content": text}, ANSWER) for text in ("a<｜User｜>b", "a<｜Other｜>b", "ab")
    ]
    assert [getattr(each, "reason", None) for each in asked] == ["special_token_collision", None, None]
