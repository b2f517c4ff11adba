"""The tokenizer: trained so that nothing vanishes, imported as it is, special ids out of reach of any text."""

import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_assets.artifacts.prepared_corpora import prepared_documents
from niels_cache_assets.artifacts.tokenizer_sample import MAX_LINE_BYTES, split_long_line, spool_sample
from niels_cache_assets.base.defaults import ROLE_KEYS, SPECIAL_TOKENS
from niels_cache_assets.facts.lineage import read_lineage
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.tokenizer import training as tokenizer_training
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_assets.tokenizer.training import round_trip_losses
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, TOKEN_DTYPE, dataset_dir
from niels_cache_runtime.format.meta import read_meta, sha256_file
from tests.helpers.builds import build_dataset, build_tokenizer, find_duplicates, prepare_corpus
from tests.helpers.corpora import write_jsonl
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences
from tests.helpers.watched import watched


def configure(folder: Path, tables: str, text: str | None = None) -> str:
    (folder / "sample.txt").write_text(text if text is not None else "\n".join(sentences(400)), encoding="utf-8")
    config = folder / "niels_cache.toml"
    config.write_text(f'[pretrain.sample]\nsource = "text"\nfiles = ["sample.txt"]\n{tables}', encoding="utf-8")
    return str(config)


TINY = '[tokenizer]\nvocab_size = 400\ntrain_on = ["sample"]\n'


@pytest.fixture
def trains_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """To start a process takes ten times as long as to train a tokenizer of a test."""
    monkeypatch.setattr(tokenizer_training, "_run_child", tokenizer_training._train_from_spec)


def test_every_text_of_the_fixed_list_survives_decode_of_encode(tokenizer: SentencePieceTokenizer) -> None:
    assert len(tokenizer_training.ROUND_TRIP_TEXTS) >= 6
    assert round_trip_losses(tokenizer) == {}


def test_random_characters_of_every_plane_survive(tokenizer: SentencePieceTokenizer) -> None:
    points = torch.randint(1, 0x10FFFF, (4_000,), generator=torch.Generator().manual_seed(1)).tolist()
    text = "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF and point != 0x2581)
    assert len(text) > 3_000
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_each_special_token_is_one_id_of_its_own(tokenizer: SentencePieceTokenizer) -> None:
    ids = tokenizer.special_token_ids()
    assert tuple(ids) == ROLE_KEYS
    assert len(set(ids.values())) == 4
    for key, string in SPECIAL_TOKENS.items():
        assert tokenizer.decode([ids[key]]) == string


@pytest.mark.parametrize("key", ROLE_KEYS)
def test_text_that_spells_a_special_token_is_refused(tokenizer: SentencePieceTokenizer, key: str) -> None:
    for encode in (tokenizer.encode, tokenizer.encode_torch, lambda text: tokenizer.encode_batch(["fine", text])):
        with pytest.raises(NielsCacheError, match="special token"):
            encode(f"before{SPECIAL_TOKENS[key]}after")


def test_an_id_of_another_tokenizer_and_half_a_character_are_one_line_each(tokenizer: SentencePieceTokenizer) -> None:
    with pytest.raises(NielsCacheError, match="not in 0"):
        tokenizer.decode([tokenizer.vocab_size])
    with pytest.raises(NielsCacheError, match="lone surrogate"):
        tokenizer.encode("\ud800")


def test_a_batch_is_uint16_in_order_on_any_number_of_threads(tokenizer: SentencePieceTokenizer) -> None:
    texts = sentences(500)
    expected = [tokenizer.encode(text) for text in texts]
    for threads in (1, 3):
        batch = tokenizer.encode_batch(texts, threads)
        assert {ids.dtype for ids in batch} == {TOKEN_DTYPE}
        assert [ids.tolist() for ids in batch] == expected
    assert torch.equal(tokenizer.encode_torch(texts[0]), torch.tensor(expected[0]))
    assert tokenizer.decode(np.array(expected[0], dtype=np.uint16)) == texts[0]


