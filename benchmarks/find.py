"""`niels-cache find`: how fast it searches, and whether it finds every planted passage and no other.

    python benchmarks/find.py [--megabytes 200] [--passages 0] [--models FILE=EOT ...] [--rounds 3]

Texts are those of the bulk sample (or of Python's library), in pieces, in a cache of so many megabytes of text.

* Speed: a search of all bytes, one by certain tokens, and one of tokens, on one thread and on all. Beside them `bytes.find` over the text
  itself, and over documents that `decode` of the tokenizer makes of the tokens, as a script would do it.
* Passages: each is a piece of a text, cut anywhere between two characters, that is planted into one to three other documents, at their
  start, at their end, or between any two characters. The places in each document are compared with those that `str.find` finds in it, after
  it was encoded and decoded, exhaustively and by certain tokens. A passage that is in more than 200 places anyway is not counted. The
  passages are divided among the models.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import repository_path  # noqa: F401
from build import base_texts, documents
from niels_cache_assets.base.documents import Document
from niels_cache_assets.build_cache.pretrain import build_pretrain_cache
from niels_cache_assets.tokenizer.kinds import TextTokenizer, open_model
from niels_cache_inspection.find import places
from niels_cache_inspection.find.places import Search, caches_of, find_text, find_tokens
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import write_meta

_SHARD_BYTES = 1 << 24
_PIECE_CHARACTERS = 4_000
_PLANTED_DOCUMENTS = 400
_MOST_PLACES = 200
_UNKNOWN = "⁇"  # as SentencePiece decodes a character without a piece
_WORDS = (2, 3, 5, 8, 13, 30, 80)  # of passages, about


def build(root: Path, tokenizer: TextTokenizer, texts: Sequence[str]) -> None:
    """Build the cache `texts` below a cache root with this tokenizer."""
    folder = root / "tokenizer"
    folder.mkdir(parents=True)
    tokenizer.save(folder)
    [model] = [path.name for path in folder.iterdir() if path.suffix in (".json", ".model")]
    names = {"spm.model": "sentencepiece", "tokenizer.json": "tokenizer.json", "tiktoken.json": "tiktoken"}
    meta = {"kind": "tokenizer", "built": True, "sha256": tokenizer.model_sha256, "model_kind": names[model]}
    write_meta(str(folder / META_NAME), {**meta, "special_tokens": tokenizer.special_tokens, "files": {}})
    build_pretrain_cache(
        (Document(text, str(number), "texts", number) for number, text in enumerate(texts)),
        str(root / "pretrain" / "texts"),
        tokenizer=tokenizer,
        max_train_tokens=1 << 40,
        max_val_tokens=0,
        shard_bytes=_SHARD_BYTES,
        seed=0,
        shuffle_buffer=None,
    )


def seconds_of(function: Callable[[], object], rounds: int) -> float:
    """Return the shortest time of a few calls."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def consumed(search: Search) -> Search:
    for _ in search:
        pass
    return search


def print_speeds(root: Path, tokenizer: TextTokenizer, texts: Sequence[str], rounds: int) -> None:
    """Print megabytes of text, or of tokens, a second."""
    joined = "\n".join(texts).encode()
    [cache] = caches_of(root)
    tokens = cache.open("train")
    assert tokens is not None
    ends, size = tokens.entry_ends, len(tokens) * tokens.dtype.itemsize
    phrase = "of the quick unseen phrase in this"
    ids = [*map(int, tokenizer.encode(" unseen phrase in this"))]

    def decode_all() -> int:
        begin, count = 0, 0
        for end in ends.tolist():
            count += tokenizer.decode(tokens.read(begin, end - begin)).find(phrase)
            begin = end
        return count

    print(f"{len(joined) / 1e6:.0f} MB of text, {len(tokens) / 1e6:.1f} M tokens of {tokens.dtype}, {tokenizer.kind}")
    plain = seconds_of(lambda: joined.find(phrase.encode()), rounds)
    slow = seconds_of(decode_all, 1)
    print(f"  bytes.find over the text                  {len(joined) / plain / 1e6:8.0f} MB/s of text")
    print(f"  decode of each document, str.find         {len(joined) / slow / 1e6:8.0f} MB/s of text")
    for loop, threads in [(loop, threads) for loop in ("Arrow", "compiled") for threads in sorted({1, places._threads()})]:
        if loop == "compiled":
            places._table_of(cache).compile()  # type: ignore[union-attr]
            consumed(find_text([cache], phrase.encode(), exhaustive=True))
        places._threads = lambda threads=threads: threads  # type: ignore[assignment]
        scan = seconds_of(lambda: consumed(find_text([cache], phrase.encode(), exhaustive=True)), rounds)
        certain = seconds_of(lambda: consumed(find_text([cache], phrase.encode())), rounds)
        exact = seconds_of(lambda: consumed(find_tokens([cache], ids)), rounds)
        ratio = f"{slow / scan:.1f} times as fast as decode"
        print(f"  scan, {threads} thread(s), {loop:8}              {len(joined) / scan / 1e6:8.0f} MB/s of text, {ratio}")
        print(f"  candidates, {threads} thread(s)                  {len(joined) / certain / 1e6:8.0f} MB/s of text")
        print(f"  tokens, {threads} thread(s)                      {size / exact / 1e6:8.0f} MB/s of tokens")
    assert consumed(find_text([cache], phrase.encode())).searched[0].way == "candidates"


