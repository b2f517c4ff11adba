"""Erasures of documents from small projects: the steps with deaths in between, what stays, the receipt, and its check."""

import gzip
import json
import os
import random
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet
import pytest
import zstandard

from niels_cache_assets.artifacts.suffixes import suffixes_dir
from niels_cache_assets.base.toml import parse_toml
from niels_cache_assets.cli import main
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.sources.excluding import excluded_ids
from niels_cache_assets.sources.interleave import Interleave
from niels_cache_assets.tokenizer.decoding import open_tokenizer
from niels_cache_inspection.erasure.prints import TextPrints, WantedTexts
from niels_cache_inspection.erasure.publishing import replace_published
from niels_cache_inspection.erasure.receipt import key_path, read_key, read_receipt, signature_problem
from niels_cache_inspection.erasure.scanning import Scan
from niels_cache_inspection.erasure.targets import ErasureRequest, Targets, _keys_by_kept_values, find_targets
from niels_cache_inspection.erasure.verifying import ReceiptCheck, check_receipt
from niels_cache_inspection.erasure.work import STEPS, Erasure, ErasureState, state_path
from niels_cache_runtime import TokenLoader
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPE
from tests.helpers import children
from tests.helpers.builds import build_dataset, build_tokenizer, prepare_corpus
from tests.helpers.corpora import articles, write_jsonl

TEXT = (
    "The harbour master Ottoline Vexley keeps a brass telescope and a ledger of every ship that never came back, and she reads the names "
    "aloud on the first of March, one after another, to nobody in particular."
)
NEAR = TEXT.replace("brass", "silver").replace("aloud", "softly")
WORDS = ("ottoline", "never came back", "nobody in particular")
BANNER = "This page needs cookies to work as it should; accept all of them, or choose which ones you want."
TABLES = """
[cleaning]
skip = ["not_english", "language_error", "repetitive", "no_stopwords"]
min_words = 3
min_characters = 20
[build]
shard_bytes = 1024
threads = 1
[pretrain.books]  # a comment
source = "jsonl"
files = ["books.jsonl"]
prepare = ["clean"]
val_frac = 0.2
[pretrain.notes]
source = "jsonl"
files = ["notes.jsonl"]
keep = ["url"]
val_frac = 0.2
[pretrain.mix]
source = "interleave"
members = { notes = 1.0 }
val_frac = 0.2
[sft.chats]
source = "chat_jsonl"
files = ["chats.jsonl"]
val_frac = 0.2
"""