def test_training_twice_gives_the_same_bytes_and_a_second_build_is_a_hit(tmp_path: Path) -> None:
    registry = load_registry(profile="quickstart", config=configure(tmp_path, TINY))
    first = build_tokenizer(registry, root=tmp_path / "a")
    second = build_tokenizer(registry, root=tmp_path / "b")
    assert (tmp_path / "a/tokenizer/meta.json").read_bytes() == (tmp_path / "b/tokenizer/meta.json").read_bytes()
    assert first.meta["sha256"] == sha256_file(str(second.model))
    assert build_tokenizer(registry, root=tmp_path / "a").state == "cache_hit"
    assert sorted(path.name for path in (tmp_path / "a/tokenizer").iterdir()) == ["meta.json", "spm.model"]
    assert first.meta["trained_on"]["sources"].keys() == {"sample"}


def test_an_imported_model_is_copied_byte_by_byte(tmp_path: Path, tiny_model: Path) -> None:
    registry = load_registry(profile="quickstart", config=configure(tmp_path, f'[tokenizer]\nmodel = "{tiny_model}"\n'))
    outcome = build_tokenizer(registry, root=tmp_path)
    assert outcome.model.read_bytes() == tiny_model.read_bytes()
    assert (outcome.meta["model_type"], outcome.meta["imported"]) == ("imported", "spm.model")


def test_a_model_without_the_special_tokens_says_so(tmp_path: Path, tiny_model: Path) -> None:
    strings = ", ".join(f'{key} = "<{key}>"' for key in ROLE_KEYS)
    config = configure(tmp_path, f'[tokenizer]\nmodel = "{tiny_model}"\nspecial_tokens = {{{strings}}}\n')
    with pytest.raises(NielsCacheError, match="<eot>"):
        build_tokenizer(load_registry(profile="quickstart", config=config), root=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"), [(None, r"x\.model: .*\[tokenizer\] model"), (b"not a model", r"x\.model: .*SentencePiece")]
)
def test_a_model_file_that_is_missing_or_something_else_says_so(tmp_path: Path, content: bytes | None, message: str) -> None:
    model = tmp_path / "x.model"
    if content is not None:
        model.write_bytes(content)
    config = configure(tmp_path, '[tokenizer]\nmodel = "x.model"\n')
    with pytest.raises(NielsCacheError, match=message):
        build_tokenizer(load_registry(profile="quickstart", config=config), root=tmp_path)


def test_a_damaged_model_says_so_wherever_its_bytes_are_wrong(tmp_path: Path, tiny_model: Path) -> None:
    """SentencePiece itself loads a model whose pieces are no text, and fails where such a piece is first shown."""
    whole, damaged = tiny_model.read_bytes(), tmp_path / "x.model"
    place = whole.index("▁".encode())
    damaged.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
    with pytest.raises(NielsCacheError, match=r"x\.model: .*damaged.*UTF-8"):
        SentencePieceTokenizer(str(damaged))
    for place in range(0, len(whole), len(whole) // 40):
        damaged.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        with suppress(NielsCacheError):  # and no other error
            SentencePieceTokenizer(str(damaged)).piece_bytes()


def test_a_vocabulary_too_large_for_the_text_says_what_to_lower(tmp_path: Path) -> None:
    config = configure(tmp_path, '[tokenizer]\nvocab_size = 9000\ntrain_on = ["sample"]\n')
    with pytest.raises(NielsCacheError, match="lower it"):
        build_tokenizer(load_registry(profile="quickstart", config=config), root=tmp_path)
    assert not (tmp_path / "tokenizer").exists()


def test_no_text_at_all_says_so(tmp_path: Path) -> None:
    config = configure(tmp_path, TINY, text="\n\n")
    with pytest.raises(NielsCacheError, match="no text"):
        build_tokenizer(load_registry(profile="quickstart", config=config), root=tmp_path)


def test_long_lines_are_split_not_skipped() -> None:
    line = "word " * 5_000 + "日本" * 5_000
    pieces = list(split_long_line(line))
    assert "".join(pieces) == line
    assert len(pieces) > 10
    assert max(len(piece.encode()) for piece in pieces) <= MAX_LINE_BYTES


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc who lives")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_training_ends_with_the_build_however_that_ends(tmp_path: Path, end: signal.Signals) -> None:
    script = f"""
        import os
        from pathlib import Path
        from niels_cache_assets.artifacts import tokenizer as tokenizer_artifact
        from tests.helpers.builds import build_tokenizer
        from niels_cache_assets.project.registry import load_registry
        def endless(registry, root, sample, beginnings, log):  # training waits for a writer of its text for ever
            os.mkfifo(sample)
            return {{"bytes": 0}}
        tokenizer_artifact.spool_sample = endless
        registry = load_registry(profile="quickstart", config={configure(tmp_path, TINY)!r})
        build_tokenizer(registry, root=Path({str(tmp_path)!r}))
    """
    with watched("-c", textwrap.dedent(script)) as build:
        children = Path(f"/proc/{build.program.pid}/task/{build.program.pid}/children")
        wait_until(children.read_text)
        [training] = children.read_text().split()
        build.program.send_signal(end)
        words = build.last_words(within=60)
        try:
            wait_until(lambda: is_gone(training))
        finally:
            if not is_gone(training):
                os.kill(int(training), signal.SIGKILL)
    assert build.program.returncode == -end
    assert not (tmp_path / "tokenizer").exists()
    if end == signal.SIGINT:
        assert words == "KeyboardInterrupt"
        assert not (tmp_path / ".tokenizer.partial").exists()


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid: str) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