def planted(texts: Sequence[str], count: int, generator: torch.Generator) -> tuple[list[str], list[str]]:
    """Return documents with planted passages, and the passages."""

    def draw(most: int) -> int:
        return int(torch.randint(most, (), generator=generator))

    made, passages = [*texts[:_PLANTED_DOCUMENTS]], list[str]()
    sources = texts[_PLANTED_DOCUMENTS:]
    while len(passages) < count:
        source, length = sources[draw(len(sources))], 6 * _WORDS[draw(len(_WORDS))] + draw(6)
        start = draw(max(1, len(source) - length))
        passage = source[start : start + length]
        passages.append(passage)
        for _ in range(1 + draw(3)):
            number = draw(len(made))
            text = made[number]
            place = (0, len(text), draw(len(text) + 1), draw(len(text) + 1))[draw(4)]
            made[number] = text[:place] + passage + text[place:]
    return made, passages


def occurrences(text: str, passage: str) -> int:
    """Return how often a passage is in a text, overlapping ones too."""
    count, place = 0, text.find(passage)
    while place >= 0:
        count, place = count + 1, text.find(passage, place + 1)
    return count


def print_planted(root: Path, name: str, made: Sequence[str], passages: Sequence[str]) -> Counter[str]:
    """Search all passages in both ways, and print what is lost or false."""
    [cache] = caches_of(root)
    tokenizer = cache.tokenizer
    assert isinstance(tokenizer, TextTokenizer)
    counts, seconds = Counter[str](), Counter[str]()
    decoded = [tokenizer.decode(ids).replace(f" {_UNKNOWN} ", _UNKNOWN) for ids in tokenizer.encode_unchecked(made)]
    for passage in passages:
        normal = tokenizer.decode(tokenizer.encode_unchecked([f".{passage}."])[0])[1:-1]
        truth = {number: found for number, text in enumerate(decoded) if (found := occurrences(text, normal))}
        if _UNKNOWN in normal:
            counts["cannot be spelled"] += 1
            continue
        expected = sum(truth.values())
        if expected > _MOST_PLACES:
            counts["passed over"] += 1
            continue
        for way, exhaustive in (("scan", True), ("candidates", False)):
            begin = time.perf_counter()
            search = find_text([cache], passage.encode(), exhaustive=exhaustive)
            found = Counter(place.document for place in search)
            seconds[way] += time.perf_counter() - begin
            used = search.searched[0].way
            counts[f"{way} expected"] += expected
            counts[f"{way} used {used}"] += 1
            counts[f"{way} lost"] += sum(max(0, times - found[number]) for number, times in truth.items())
            counts[f"{way} false"] += sum(max(0, times - truth.get(number, 0)) for number, times in found.items())
    print(f"  {name}: {len(passages):,} passages, {counts['passed over']:,} passed over, {counts['cannot be spelled']:,} cannot be spelled")
    for way in ("scan", "candidates"):
        recall = 1 - counts[f"{way} lost"] / max(1, counts[f"{way} expected"])
        used = ", ".join(f"{key.rpartition(' ')[2]} {value:,}" for key, value in counts.items() if key.startswith(f"{way} used"))
        print(
            f"  {name:28} {way:10} {counts[f'{way} expected']:7,} places, recall {recall:.5f}, false {counts[f'{way} false']:,} "
            f"({used}), {1000 * seconds[way] / len(passages):.1f} ms each"
        )
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--passages", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", required=True, metavar="FILE=EOT", help="models and their token that ends a document")
    parser.add_argument("--window", type=int, help="tokens that one thread searches at a time")
    arguments = parser.parse_args()
    if arguments.window:
        places._BLOCK_TOKENS = arguments.window
    texts = documents(base_texts(), size=_PIECE_CHARACTERS, megabytes=max(arguments.megabytes, 4))
    share = -(-arguments.passages // len(arguments.models))
    total = Counter[str]()
    for number, (file, _, eot) in enumerate(model.partition("=") for model in arguments.models):
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = open_model(file, special_tokens={"eot": eot})
            if arguments.megabytes and number == 0:
                build(Path(folder, "speed"), tokenizer, texts)
                print_speeds(Path(folder, "speed"), tokenizer, texts, arguments.rounds)
            if share:
                made, passages = planted(texts, share, torch.Generator().manual_seed(number))
                build(Path(folder, "planted"), tokenizer, made)
                total += print_planted(Path(folder, "planted"), Path(file).name, made, passages)
    for way in ("scan", "candidates") if share else ():
        recall = 1 - total[f"{way} lost"] / total[f"{way} expected"]
        print(f"all: {way}, {total[f'{way} expected']:,} places, recall {recall:.5f}, false {total[f'{way} false']:,}")


if __name__ == "__main__":
    main()