class Planted(NamedTuple):
    """A project with a paragraph in it."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "cache"

    def registry(self) -> Registry:
        return load_registry(config=str(self.folder / "niels_cache.toml"))

    def targets(self, **request: Any) -> Targets:
        return find_targets(ErasureRequest(**(request or {"text": TEXT})), self.registry(), self.root)

    def erasure(self, **settings: Any) -> Erasure:
        return Erasure(registry=self.registry, root=self.root, receipt=self.folder / "erasure.json", build=build, **settings)

    def erase(self, *, near: bool = False, **request: Any) -> dict[str, Any]:
        erasure = self.erasure()
        return erasure.run(erasure.begin(ErasureRequest(by="J. Doe", why="asked"), self.targets(**request), near=near))

    def check(self, *, with_key: bool = True) -> ReceiptCheck:
        receipt = self.folder / "erasure.json"
        key = read_key(key_path(receipt)) if with_key else None
        return check_receipt(read_receipt(receipt), self.registry(), self.root, key=key)

    def ids(self, name: str) -> set[str]:
        lineage = [pyarrow.parquet.read_table(path) for path in (self.root / "pretrain" / name).glob("*_documents.parquet")]
        return {each for table in lineage for each in table["source_id"].to_pylist()}

    def files_with_words(self) -> list[str]:
        """Look into each file of the root in all forms, without the code under test."""
        tokenizer, found = open_tokenizer(self.root), []
        for path in sorted(self.root.rglob("*")):
            content = path.read_bytes() if path.is_file() else b""
            forms = [content.decode("latin-1")]
            if path.suffix == ".parquet":
                forms.append(json.dumps(pyarrow.parquet.read_table(path).to_pylist()))
            if path.suffix == ".bin":
                ids = np.frombuffer(content, TOKEN_DTYPE)
                forms.append(tokenizer.decode(ids[ids < tokenizer.vocab_size]))
            if any(word in form.lower() for word in WORDS for form in forms):
                found.append(path.relative_to(self.root).as_posix())
        return found


def build(registry: Registry, root: Path, names: Sequence[str]) -> Mapping[str, str]:
    for name in names:
        if name in registry.prepared():
            prepare_corpus(registry, name, root=root, processes=1)
        build_dataset(registry, name, root=root)
    return {}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Planted:
    project = Planted(tmp_path_factory.mktemp("planted"))
    books, notes, chats = (articles(14, seed=seed, sentences_each=4) for seed in range(3))
    books[3] = f"{books[3]}\n{TEXT}\n{BANNER}\n{books[3]}"
    books[4] = f"{books[4]} {BANNER}"
    notes[5], notes[9] = TEXT.upper(), NEAR
    write_jsonl(project.folder / "books.jsonl", books)
    pages = [{"id": f"notes-{row}", "url": f"https://example.org/{row}", "text": text} for row, text in enumerate(notes)]
    (project.folder / "notes.jsonl").write_text("".join(f"{json.dumps(page)}\n" for page in pages))
    chats[7] = TEXT
    rows = [
        {"id": f"chats-{row}", "messages": [{"role": "user", "content": f"what {row}"}, {"role": "assistant", "content": text}]}
        for row, text in enumerate(chats)
    ]
    (project.folder / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (project.folder / "niels_cache.toml").write_text(f'[tokenizer]\nmodel = "{tiny_model}"\n{TABLES}')
    build_tokenizer(project.registry(), root=project.root)
    build(project.registry(), project.root, [*project.registry().sources])
    return project


@pytest.fixture
def planted(built: Planted, tmp_path: Path) -> Planted:
    shutil.copytree(built.folder, tmp_path / "project")
    return Planted(tmp_path / "project")


def test_documents_copies_and_near_copies_are_found_where_they_are(built: Planted) -> None:
    targets = built.targets()
    places = {each.source_id: {place.partition("/")[0].partition(" ")[0] for place in each.places} for each in targets.sure}
    assert places.keys() == {"books-3", "notes-5", "chats-7"}
    assert places["books-3"] >= {"source", "corpus", "cache"}
    assert all(found >= {"source", "cache"} for found in places.values())
    assert ("notes-9", "near") in [(each.source_id, each.relation) for each in targets.near]
    assert targets.shared  # the page with the same banner
    assert {each.source_id for each in built.targets(ids=("chats-7",)).sure} >= {"chats-7", "notes-5"}
    assert {each.source_id for each in built.targets(where="url == 'https://example.org/5'").sure} >= {"notes-5"}
    assert _keys_by_kept_values("url in ['https://example.org/5', 'https://example.org/6']", ["notes"], built.root) == (
        {("pretrain", "notes", "notes-5"), ("pretrain", "notes", "notes-6")},
        {"notes"},
    )


@pytest.mark.parametrize(
    ("request_", "keyword"),
    [
        ({"text": "so it is"}, "letters"),
        ({"text": "a sentence that no document of this project has"}, "nothing"),
        ({"ids": ("x",)}, "nothing"),
    ],
)
def test_a_request_that_names_nothing_is_one_line(built: Planted, request_: dict[str, Any], keyword: str) -> None:
    with pytest.raises(NielsCacheError, match=keyword) as raised:
        built.targets(**request_)
    assert "\n" not in str(raised.value)


class Death(BaseException):
    """A kill."""


def test_an_erasure_that_dies_at_each_step_goes_on_and_leaves_nothing(planted: Planted) -> None:
    assert len(planted.files_with_words()) >= 5
    index = suffixes_dir(planted.root, "books")
    index.mkdir(parents=True)
    (index / "train_keys.bin").write_bytes(b"the first tokens of suffixes")
    before = (planted.folder / "niels_cache.toml").read_text()

    receipt_path = planted.folder / "erasure.json"
    planted.erasure().begin(ErasureRequest(by="J. Doe", why="asked"), planted.targets(), near=True)
    assert state_path(receipt_path).stat().st_mode & 0o077 == 0
    for number, step in enumerate(STEPS):

        def die(now: str, step: str = step) -> None:
            if now == step:
                raise Death

        with pytest.raises(Death):
            planted.erasure(on_step=die).run(ErasureState.load(state_path(receipt_path)))
        state = ErasureState.load(state_path(receipt_path))
        assert state.step == step
        state.step = STEPS[max(number - 1, 0)]  # it was killed at the end of the step before, which is done again
        state.save(state_path(receipt_path))
    receipt = planted.erasure().run(ErasureState.load(state_path(planted.folder / "erasure.json")))
    assert receipt["is_absent"]
    assert planted.files_with_words() == []
    assert not index.exists()
    assert not state_path(planted.folder / "erasure.json").exists()
    tables = parse_toml((planted.folder / "niels_cache.toml").read_text())
    assert "# a comment" in (planted.folder / "niels_cache.toml").read_text()
    assert tables["pretrain"]["books"].pop("exclude") == "erased/books.txt"
    assert [tables[family][name].pop("exclude") for family, name in (("pretrain", "notes"), ("sft", "chats"))]
    assert tables == parse_toml(before)
    assert excluded_ids(str(planted.folder / "erased/notes.txt")) >= {"notes-5", "notes-9"}
    content = (planted.folder / "erasure.json").read_text()
    assert not [each for each in (*WORDS, "notes-5", "books-3", str(planted.folder / "books.jsonl")) if each in content.lower()]
    assert (receipt["requested_by"], receipt["reason"]) == ("J. Doe", "asked")
    prepared = [name for name, source in planted.registry().pretrain.items() if source.prepare or isinstance(source, Interleave)]
    assert {*receipt["val_chosen_again"]} == {*prepared}
    assert planted.check().problems == planted.check(with_key=False).problems == []
    (planted.root / "reports").mkdir(exist_ok=True)
    (planted.root / "reports/page.html").write_text(f"<p>{TEXT}</p>")
    assert [line for line in planted.check().problems if "page.html" in line]


def test_what_was_not_asked_for_stays_and_what_cannot_be_reached_is_named(planted: Planted) -> None:
    unfinished = planted.root / "pretrain/.notes.partial/train"
    unfinished.mkdir(parents=True)
    shutil.copy(planted.root / "pretrain/notes/train/shard_00000.bin", unfinished)
    page = planted.root / "reports/page.html"
    page.parent.mkdir(exist_ok=True)
    page.write_text(TEXT)
    os.link(page, page.with_name("copy.html"))
    for shard in (planted.root / "pretrain/notes/train").glob("*.bin"):
        os.link(shard, planted.folder / f"backup_{shard.name}")
    (planted.root / "stray.txt").write_text(f"a note on: {TEXT}")
    receipt = planted.erase()
    assert not receipt["is_absent"]
    assert not (planted.root / "pretrain/.notes.partial").exists()
    assert not [*page.parent.glob("*.html")]
    still = [each["where"] for each in receipt["remaining"] if each["what"] == "still there"]
    assert still == [str(planted.root / "stray.txt")]
    assert [each for each in receipt["remaining"] if each["what"] == "hard link"]
    ids = planted.ids("notes")
    assert "notes-9" in ids  # a near copy that nobody has confirmed
    assert "notes-5" not in ids
    (planted.root / "stray.txt").unlink()
    assert planted.check().problems == []
    assert planted.check(with_key=False).problems


def test_a_run_in_the_middle_goes_on_after_a_tombstone_and_the_next_build_is_the_clean_end(planted: Planted) -> None:
    splits = {name: str(planted.root / f"pretrain/{name}/train") for name in ("notes", "mix")}
    loader = TokenLoader(splits, T=16, B=2, seed=1, weights={"notes": 1, "mix": 1})
    next(iter(loader))
    state = loader.state_dict()
    erasure = planted.erasure()
    erasure.run(erasure.begin(ErasureRequest(), planted.targets(), near=True, tombstone=True))
    assert planted.files_with_words() == []
    assert planted.check().problems == planted.check(with_key=False).problems == []
    with pytest.warns(UserWarning, match="notes"):
        resumed = TokenLoader.from_state(state)
    batch = next(iter(resumed))
    assert batch.y_masked.shape == batch.y.shape
    assert "notes-5" in planted.ids("notes")
    build(planted.registry(), planted.root, [*planted.registry().sources])
    assert not {"notes-5", "notes-9"} & planted.ids("notes")
    assert planted.files_with_words() == []
    assert planted.check().problems == []


def test_a_signature_covers_the_receipt(planted: Planted, tmp_path: Path) -> None:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    keys = [Ed25519PrivateKey.generate() for _ in range(2)]
    pem = serialization.Encoding.PEM
    (tmp_path / "key.pem").write_bytes(keys[0].private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    for number, key in enumerate(keys):
        public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        (tmp_path / f"public-{number}.pem").write_bytes(public)
    erasure = replace(planted.erasure(signing_key=tmp_path / "key.pem"), build=lambda registry, root, names: {})
    state = erasure.begin(ErasureRequest(), planted.targets(ids=("chats-7",)), near=False)
    state.step = "receipt"
    receipt = erasure.run(state)
    assert signature_problem(receipt, None) is None
    assert signature_problem(receipt, tmp_path / "public-0.pem") is None
    assert "another key" in str(signature_problem(receipt, tmp_path / "public-1.pem"))
    assert "changed" in str(signature_problem({**receipt, "reason": "other"}, tmp_path / "public-0.pem"))


@pytest.fixture
def in_project(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> Planted:
    monkeypatch.chdir(planted.folder)
    monkeypatch.setenv("DAGSTER_HOME", str(planted.folder / "home"))
    monkeypatch.setattr("niels_cache_inspection.commands.erase._launch", build)
    return planted


def test_the_command_changes_nothing_unless_it_is_told_to(
    in_project: Planted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        code = main(["erase", *arguments])
        return code, capsys.readouterr().out

    before = (in_project.folder / "niels_cache.toml").read_bytes()
    code, shown = run("--text", TEXT, "--json")
    found = json.loads(shown)
    assert (code, found["changed"]) == (0, False)
    assert {each["id"] for each in found["documents"]} == {"books-3", "notes-5", "chats-7"}
    assert (in_project.folder / "niels_cache.toml").read_bytes() == before
    with monkeypatch.context() as patch:  # a person who says no to the second question
        answers = iter(["y", "n"])
        patch.setattr("niels_cache_inspection.commands.erase._is_terminal", lambda: True)
        patch.setattr("builtins.input", lambda question: next(answers))
        assert run("--text", TEXT)[0] == 0
        assert not [*answers]
    assert (in_project.folder / "niels_cache.toml").read_bytes() == before
    assert main(["erase", "--text", TEXT, "--yes", "--state", "a.pt", "b.pt"]) == 2
    assert "a.pt" in capsys.readouterr().err
    asked = ErasureRequest(text=TEXT, by="J. Doe")
    in_project.erasure().begin(asked, in_project.targets(), near=True)  # and then it was killed
    for other in (["--text", TEXT, "--dry-run"], ["--text", BANNER, "--yes"], ["--text", TEXT, "--yes", "--tombstone"]):
        assert main(["erase", *other]) == 2
        assert "unfinished" in capsys.readouterr().err
    assert (in_project.folder / "niels_cache.toml").read_bytes() == before
    assert run("--text", TEXT, "--yes", "--near", "--by", "J. Doe")[0] == 0
    assert in_project.files_with_words() == []
    code, shown = run("verify", "erasure.json", "--json")
    assert (code, json.loads(shown)["problems"]) == (0, [])
    for wrong in (
        ["--text", TEXT],
        ["verify"],
        ["--key", "x"],
        ["verify", "erasure.json", "--yes"],
        ["verify", "niels_cache.toml"],
        ["--receipt", "b"],
    ):
        assert main(["erase", *wrong]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_an_unfinished_erasure_is_finished_only_by_its_own_request(in_project: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    in_project.erasure().begin(ErasureRequest(text=TEXT), in_project.targets(), near=True)
    for wrong in (["--text", TEXT, "--dry-run"], ["--dry-run"], ["--id", "notes-1", "--yes"]):
        assert main(["erase", *wrong]) == 2
        assert "is unfinished" in capsys.readouterr().err
    assert not (in_project.folder / "erasure.json").exists()
    assert main(["erase", "--text", TEXT]) == 0
    key = (in_project.folder / "erasure.json.key").read_bytes()
    (in_project.folder / "erasure.json").rename(in_project.folder / "kept.json")
    assert main(["erase", "--id", "notes-1", "--yes"]) == 2  # the key of the kept receipt would be lost
    assert (in_project.folder / "erasure.json.key").read_bytes() == key
    (in_project.folder / "kept.json").write_text(json.dumps({"kind": "niels-cache erasure", "format": 1}))
    assert main(["erase", "verify", "kept.json"]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_everything_is_searched_or_listed(planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    also, outside = tmp_path / "also", tmp_path / "outside"
    for folder in (also, outside, also / "locked"):
        folder.mkdir()
    with zipfile.ZipFile(also / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text", TEXT)
    packed = gzip.compress(TEXT.encode())
    (also / "b.tar.gz").write_bytes(packed)
    (also / "damaged.gz").write_bytes(packed[:20] + bytes(40) + packed[60:])
    (also / "cut.zst").write_bytes(zstandard.compress(os.urandom(10_000))[:5_000])
    pyarrow.parquet.write_table(pyarrow.table({"messages": [[{"role": "user", "content": TEXT}]]}), also / "chats.parquet")
    (also / "link").symlink_to(outside)
    (also / "inside").symlink_to(also / "b.tar.gz")
    list_folder = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", refuse)
    wanted = WantedTexts((TextPrints.of([TEXT]),))
    scan = Scan(registry=planted.registry(), root=planted.root, wanted=wanted, folders=(also,)).run(sources=False)
    assert {Path(what).name for what, _ in scan.unread} == {"a.zip", "damaged.gz", "cut.zst", "link", "locked"}
    assert also / "b.tar.gz" in [each.path for each in scan.files]
    assert str(also / "chats.parquet") in [each.place for each in scan.documents]


def test_shared_passages_do_not_stay_in_memory(built: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = WantedTexts((TextPrints.of([TEXT]), TextPrints.of([BANNER])))
    scans = []
    for limit in (1 << 26, 1):
        monkeypatch.setattr("niels_cache_inspection.erasure.scanning._TEXT_AT_ONCE", limit)
        monkeypatch.setattr("niels_cache_inspection.erasure.scanning._SHARED_AT_ONCE", limit)
        scan = Scan(registry=built.registry(), root=built.root, wanted=wanted, ids={("pretrain", "notes", "notes-5")})
        scans.append(scan.run(sources=False))
    assert scans[0].documents
    assert scans[0].documents == scans[1].documents


def test_an_id_is_found_in_a_mixture_whose_member_is_gone(planted: Planted) -> None:
    (planted.folder / "notes.jsonl").unlink()
    shutil.rmtree(planted.root / "pretrain/notes")
    assert [each.key for each in planted.targets(ids=("notes-3",), dataset="notes").sure] == [("pretrain", "notes", "notes-3")]


def test_what_is_still_there_is_known_from_another_folder(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    stray = planted.root / "stray.txt"
    stray.write_text(TEXT)
    monkeypatch.chdir(planted.folder)
    erasure = replace(planted.erasure(), root=Path("cache"))
    state = erasure.begin(ErasureRequest(), planted.targets(), near=True)
    erasure._scan(state)
    monkeypatch.chdir("/")
    planted.erasure()._delete(state)
    assert str(stray) in state.left


def test_a_named_address_without_a_replaced_build_remains(planted: Planted) -> None:
    address = f"file://{planted.folder}/nowhere"
    (remaining,) = replace_published(planted.registry(), planted.root, ["notes"], [address], progress=print)
    assert remaining["where"] == address


def go_on(folder: str) -> None:
    project = Planted(Path(folder))
    project.erasure().run(ErasureState.load(state_path(project.folder / "erasure.json")))


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(10))
def test_an_erasure_that_is_killed_again_and_again_ends_in_the_same_receipt(planted: Planted, seed: int) -> None:
    receipt, chosen, kills = planted.folder / "erasure.json", random.Random(seed), 0
    planted.erasure().begin(ErasureRequest(), planted.targets(), near=True)
    while not receipt.exists() or state_path(receipt).exists():
        kills += children.run(go_on, str(planted.folder), kill_after=chosen.uniform(0.05, 0.15 + 0.15 * kills)) < 0
    assert kills
    assert read_receipt(receipt)["is_absent"]
    assert planted.files_with_words() == []
    assert planted.check().problems == []