QUIET = "[pretrain.python_docs]\nenabled = false\n[sft.python_help]\nenabled = false\n[tokenizer]\nvocab_size = 400\n"


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@pytest.mark.usefixtures("trains_here")
@pytest.mark.parametrize(
    "error",
    [KeyError("text"), MemoryError(), SourceUnavailableError("the hub cannot be reached")],
    ids=["a bug", "no memory", "unavailable"],
)
def test_whatever_one_source_raises_the_others_are_trained_on_and_the_log_keeps_where_it_arose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a row"}\n')
    tables = '[pretrain.broken]\nsource = "jsonl"\nfiles = ["rows.jsonl"]\n'

    def documents(self: Jsonl, context: object) -> object:
        raise error

    monkeypatch.setattr(Jsonl, "documents", documents)
    said: list[str] = []
    registry = load_registry(profile="quickstart", config=configure(tmp_path, tables + QUIET))
    outcome = build_tokenizer(registry, root=tmp_path, log=said.append)
    is_unavailable = isinstance(error, SourceUnavailableError)
    assert outcome.meta["trained_on"]["skipped"] == {"broken": "unavailable" if is_unavailable else "failed"}
    [warning] = [line for line in said if line.startswith("WARNING: ")]
    assert warning.endswith(f" broken: {told(error)}" if not is_unavailable else f" broken: {error}")
    assert outcome.warning == warning.removeprefix("WARNING: ")
    tracebacks = [line for line in said if line.startswith("DEBUG: Traceback")]
    assert ["in documents\n" in traceback for traceback in tracebacks] == ([] if is_unavailable else [True])
    registry = load_registry(profile="quickstart", config=configure(tmp_path, tables + QUIET + 'train_on = ["sample", "broken"]\n'))
    if is_unavailable:
        assert build_tokenizer(registry, root=tmp_path, force=True).meta["trained_on"]["skipped"] == {"broken": "unavailable"}
        return
    with pytest.raises(NielsCacheError) as raised:
        build_tokenizer(registry, root=tmp_path)
    assert str(raised.value) == f"[tokenizer] train_on broken: {told(error)}"


PREPARED = """prepare = ["clean", "dedup"]
cleaning = { min_characters = 1, min_words = 3, skip = ["not_english", "repetitive", "no_stopwords"] }
"""
MIX_OF_WIKI = '[pretrain.mix]\nsource = "interleave"\nmembers = { wiki = 1.0 }\nprepare = ["clean"]\n'
MARKUP = "{{Infobox}}"  # too short a document: cleaning drops it


def prepared_registry(folder: Path, rule: str = "val_frac = 0.2", more: str = "") -> Registry:
    """`wiki`: 40 documents, marked by their number, two copies of one and one that is markup alone; prepared, with rule `rule`."""
    texts = [f"Numberq{number}q {text}" for number, text in enumerate(sentences(40, words=40))]
    write_jsonl(folder / "wiki.jsonl", [MARKUP, *texts, texts[3]])
    wiki = f'[pretrain.wiki]\nsource = "jsonl"\nfiles = ["wiki.jsonl"]\n{rule}\n{PREPARED}'
    build = "[build]\nthreads = 1\n[dedup]\nthreshold = 0.95\n"
    return load_registry(profile="quickstart", config=configure(folder, wiki + more + build + QUIET))


def sample_of(registry: Registry, root: Path) -> tuple[str, dict[str, Any], list[str]]:
    """The sample's text, `trained_on`, and what was logged."""
    said: list[str] = []
    trained_on = spool_sample(registry, root, root / "spooled.txt", {}, said.append)
    return (root / "spooled.txt").read_text(encoding="utf-8"), trained_on, said


