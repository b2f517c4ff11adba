"""Which tokens of a conversation are learned: never a header, never an empty turn, and with `turns` only those of one turn."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from niels_cache_assets.base.documents import Conversation
from niels_cache_assets.build_cache import Resume, build_sft_cache
from niels_cache_assets.chats.encoding import ChatEncoder, EncodedChat, UnusableChat
from niels_cache_assets.chats.rendering import Chat, RenderedChat, RendererPool
from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.tokenizer.base import TextTokenizer
from niels_cache_assets.tokenizer.sentencepiece_model import SentencePieceTokenizer
from niels_cache_assets.tokenizer.tokenizer_json import HuggingFaceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.chat_models import chatml, opened_model, template_of

BODY = "{{ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}"
LOOP = "{% for message in messages %}" + BODY + "{% endfor %}"
PROMPT = "{{ '<|im_start|>assistant\\n' }}"
IF_ASKED = "{% if add_generation_prompt %}" + PROMPT + "{% endif %}"


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **others}


TURNS = [user("first question"), assistant("first answer"), user("second question"), assistant("second answer")]


def encode(text: str, tokenizer: TextTokenizer, *chats: Chat) -> list[EncodedChat]:
    with ChatEncoder(template_of(text), tokenizer) as encoder:
        found = encoder.encode(chats)
    assert not [each for each in found if isinstance(each, UnusableChat)]
    return [each for each in found if isinstance(each, EncodedChat)]


def learned(text: str, tokenizer: HuggingFaceTokenizer, messages: list[dict[str, Any]] = TURNS, **settings: Any) -> list[str]:
    (found,) = encode(text, tokenizer, Chat(messages, "example 1", **settings))
    return [tokenizer.decode(found.ids[start:end]) for start, end in found.spans.tolist()]


WORDS = ["first answer<|im_end|>", "second answer<|im_end|>"]
ALWAYS = {
    "after the loop": LOOP + PROMPT,
    "in the last pass": LOOP.replace("{% endfor %}", "{% if loop.last %}" + PROMPT + "{% endif %}{% endfor %}"),
    "with marks": LOOP.replace("message.content ~ '<|im_end|>\\n'", "''").replace(
        "}}{% endfor %}",
        "}}{% generation %}{{ message.content ~ '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}{% endfor %}",
    )
    + PROMPT,
}


@pytest.mark.parametrize("where", ALWAYS)
def test_a_prompt_that_is_always_written_is_cut(where: str, model: Path) -> None:
    tokenizer, text = opened_model(model), ALWAYS[where]
    (found,) = encode(text, tokenizer, Chat(TURNS, "example 1"))
    assert tokenizer.decode(found.ids).endswith("second answer<|im_end|>\n")
    own = [each for each in learned(text, tokenizer) if "question" not in each]
    assert own == WORDS
    assert learned(text, tokenizer, last=True)[-1:] == WORDS[1:]
    assert learned(text, tokenizer, [*TURNS, user("third question")])[: len(WORDS)][-1] != "<|im_start|>assistant\n"


def test_a_prompt_at_the_end_that_is_not_exactly_the_header_is_refused(model: Path) -> None:
    thinking = LOOP + "{{ '<|im_start|>assistant\\n<think>' }}"
    nowhere = "{% for i in range(messages|length) %}" + BODY.replace("message.", "messages[i].") + "{% endfor %}" + PROMPT
    for text in (thinking, nowhere):
        with pytest.raises(NielsCacheError, match="end of every conversation"):
            learned(text, opened_model(model))


@pytest.mark.parametrize("text", [LOOP + IF_ASKED, chatml().text])
def test_the_line_break_after_the_end_of_a_turn_and_an_ignored_message_are_no_target(text: str, model: Path) -> None:
    assert learned(text, opened_model(model)) == WORDS
    assert learned(text, opened_model(model), ignored={1}) == WORDS[1:]
    marked = text.replace("'<|im_end|>' }}{% endgeneration %}", "'<|im_end|>\\n' }}{% endgeneration %}")
    assert learned(marked, opened_model(model)) == WORDS


def test_a_target_never_begins_in_the_header_of_the_template(model: Path) -> None:
    header = "{{ 'Write after <|im_start|>assistant\\nor refuse.\\n' }}"
    greeting = [assistant("hello"), *TURNS]
    assert learned(header + LOOP + IF_ASKED, opened_model(model), greeting) == ["hello<|im_end|>", *WORDS]
    without_prompt = learned(header + LOOP, opened_model(model), greeting)
    assert len(without_prompt) == 3
    assert not any("Write after" in words for words in without_prompt)


def source_of(folder: Path, *rows: list[dict[str, Any]], **keys: Any) -> ChatJsonl:
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows), encoding="utf-8")
    return ChatJsonl.model_validate({"source": "chat_jsonl", "files": [str(path)], **keys})


def test_an_empty_system_message_reaches_a_template_only(tmp_path: Path) -> None:
    rows = [[{"role": "system", "content": ""}, *TURNS], [{"role": "system", "content": None}, *TURNS]]
    for template, wanted in (("chatml", [5, 4]), ("sentinels", [4, 4])):
        source = source_of(tmp_path, *rows, template=template)
        ((*found,),) = source.conversations(StreamContext(seed=0))
        assert [len(each.messages) for each in found] == wanted


def test_an_empty_turn_stays_without_a_target_and_is_counted(tmp_path: Path, model: Path) -> None:
    rows = [[*TURNS[:2], user("more"), assistant(empty), *TURNS[2:]] for empty in ("", " \n", None)]  # type: ignore[arg-type]
    source = source_of(tmp_path, *rows, [user("q"), assistant("")], template="chatml", on_broken="drop")
    context = StreamContext(seed=0)
    found = [each for batch in source.conversations(context) for each in batch]
    assert context.report.dropped == {"no_assistant": 1}
    settings: dict[str, Any] = {"tokenizer": opened_model(model), "val_frac": 0, "seed": 1}
    build_sft_cache(found, str(tmp_path / "x"), template=template_of(LOOP + IF_ASKED), **settings)
    meta = read_meta(str(tmp_path / "x" / "meta.json"))
    assert meta["facts"]["empty_turns"] == 3
    assert meta["targets"]["train"] == 6
    assert verify_dataset(tmp_path / "x") == []


THINKING = (
    "{% for message in messages %}{{ '<|im_start|>' ~ message.role ~ '\\n' }}"
    "{% if message.reasoning_content and loop.last %}{{ '<think>' ~ message.reasoning_content ~ '</think>' }}{% endif %}"
    "{{ message.content ~ '<|im_end|>\\n' }}{% endfor %}" + IF_ASKED
)
SYSTEM_AT_THE_END = (
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}{{ bos_token }}"
    "{% for message in messages if message.role != 'system' %}"
    "{% set before = system ~ '\\n' if loop.revindex0 <= 1 and system else '' %}"
    "{% if message.role == 'user' %}{{ '[INST] ' ~ before ~ message.content ~ '[/INST]' }}"
    "{% else %}{{ ' ' ~ message.content ~ eos_token }}{% endif %}{% endfor %}"
)
OTHER_PROMPT = LOOP + IF_ASKED.replace("assistant\\n", "assistant\\n<think>\\n</think>\\n")
CURRENT = {  # the form of Qwen3, of Mistral, and of Gemma 4 without thinking
    "thinking that disappears": (THINKING, "<think>so</think>second answer<|im_end|>"),
    "the system at the end": (SYSTEM_AT_THE_END, " second answer<|im_end|>"),
    "a prompt that replies do not have": (OTHER_PROMPT, "second answer<|im_end|>"),
}
SPOKEN = [
    user("first question"),
    assistant("first answer", reasoning_content="hm"),
    user("second question"),
    assistant("second answer", reasoning_content="so"),
]


@pytest.mark.parametrize("form", CURRENT)
def test_each_turn_has_the_ids_of_transformers_and_learns_its_own_words(form: str, model: Path) -> None:
    transformers = pytest.importorskip("transformers")
    text, wanted = CURRENT[form]
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(model / "tokenizer.json"), bos_token="<|endoftext|>", eos_token="<|im_end|>"
    )
    messages = [{"role": "system", "content": "Be brief."}, *SPOKEN] if form == "the system at the end" else SPOKEN
    with pytest.raises(NielsCacheError, match='turns = "each"'):
        learned(text, opened_model(model), messages)
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    found = encode(text, opened_model(model), *(Chat(messages[: turn + 1], "example", last=True) for turn in turns))
    for turn, each in zip(turns, found, strict=True):
        assert each.ids.tolist() == theirs.apply_chat_template(messages[: turn + 1], chat_template=text, return_dict=True)["input_ids"]
        assert len(each.spans) == 1
    (start, end) = found[-1].spans[0].tolist()
    assert opened_model(model).decode(found[-1].ids[start:end]) == wanted


def conversations(count: int) -> list[Conversation]:
    return [
        Conversation([user(f"q {n}"), *(assistant(f"a {n} {k}") if k % 2 else user(f"b {n}") for k in range(1, 2 + 2 * (n % 3)))], str(n))
        for n in range(count)
    ]  # type: ignore[list-item]


def built(folder: Path, model: Path, found: Any, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"tokenizer": opened_model(model), "val_frac": 0.3, "seed": 2, "template": chatml(), "threads": 1, **changes}
    build_sft_cache(found, str(folder), **settings)
    assert verify_dataset(folder) == []
    return dict(read_meta(str(folder / "meta.json")))


def test_examples_of_a_conversation_share_a_split(tmp_path: Path, model: Path) -> None:
    given = conversations(30)
    metas = {turns: built(tmp_path / turns, model, given, turns=turns) for turns in ("all", "each", "last")}
    ids = {
        (turns, split): parquet.read_table(tmp_path / turns / f"{split}_examples.parquet").column("source_id").to_pylist()
        for turns in metas
        for split in ("train", "val")
    }
    assert len(ids["each", "val"]) > len({*ids["each", "val"]}) > 3
    for split in ("train", "val"):
        assert {*ids["each", split]} == {*ids["all", split]}
        assert ids["last", split] == ids["all", split] == list(dict.fromkeys(ids["each", split]))
    turns_of = [sum(message["role"] == "assistant" for message in each.messages) for each in given]
    assert metas["each"]["train_examples"] + metas["each"]["val_examples"] == sum(turns_of)
    assert metas["each"]["targets"] == {split: metas["each"][f"{split}_examples"] for split in ("train", "val")}
    assert [metas[turns]["template"].get("turns") for turns in metas] == [None, "each", "last"]
    assert metas["each"]["facts"]["conversations"] == len(given)


def test_a_resumed_build_of_turns_gives_the_same_bytes(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIELS_CACHE_JOURNAL_BYTES", "1")
    given = conversations(700)

    def until(end: int) -> Any:
        yield from given[:end]
        if end < len(given):
            raise RuntimeError("stopped")

    told: list[str] = []
    resume = Resume(fingerprint="a", log=told.append)
    with pytest.raises(RuntimeError, match="stopped"):
        built(tmp_path / "x", model, until(600), turns="each", resume=resume)
    resumed = built(tmp_path / "x", model, until(700), turns="each", resume=resume)
    assert any("resuming" in line for line in told)
    at_once = built(tmp_path / "y", model, given, turns="each")
    assert resumed["content_sha256"] == at_once["content_sha256"]
    assert resumed["facts"] == at_once["facts"]


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"turns": "each"}, "template"),
        ({"turns": "each", "template": "chatml", "kind": "preference"}, "pairs"),
        ({"turns": "one", "template": "chatml"}, "each"),
    ],
)
def test_turns_that_do_not_fit_are_refused(keys: dict[str, str], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        ChatJsonl.model_validate({"source": "chat_jsonl", "files": ["x"], **keys})


def test_pairs_may_learn_the_last_turn_of_each_side(tmp_path: Path, model: Path) -> None:
    pair = Conversation(SPOKEN, rejected=[*SPOKEN[:3], assistant("worse", reasoning_content="no")])  # type: ignore[arg-type]
    with pytest.raises(NielsCacheError, match="turns"):
        built(tmp_path / "x", model, [pair], preference=True, template=template_of(THINKING), val_frac=0)
    meta = built(tmp_path / "y", model, [pair], preference=True, template=template_of(THINKING), val_frac=0, turns="last")
    assert meta["targets"]["train"] == 2
    with pytest.raises(NielsCacheError, match="pairs"):
        built(tmp_path / "z", model, [pair], preference=True, turns="each")


def test_a_long_conversation_that_cannot_be_proven_is_counted() -> None:
    messages = [assistant(f"a {n}") if n % 2 else user(f"q {n}") for n in range(1200)]
    without_loop = "{% for i in range(messages|length) %}" + BODY.replace("message.", "messages[i].") + "{% endfor %}" + IF_ASKED
    in_the_middle = (
        LOOP.replace("'<|im_end|>\\n'", "('<|im_end|>\\n' if loop.index0 < 800 or loop.index0 % 2 == 0 else '<|im_end|>!\\n')") + IF_ASKED
    )
    with RendererPool(template_of(without_loop)) as rendering:
        short, long = rendering.render([Chat(messages[:100], "short"), Chat(messages, "long")])
    assert isinstance(short, RenderedChat)
    assert isinstance(long, UnusableChat)
    assert long.reason == "too_many_turns"
    with RendererPool(template_of(in_the_middle)) as rendering:
        (found,) = rendering.render([Chat(messages, "long")])
    assert isinstance(found, RenderedChat)
    assert found.text[slice(*found.spans[-1])] == "a 1199<|im_end|>!\n"


def test_too_many_characters_in_the_examples_of_a_conversation_are_counted(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("niels_cache_assets.build_cache.conversations.MAX_CHARACTERS", 100)
    long = Conversation([user("q" * 60), assistant("a"), user("r"), assistant("b")])  # type: ignore[list-item]
    meta = built(tmp_path / "x", model, [*conversations(9), long], turns="each", val_frac=0, on_invalid="drop")
    assert meta["dropped"] == {"too_many_turns": 1}


def test_user_defined_pieces_of_sentencepiece_are_ordinary_text(tmp_path: Path) -> None:
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["first answer of the model"] * 20),
        model_prefix=str(tmp_path / "tokenizer"),
        model_type="bpe",
        vocab_size=290,
        byte_fallback=True,
        user_defined_symbols=["\n", "<start_of_turn>", "<end_of_turn>"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    tokenizer = SentencePieceTokenizer(tmp_path / "tokenizer.model", special_tokens={"eot": "</s>"})
    assert tokenizer.special_names() == ["<s>", "</s>"]
    template = (LOOP + IF_ASKED).replace("<|im_start|>", "<start_of_turn>").replace("<|im_end|>", "<end_of_turn>")
    (found,) = encode(template, tokenizer, Chat([user("one\ntwo"), assistant("first\nanswer")], "example 1"))
    assert [tokenizer.decode(found.ids[start:end]) for start, end in found.spans.tolist()] == ["first\nanswer<end_of_turn>\n"]
    assert found.spans.tolist() == [[25, 33]]
