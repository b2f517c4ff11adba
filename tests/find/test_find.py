"""The command `niels-cache find` and its search: every place of a text or of tokens, and no other, in all caches of a root."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.base.documents import Conversation
from niels_cache_assets.build_cache import build_sft_cache
from niels_cache_assets.cli import main
from niels_cache_assets.publish.push import open_local_build, push
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer, TextTokenizer
from niels_cache_assets.tokenizer.tiktoken_ranks import TiktokenTokenizer
from niels_cache_inspection.find import places as places_module
from niels_cache_inspection.find import queries
from niels_cache_inspection.find.certain import certain_tokens
from niels_cache_inspection.find.piece_kernels import count_bytes, join_pieces
from niels_cache_inspection.find.pieces import PieceTable
from niels_cache_inspection.find.places import Place, Search, caches_of, find_text, find_tokens
from niels_cache_inspection.find.queries import SearchedStream, positions_of
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import sha256_file
from niels_cache_runtime.loader.loader import TokenLoader
from tests.helpers.hand_made import rewrite_meta
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences
from tests.helpers.traced_root import QUESTION, build_root
from tests.tokenizer.test_engines import CHATS, GPT2_WORDS, write_ranks

TEXTS = [" ".join(sentences(1 + number % 4, seed=number)) for number in range(40)]
TEXTS[7:9] = ["aaaa aaa\n日本語 é😀 aaaa", "Seed the order. seed the order"]
TEXTS[20:26] = [f"{text} I plant the seed token here" for text in TEXTS[20:26]]
ANSWERS = [*sentences(10, seed=1_000), "日本語 is a seed"]
CHOSEN, REJECTED = sentences(6, seed=2_000), sentences(6, seed=3_000)
DOCUMENTS = {"notes": TEXTS, "chats": [QUESTION + "\0" + answer for answer in ANSWERS]}
TEXT = "plant the seed token"
BLOCK = 499  # tokens, so that places cross blocks


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Path:
    root = build_root(tmp_path_factory.mktemp("find") / "cache", tokenizer, texts=TEXTS, answers=ANSWERS)
    model = root / "tokenizer/spm.model"
    rewrite_meta(root / "tokenizer", files={model.name: {"bytes": model.stat().st_size, "sha256": sha256_file(str(model))}})
    pairs = [
        Conversation(
            [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": chosen}],
            source_id=f"pair-{row}",
            file="pairs.jsonl",
            row=row,
            rejected=[{"role": "user", "content": QUESTION}, {"role": "assistant", "content": rejected}],
        )
        for row, (chosen, rejected) in enumerate(zip(CHOSEN, REJECTED, strict=True))
    ]
    build_sft_cache(pairs, str(root / "sft/pairs"), tokenizer=tokenizer, val_frac=0, seed=1, preference=True)
    return root


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "_BLOCK_TOKENS", BLOCK)
    monkeypatch.setattr(queries, "_NEEDLE_BYTES", 8)
    monkeypatch.setattr(queries, "_MOST_WINDOWS", 3)


def searched(root: Path, text: str, *, only: Sequence[str] = (), **how: Any) -> tuple[list[Place], Search]:
    search = find_text(caches_of(root, only=only), text.encode(), **how)
    return [*search], search


def found(root: Path, text: str, **how: Any) -> Counter[tuple[str, str | None]]:
    return Counter((place.dataset, place.source_id) for place in searched(root, text, only=[*DOCUMENTS], **how)[0])


def expected(text: str) -> Counter[tuple[str, str | None]]:
    """Count a text in the documents that were built, overlapping places too."""
    counts = Counter[tuple[str, str | None]]()
    for dataset, name in (("notes", "id"), ("chats", "chat")):
        for number, document in enumerate(DOCUMENTS[dataset]):
            counts[dataset, f"{name}-{number}"] += sum(document.startswith(text, place) for place in range(len(document)))
    return +counts


def pieces_of_texts() -> Iterator[str]:
    """Yield pieces of documents, cut at any character."""
    for number, text in enumerate(TEXTS[:12]):
        start = 7 * number % len(text)
        yield text[start : start + (3, 9, 20, 50)[number % 4]]


@pytest.mark.parametrize("exhaustive", [True, False])
def test_a_text_is_found_wherever_it_is_and_nowhere_else(root: Path, exhaustive: bool) -> None:
    texts = ["a", "aa", "aaaa", "seed the", "Seed the order", " Seed", "日本語", "é😀 a", "\n", TEXT, TEXTS[3], *pieces_of_texts()]
    counts = [expected(text) for text in texts]
    assert sum(map(bool, counts)) > 18
    assert [found(root, text, exhaustive=exhaustive) for text in texts] == counts


def test_a_place_has_its_source_its_tokens_and_an_excerpt(root: Path, tokenizer: SentencePieceTokenizer) -> None:
    [place], search = searched(root, "é😀")
    assert (place.dataset, place.family, place.split, place.document, place.source_id) == ("notes", "pretrain", "train", 7, "id-7")
    assert (place.file, place.row, place.role, place.side) == ("part1.jsonl", 7, None, None)
    assert place.excerpt == TEXTS[7]
    assert place.excerpt[slice(*place.hit)] == "é😀"
    ids = tokenizer.encode(TEXTS[7])[place.start : place.end]
    assert tokenizer.decode(ids) == "é😀"
    assert [(each.dataset, each.way, each.places, each.documents) for each in search.searched if each.places] == [("notes", "scan", 1, 1)]
    assert search.is_complete


def test_examples_have_the_role_of_the_message_and_pairs_their_side(root: Path) -> None:
    asked, _ = searched(root, QUESTION, only=["chats"])
    assert {(place.role, place.side) for place in asked} == {("usr", None)}
    assert len(asked) == len(ANSWERS)
    for side, texts in (("chosen", CHOSEN), ("rejected", REJECTED)):
        [place], _ = searched(root, texts[2], only=["pairs"])
        assert (place.side, place.role, place.source_id) == (side, "asst", "pair-2")


def test_a_place_never_crosses_a_message_or_a_document(root: Path) -> None:
    joined = f"{TEXTS[3]}{TEXTS[4]}"
    assert found(root, joined[len(TEXTS[3]) - 9 : len(TEXTS[3]) + 9]) == Counter()
    assert found(root, f"{QUESTION[-5:]}{ANSWERS[0][:5]}") == Counter()


def test_a_special_token_is_no_byte_of_a_text(root: Path, tokenizer: SentencePieceTokenizer) -> None:
    assert found(root, "eam?") != Counter()
    for text in (tokenizer.special_tokens["eot"], f"eam?{tokenizer.special_tokens['sys']}"):
        places, search = searched(root, text)
        assert places == []
        assert "nowhere" in str(search.searched[0].note)


def test_a_text_that_the_tokenizer_removes_is_nowhere(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PieceTable, "bytes_of", lambda *_: b"")
    places, search = searched(root, "\u200b")
    assert places == []
    assert {"nowhere" in str(each.note) for each in search.searched} == {True}


def test_ids_beyond_the_vocabulary_are_refused_and_shown_as_ids(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    path = root / "pretrain/notes/train/shard_00000.bin"
    tokens = np.fromfile(path, dtype="<u2")
    tokens[3] = 60_000
    tokens.tofile(path)
    with pytest.raises(NielsCacheError, match=r"notes: token id 60,000 .*verify"):
        searched(root, "a", only=["notes"])
    [place] = find_tokens(caches_of(root, only=["notes"]), [60_000])
    assert place.excerpt[slice(*place.hit)] == "60000"


def test_the_certain_tokens_lead_to_the_same_places_as_all_bytes(root: Path) -> None:
    ways = Counter[str]()
    for text in pieces_of_texts():
        there, search = searched(root, text, exhaustive=True)
        again, certain = searched(root, text)
        ways[certain.searched[0].way] += 1
        assert again == there
        assert {each.way for each in search.searched} == {"scan"}
    assert ways["candidates"] > 3


def test_consecutive_tokens_are_found(root: Path, tokenizer: SentencePieceTokenizer) -> None:
    ids = tokenizer.encode(TEXTS[5])[3:6]
    search = find_tokens(caches_of(root, only=["notes"]), ids)
    there = {(place.document, place.start) for place in search}
    streams = [tokenizer.encode(text) for text in TEXTS]
    assert there == {(number, at) for number, stream in enumerate(streams) for at in range(len(stream)) if stream[at : at + 3] == ids}
    assert search.searched[0].way == "scan"
    assert [*find_tokens(caches_of(root), [2**20])] == []


def test_places_beyond_the_limit_are_counted(root: Path) -> None:
    every, whole = searched(root, "a")
    for limit in (0, 2, 70, 10_000):
        shown, search = searched(root, "a", limit=limit)
        assert shown == every[:limit]
        assert search.searched == whole.searched
    assert search.count == len(every) > 100
    documents = Counter(each[:2] for each in {(place.dataset, place.split, place.document) for place in every})
    assert +Counter({(each.dataset, each.split): each.documents for each in whole.searched}) == documents


def test_an_index_gives_the_candidates(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = SearchedStream.of

    def with_index(cache: Any, tokens: Any, split: Any) -> Any:
        return original(cache, tokens, split)._replace(positions=lambda ids: positions_of(tokens, ids, 0, len(tokens)))

    texts = [TEXT, "a", *[*pieces_of_texts()][::5]]
    plain = [searched(root, text, only=["notes"])[0] for text in texts]
    monkeypatch.setattr(SearchedStream, "of", with_index)
    indexed = [searched(root, text, only=["notes"]) for text in texts]
    assert [there for there, _ in indexed] == plain
    assert {search.searched[0].way for _, search in indexed} == {"scan", "index"}


def test_the_same_tokens_are_searched_once_and_a_part_is_a_cache(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    shutil.copytree(root / "pretrain/notes", root / "pretrain/.parts/notes/part-00000")
    there, search = searched(root, TEXT, only=["notes"])
    assert [each.note for each in search.searched] == [None, "has the same tokens as pretrain/notes"]
    assert [(each.dataset, each.way) for each in search.searched] == [("notes", "candidates"), ("notes/part-00000", "skipped")]
    assert search.is_complete
    both, _ = searched(root, TEXT, only=["notes"], copies=True)
    assert len(both) == 2 * len(there) > 0
    shutil.rmtree(root / "pretrain/notes")
    in_part, _ = searched(root, TEXT, only=["notes"])
    assert {place.dataset for place in in_part} == {"notes/part-00000"}
    assert len(in_part) == len(there)


def test_a_published_cache_is_searched_and_leaves_nothing_here(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    addresses = [f"file://{tmp_path}/store/{name}" for name in ("notes", "chats")]
    for address, folder in zip(addresses, ("pretrain/notes", "sft/chats"), strict=True):
        push(open_local_build(root / folder), address)
    empty = tmp_path / "empty"
    empty.mkdir()
    search = find_text(caches_of(empty, addresses), TEXT.encode())
    remote = [(place.dataset, place.document, place.source_id, place.start, place.excerpt) for place in search]
    local = [(place.dataset, place.document, place.source_id, place.start, place.excerpt) for place in searched(root, TEXT)[0]]
    assert remote == [each for each in local if each[0] in DOCUMENTS]
    assert {each.address for each in search.searched} == {*addresses}
    del search
    assert [*tmp_path.glob("niels-cache-*")] == []
    [cache] = caches_of(empty, addresses[:1])
    assert cache.published is not None

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(find_text([cache], TEXT.encode(), progress=interrupt))
    with pytest.raises(NielsCacheError, match="stopped"):  # a download in a thread, for which the process would wait
        list(cache.published.stream(cache.published.build.data[0].key))
    assert main(["find", TEXT, "--cache-dir", str(root), "--published", addresses[0], "--json"]) == 0
    ways = {each["address"]: each["way"] for each in json.loads(capsys.readouterr().out)["searched"]}
    assert ways[addresses[0]] == "skipped"


def test_a_cache_whose_tokenizer_is_not_here_is_not_searched_for_text(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    rewrite_meta(root / "tokenizer", sha256="0" * 64)
    there, search = searched(root, TEXT)
    assert there == []
    assert not search.is_complete
    assert all(missing(each.note, "tokenizer", "--tokens") == [] for each in search.searched)
    [place] = [*find_tokens(caches_of(root), [5, 6], limit=1)] or [None]
    assert place is None or place.excerpt[slice(*place.hit)] == "5 6"


def test_a_split_that_is_cut_short_is_refused(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    next((root / "pretrain/notes/train").iterdir()).unlink()
    with pytest.raises(NielsCacheError, match="train"):
        searched(root, TEXT)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> dict[str, PieceTable]:
    ranks = write_ranks(tmp_path_factory.mktemp("ranks") / "tiny.tiktoken")
    kinds: dict[str, TextTokenizer] = {
        "sentencepiece": tokenizer,
        "tiktoken": TiktokenTokenizer(ranks, special_tokens=CHATS, pattern=GPT2_WORDS, normalize="nfc"),
    }
    return {kind: PieceTable(each) for kind, each in kinds.items()}


@pytest.mark.parametrize("kind", ["sentencepiece", "tiktoken"])
def test_certain_tokens_are_in_the_text_in_any_context(kind: str, tables: dict[str, PieceTable]) -> None:
    table, texts = tables[kind], ["the token and a shard, seed 123 4.5 x", "日本 語 é", "Seed document train val", "one", "two  words"]
    contexts = [("b", "c"), ("\n\n", "\n"), (" shard", "ing"), ("12", "3"), ("日", "本"), ("the ", " the"), ("'", "'s")]
    certain = {text: certain_tokens(table, text.encode()) for text in texts}
    assert certain["one"] is None
    assert sum(each is not None for each in certain.values()) >= 3
    for text, each in certain.items():
        for left, right in contexts if each else ():
            ids = table.encode([f"{left}{text}{right}"])[0].tolist()
            assert any(tuple(ids[at : at + len(each.ids)]) == each.ids for at in range(len(ids))), (text, left, right)


def test_a_text_is_normalized_as_its_tokenizer_does_it(tables: dict[str, PieceTable]) -> None:
    assert tables["tiktoken"].bytes_of("e\u0301 x") == "é x".encode()
    assert tables["sentencepiece"].bytes_of(" e\u0301 ") == " e\u0301 ".encode()
    assert tables["sentencepiece"].strips
    assert not tables["tiktoken"].strips


@pytest.mark.parametrize("kind", ["sentencepiece", "tiktoken"])
def test_the_compiled_loop_joins_as_arrow_does(kind: str, tables: dict[str, PieceTable]) -> None:
    table = tables[kind]
    join = table.joiner(count_bytes.py_func, join_pieces.py_func)
    ids = np.arange(len(table.pieces), dtype=np.uint16)[::-1]
    content, begins = join(ids)
    expected, bounds = table.join(ids, np.empty(0, np.int64))
    assert content == expected == b"".join(reversed(table.pieces))
    assert begins.tolist() == bounds.tolist()
    assert max(map(len, table.pieces)) > 8


# the command


def test_the_command_prints_places_and_counts(root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = ["--cache-dir", str(root)]
    file = tmp_path / "text.txt"
    file.write_text(f"{TEXT}\n")
    assert main(["find", TEXT, "--json", *where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["complete"]) == (TEXT, True)
    assert found["count"] == sum(each["places"] for each in found["searched"]) > 3
    assert found["places"][0]["source_id"] in {f"id-{number}" for number, text in enumerate(TEXTS) if TEXT in text}
    assert main(["find", "--file", str(file), "--only", "notes", "chats", "--limit", "3", *where]) == 0
    out, errors = capsys.readouterr()
    assert out.count(f"[[{TEXT}]]") == 3
    assert missing(out, "part", "row", "candidates", "3 are shown", "pairs") == ["pairs"]
    assert errors == ""
    ids = find_ids(root, TEXT)
    assert main(["find", "--tokens", " ".join(map(str, ids)), *where]) == 0
    assert f"[[{TEXT}]]" in capsys.readouterr().out.replace("[[ ", "[[")


def test_the_command_shows_the_steps_that_read_a_place(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = TokenLoader(str(root / "pretrain/notes/train"), T=32, B=4, seed=1)
    for _ in zip(range(sum(loader.samples_per_epoch.values()) * 3 // 8), loader, strict=False):  # one epoch and a half
        pass
    state = tmp_path / "loader.json"
    state.write_text(json.dumps(loader.state_dict()))
    where = ["--cache-dir", str(root), "--state", str(state)]
    assert main(["find", TEXT, *where, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = found["steps"]["rows"]
    assert len(found["places"]) == 6
    assert {row["place"] for row in rows} == {*range(6)}
    assert {row["is_next"] for row in rows} == {True, False}
    for row in rows:
        trace = loader.trace(row["step"], rank=row["rank"])
        assert found["places"][row["place"]]["document"] in trace.documents[row["row"]]
    assert main(["find", TEXT, *where]) == 0
    out, _ = capsys.readouterr()
    assert missing(out, "read at step", "next at step", found["steps"]["limit"]) == []
    assert main(["find", ANSWERS[0], *where]) == 0
    assert missing(capsys.readouterr().out, "no run of these states reads it") == []


def find_ids(root: Path, text: str) -> list[int]:
    place = searched(root, text, limit=1, only=["notes"])[0][0]
    tokens = np.concatenate([np.fromfile(path, "<u2") for path in sorted((root / "pretrain/notes/train").iterdir())])
    begin = int(np.load(root / "pretrain/notes/train_doc_ends.npy")[place.document - 1]) if place.document else 0
    return tokens[begin + place.start : begin + place.end].tolist()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--file"),
        (["a", "--tokens", "5"], "text and tokens"),
        ([""], "empty"),
        (["--tokens", ""], "--tokens"),
        (["--tokens", "x"], "'x'"),
        (["--tokens", "-4"], "-4"),
        (["--file", "/no/such"], "/no/such"),
        (["a", "--only", "nots"], "did you mean 'notes'"),
        (["a", "--published"], "[publish] address"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], named: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find", *arguments, "--cache-dir", str(root)]) == 2
    out, errors = capsys.readouterr()
    assert not out
    assert errors.count("\n") == 1
    assert named in errors


def test_a_root_without_caches_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find", "a", "--cache-dir", str(tmp_path)]) == 2
    assert missing(capsys.readouterr().err, str(tmp_path), "no caches") == []
    assert not (tmp_path / META_NAME).exists()