def numbers(text: str) -> list[int]:
    return [int(word.split("q")[1]) for word in text.split() if word.startswith("Numberq")]


def test_a_prepared_data_set_gives_its_prepared_documents_of_train_alone(tmp_path: Path) -> None:
    registry = prepared_registry(tmp_path)
    raw, trained_on, said = sample_of(registry, tmp_path)
    assert (MARKUP in raw, trained_on["read_as"]) == (True, {"sample": "raw", "wiki": "raw"})
    assert numbers(raw) == [*range(40), 3]
    [warning] = [line for line in said if line.startswith("WARNING: ")]
    assert missing(warning, " raw ", " wiki,", "prepared") == []
    prepare_corpus(registry, "wiki", root=tmp_path, processes=1)
    with_copies, trained_on, said = sample_of(registry, tmp_path)
    assert (MARKUP in with_copies, trained_on["read_as"]["wiki"], said) == (False, "prepared", [])
    find_duplicates(registry, root=tmp_path)
    clean, trained_on, said = sample_of(registry, tmp_path)
    kept = [document for batch in prepared_documents(registry, "wiki", root=tmp_path) for document in batch]
    train = [document.text for document in kept if document.split == "train"]
    assert 0 < len(train) < len(kept) == 40
    assert numbers(clean) == numbers("\n".join(train))
    assert (trained_on["revisions"]["wiki"], said) == (registry.source("wiki").revision({}), [])
    again, trained_again, _ = sample_of(registry, tmp_path)
    assert (again, trained_again) == (clean, trained_on)


def test_the_sample_of_a_data_set_ends_with_the_line_that_reaches_its_bytes(tmp_path: Path) -> None:
    lines = ["twelve bytes", "twelve bytes", "the third line"]
    for most, taken in ((1, 1), (13, 1), (14, 2), (26, 2), (27, 3)):
        tables = f'[tokenizer]\ntrain_on = ["sample"]\nsample_bytes = {most}\n'
        registry = load_registry(profile="quickstart", config=configure(tmp_path, tables, text="\n".join(lines)))
        text, trained_on, _ = sample_of(registry, tmp_path)
        assert (text.splitlines(), trained_on["bytes"]) == (lines[:taken], len(text))


@pytest.mark.usefixtures("trains_here")
@pytest.mark.parametrize("shuffle_buffer", [0, 7])
def test_what_a_budget_gives_to_val_is_not_trained_on_nor_in_a_mixture(tmp_path: Path, shuffle_buffer: int) -> None:
    registry = prepared_registry(tmp_path, f"train_tokens = 3000\nval_tokens = 60\nshuffle_buffer = {shuffle_buffer}", MIX_OF_WIKI)
    prepare_corpus(registry, "wiki", root=tmp_path, processes=1)
    find_duplicates(registry, root=tmp_path)
    trained_on = build_tokenizer(registry, root=tmp_path).meta["trained_on"]
    build_dataset(registry, "wiki", root=tmp_path)
    folder = dataset_dir(tmp_path, "pretrain", "wiki")
    val = {
        row.row
        for row in read_lineage(folder / "val_documents.parquet", range(read_meta(str(folder / META_NAME))["documents"]["val"])).values()
    }
    text, _, _ = sample_of(registry, tmp_path)
    trained = {number + 1 for number in numbers(text)}  # rows: the first one is markup
    assert (len(val) > 0, len(trained) > 10, trained & val) == (True, True, set())
    assert (trained_on["read_as"]["wiki"], trained_on["read_as"]["mix"]) == ("prepared", "members")
    assert len(numbers(text)) == 2 * len(trained), "once of itself and once of the mixture"


def test_a_mixture_without_a_corpus_is_mixed_from_its_members_corpora(tmp_path: Path) -> None:
    registry = prepared_registry(tmp_path, more=MIX_OF_WIKI)
    prepare_corpus(registry, "wiki", root=tmp_path, processes=1)
    find_duplicates(registry, root=tmp_path)
    text, trained_on, said = sample_of(registry, tmp_path)
    assert trained_on["read_as"] == {"sample": "raw", "wiki": "prepared", "mix": "members"}
    assert (MARKUP in text, [line for line in said if line.startswith("WARNING")]) == (False, [])
    assert sorted(numbers(text)) == sorted(2 * [*set(numbers(text))]), "each of its documents once of itself and once of the mixture"
