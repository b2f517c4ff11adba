"""The cost of chat templates: rendering alone, and as a share of an SFT build of 200 MB.

    python benchmarks/chats.py [--quick] [--only rendering build] [--megabytes 200] [--rounds 3]

The conversations of oasst1 are repeated up to this size. For each template, the table has two rows:

* `rendering`: conversations go to the child process, and come back as text with the places of targets. The processor time of both
  processes counts, with the start of the child and with the pipes.
* `build`: the whole build of a cache, with rendering, tokens, files and their hashes.

Times are processor times, so other work on the machine matters little. Rounds take turns, and each number is a median. The templates are
ChatML, whose marks show the targets, and one without marks, which is rendered once more for each message of the assistant. The build with
sentinels renders nothing.

Texts: oasst1 below NIELS_CACHE_REAL_DATA. Without it, conversations are cut from the sources of the standard library.
"""

import argparse
import os
import resource
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from build import base_texts
from niels_cache_assets.base.documents import Conversation
from niels_cache_assets.build_cache import build_sft_cache
from niels_cache_assets.chats.rendering import Chat, RendererPool, UnusableChat
from niels_cache_assets.chats.templates import Template, find_template
from niels_cache_assets.sources import SFT_SOURCES
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from niels_cache_assets.tokenizer.tokenizer_json import HuggingFaceTokenizer

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|sys|>", "<|usr|>", "<|asst|>")
ROLES = {"eot": "<|endoftext|>", "sys": "<|sys|>", "usr": "<|usr|>", "asst": "<|asst|>"}
UNMARKED = """\
{%- for message in messages %}
{{- '[' + message.role + '] ' + message.content + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '[assistant] ' }}{% endif %}
"""
CHUNK = 256
CHOICES = ("rendering", "build")


def conversations(megabytes: int) -> list[Conversation]:
    """Return conversations of about this size, repeated if necessary."""
    given = oasst1() or cut_conversations()
    size = sum(len(message["content"].encode()) for each in given for message in each.messages)
    wanted = megabytes * 1_000_000
    return given[: max(1, len(given) * wanted // size)] if wanted < size else given * (wanted // size)


def oasst1() -> list[Conversation]:
    real = os.environ.get("NIELS_CACHE_REAL_DATA")
    if not real:
        return []
    source = SFT_SOURCES["oasst1"].model_validate({"source": "oasst1", "files": [f"{real}/oasst1/*trees*.jsonl"]})
    return [each for batch in source.conversations(StreamContext(seed=42)) for each in batch]


def cut_conversations() -> list[Conversation]:
    made = []
    for text in base_texts()[:200]:
        pieces = [text[start : start + 400] for start in range(0, len(text) - 1600, 400)]
        for number in range(0, len(pieces) - 3, 4):
            turns = zip(("user", "assistant") * 2, pieces[number : number + 4], strict=True)
            made.append(Conversation([{"role": role, "content": content} for role, content in turns]))  # type: ignore[typeddict-item]
    return made


def open_tokenizer(folder: Path, given: list[Conversation]) -> HuggingFaceTokenizer:
    """Train a byte-level BPE with 8,000 pieces and all special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8000, special_tokens=[*SPECIAL], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator((message["content"] for each in given[:2000] for message in each.messages), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return HuggingFaceTokenizer(folder, special_tokens=ROLES)


def templates() -> dict[str, Template]:
    chatml = find_template("chatml", TokenizerSettings())
    assert chatml is not None
    return {"ChatML": chatml, "without marks": Template(name="own.jinja", text=UNMARKED, variables={}, where="own.jinja")}


def processor_time(work: Callable[[], None]) -> float:
    """Return the processor time of some work in seconds, with that of children that have ended."""

    def used() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(each.ru_utime + each.ru_stime for each in both)

    before = used()
    work()
    return used() - before


def render(template: Template, given: list[Conversation]) -> None:
    with RendererPool(template) as ready:
        for start in range(0, len(given), CHUNK):
            found = ready.render([Chat(each.messages, "example") for each in given[start : start + CHUNK]])
            refused = [each.explanation for each in found if isinstance(each, UnusableChat)]
            if refused:
                raise SystemExit(refused[0])


def build(template: Template | None, tokenizer: HuggingFaceTokenizer, given: list[Conversation], out: Path) -> None:
    feed = Feed(lambda context: (given[start : start + CHUNK] for start in range(0, len(given), CHUNK)), StreamContext(seed=42))
    build_sft_cache(feed, str(out), tokenizer=tokenizer, val_frac=0.1, seed=42, template=template)


def jobs_of(given: list[Conversation], folder: Path, chosen: Sequence[str]) -> Iterator[dict[str, Callable[[], None]]]:
    """Yield jobs that are compared with each other, by name."""
    if "rendering" in chosen:
        yield {f"rendering, {name}": partial(render, template, given) for name, template in templates().items()}
    if "build" in chosen:
        tokenizer = open_tokenizer(folder, given)
        with_sentinels = {"build, sentinels": partial(build, None, tokenizer, given, folder / "cache")}
        others = {f"build, {name}": partial(build, template, tokenizer, given, folder / "cache") for name, template in templates().items()}
        yield with_sentinels | others


def measure(given: list[Conversation], folder: Path, chosen: Sequence[str], *, rounds: int) -> None:
    messages = sum(len(each.messages) for each in given)
    for jobs in jobs_of(given, folder, chosen):
        seconds: dict[str, list[float]] = {name: [] for name in jobs}
        for _ in range(rounds):
            for name, job in jobs.items():
                seconds[name].append(processor_time(job))
        for name, values in seconds.items():
            print(f"| {name} | {statistics.median(values) / messages * 1e6:.1f} us |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast")
    parser.add_argument("--megabytes", type=int, default=200, help="text of the conversations (default: 200)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--only", nargs="+", choices=CHOICES, default=CHOICES, help="what to measure")
    settings = parser.parse_args()
    given = conversations(1 if settings.quick else settings.megabytes)
    messages = [message["content"] for each in given for message in each.messages]
    size = sum(len(text.encode()) for text in messages)
    print(f"{len(given):,} conversations, {len(messages):,} messages, {size / 1e6:.0f} MB, {size / len(messages):.0f} bytes a message")
    print("| what | processor time a message |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        measure(given, Path(temporary), settings.only, rounds=1 if settings.quick else settings.rounds)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
