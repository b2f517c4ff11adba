"""Canonical text, digests, shingles and slots: equal to the plain definition, in any process, and what the definitions say."""

import hashlib
import itertools
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from niels_cache_assets.dedup import hashing
from niels_cache_assets.dedup.canonical import (
    ALONE,
    CODE_POINTS,
    ELLIPSIS,
    MARK,
    TO_COMPOSE,
    canonical_code_point,
    code_points,
)
from niels_cache_assets.dedup.signatures import Signatures, Signer, estimated_jaccard, jaccard
from tests.helpers.plain_signatures import PlainSigner, canonical_text, set_of, shingles_of, sign_canonical
from tests.helpers.tiny import sentences

PURE = PlainSigner()
COMPILED = Signer()
GOLDEN_TEXTS = [
    "The quick brown fox jumps over the lazy dog, twice.",
    "Don't\u00a0STOP \u2026 \x00Ünï \ud800code №5 日本語 😀 ſ K",
    "two words",
    "!!!",
    "",
]

GOLDEN_DIGESTS = ["57acd98d", "36ce8cfb", "6bbd56a6", "9a7b006d", "5ba93c9d"]
GOLDEN_SLOTS = [
    [366438075, 1364922142, 92438186],
    [1717591811, 546563627, 225323290],
    [992820865, 1572071544, 3365951652],
    [1882310249, 3906032560, 4271419676],
    [4294967295, 4294967295, 4294967295],
]
GOLDEN_SLOTS_SHA256 = "dcfbcfa83c842d3c"
GOLDEN_SHINGLES = [12545659787161732958]

texts = st.text(alphabet=st.characters(categories=["L", "N", "P", "S", "Z", "C", "M"]), max_size=200)
WORDS = [
    "a",
    "Be",
    "see!",
    "de-e",
    "1234567",
    "12345678",
    "éé",
    "日本",
    "日x本",
    "e\u0301",
    "&eacute;",
    "&#20013;",
    "\u200b",
    "  ",
    "\n",
    "…",
]
wordy = st.lists(st.sampled_from([*WORDS, *("x" * length for length in (15, 16, 17))]), max_size=60).map(" ".join)
# All kinds of code points, without blanks between most of them, so that each rule sees each kind before and after it.
MARKED = [
    *"aB10  ..,;:!?--'\"`()[]+=<_$",
    *"\0\u200b\u034f…—\u2212中か。、\u3099\u0301\u0304éＡ１（，“’„€²😀\U00020000\n\u3000؟־",
    *["&lt;", "&amp;amp;", "&#20013;", "&hellip;", "&nbsp;", " - ", "...", "\ud800", "ﬁ", "ﾞ"],
]
marked = st.lists(st.sampled_from(MARKED), max_size=40).map("".join)


def test_the_table_holds_the_rule_for_every_code_point() -> None:
    """Which never changes, on no Python version: digests and signatures lie on disk. The hash is of all, asked for one by one."""
    table = code_points()
    asked = [*range(0x3400), *range(0x3400, CODE_POINTS, 11), *range(0xF900, 0xFB00), *range(0x2F800, 0x2FA20)]
    by_itself = np.where(table // ALONE == 1, table - ALONE, table)
    assert by_itself[asked].tolist() == [canonical_code_point(code_point) for code_point in asked]
    is_alone = (table // ALONE == 1)[[ord(one) for one in "語かカไทabé가한"]]
    assert is_alone.tolist() == [True] * 5 + [False] * 5
    assert hashlib.sha256(table.astype("<u4").tobytes()).hexdigest() == "3756af854f02ae369d9349cdb34ab83dc9c694b2350dca0ebf23b3568692c079"


def test_no_code_point_grows_and_none_changes_twice() -> None:
    table = code_points() % ALONE

    def utf8_bytes(code_point: np.ndarray) -> np.ndarray:
        return np.searchsorted([0x80, 0x800, 0x10000], code_point, side="right") + 1

    kept = table != 0
    own_words = np.flatnonzero(code_points() // ALONE == 1)
    assert utf8_bytes(own_words).min() >= 3, "there is room for two blanks"
    assert np.flatnonzero(code_points() == MARK + ELLIPSIS).tolist() == [ELLIPSIS], "there is room for a blank and three dots"
    assert kept.sum() > 1_000_000
    assert (utf8_bytes(table[kept]) <= utf8_bytes(np.arange(CODE_POINTS)[kept])).all()
    assert (code_points()[table] == code_points()).all()


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("  Hello,\tWORLD!\r\n", "hello world"),
        ("don't - stop_now", "dont -stop_now"),
        ("a\u00a0b\u3000c", "a b c"),
        ("c\u2028d\x1ce", "c d e"),
        ("e\u200bf", "ef"),
        ("\u0645\u200e \U000e0041x\ufe0f\u180e", "\u0645 x"),
        ("e\u0301 \u1100\u1161 \u304b\u3099 \u0627\u0653", "\u00e9 \uac00 \u304c \u0622"),
        ("e'\u0301 x\u0304 \u034fx\u034f", "e\u0301 x\u0304 x"),
        ("&lt;b&gt; &amp;quot;caf&eacute;&amp;quot; A&#66;&#x43; &nbsp;R&D &unknown; &#20013;", "<b >caf\u00e9 abc r &d &unknown \u4e2d"),
        ("\uff11\uff12\uff21 \ufb01\ufb02 \U0001d400 \u2460 \uff8a\uff9e\uff76", "12a fifl a 1 \u30d0 \u30ab"),
        ("it\u00b4s it\u2019s it\u02bcs", "its its its"),
        ("\u4e2d\u6587abc\u3001\u4e2d \u6587", "\u4e2d \u6587 abc \u4e2d \u6587"),
        ("\u0e44\u0e17\u0e22 1", "\u0e44 \u0e17 \u0e22 1"),
        ("soft\u00adhyphen zero\u200dwidth \ufeffmark", "softhyphen zerowidth mark"),
        ("nul\x00nul \ud83dx", "nulnul x"),
        ("ÀÉ Σίσυφος «x» ¿y? €5 x² 😀", "àé σίσυφος x y €5 x² 😀"),
        ("$1+1=2 <a>^|~`", "$1 +1 =2 <a >^|~"),
        ("x=y+z x = y + z", "x =y +z x =y +z"),
        ("... !!!", "...!!!"),
        ('1.5 .5 5. 5.\u200b" 5 !! 5!! (a). [.', "1 .5 .5 5 5 5 !!5 (a )[."),
        ("\u2026a... a\u2026.b", "...a a ....b"),
        ("5'10\" 5\u2019''\u200b1 a'1 1'a '1'", "5'10 5'1 a1 1a 1"),
        ("a--b a \u2014 b a - b --a a-- b a --b a \u2014\u2212 '\u4e2d", "a -b a -b a -b --a a --b a --b a -\u4e2d"),
        ("\u4e2d.5 a\u3002\u4e2d (\u4e2d)\uff0c1 \u3001", "\u4e2d 5 a \u4e2d (\u4e2d ),1 ,"),
        ("\u0646\u0639\u0645\u060c \u0644\u0627\u061f \u0915\u0964", "\u0646\u0639\u0645 \u0644\u0627 \u0915"),
        ("\"'\u201e\u201c", ""),
        ("", ""),
    ],
)
def test_canonical_text_drops_marks_of_prose_and_keeps_signs(text: str, canonical: str) -> None:
    assert canonical_text(text) == canonical


@given(st.lists(texts | wordy | marked, max_size=5), st.sampled_from([1, 2, 5, 9]), st.sampled_from([16, 20, 128]))
@example(GOLDEN_TEXTS, 5, 128)
def test_kernels_and_plain_python_give_the_same(documents: list[str], ngram: int, num_perm: int) -> None:
    pure, compiled = PlainSigner(num_perm=num_perm, ngram=ngram), Signer(num_perm=num_perm, ngram=ngram)
    assert_equal(compiled.sign(documents), pure.sign(documents))
    one, other = compiled.shingle(documents), pure.shingle(documents)
    assert one.hashes.tolist() == other.hashes.tolist()
    assert one.ends.tolist() == other.ends.tolist()
    assert one.digests.tobytes() == pure.sign(documents).digests.tobytes()
    canonical = [canonical_text(document) for document in documents]
    assert sign_canonical(compiled, canonical).tolist() == compiled.sign(documents).slots.tolist()


def test_kernels_and_plain_python_look_equally_far_ahead_and_behind() -> None:
    """Every four kinds in a row, at the beginning, inside and at the end of a document; and marks that are a megabyte apart."""
    kinds = ["a", "1", " ", ".", "!", "…", "-", "'", "+", ")", "\u200b", "中", "é", "。"]
    documents = ["".join(four) for four in itertools.product(kinds, repeat=4)]
    assert len(documents) == 14**4
    far = "\u200b'" * (1 << 19)
    documents += [f"1{far}1", f"a.{far} b", f"a.{far}b", f"a--{far}b", f"a --{far} b", f"{far}.", f"-{far}-"]
    digests = COMPILED.sign(documents).digests
    canonical = [canonical_text(text) for text in documents]
    expected = [hashlib.sha1(text.encode()).digest() for text in canonical if text]
    assert [digest.tobytes() for digest, text in zip(digests, canonical, strict=True) if text] == expected
    assert len(expected) > 38_000
    assert canonical[-7:] == ["1'1", "a b", "a .b", "a -b", "a -b", ".", "--"]


def test_kernels_read_what_is_composed_as_plain_python_does() -> None:
    characters = [chr(code_point) for first, end in TO_COMPOSE for code_point in range(first - 1, end + 1)]
    assert len(characters) > 200
    documents = [f"{before}{character} two&amp;three" for character in characters for before in ("e", "\u0627", "\u304b", "\u1100")]
    assert_equal(COMPILED.sign(documents), PURE.sign(documents))
    assert_equal(COMPILED.sign(documents[:1]), PURE.sign(documents[:1]))


def test_sets_of_shingles_are_sorted_without_repetitions() -> None:
    signer = COMPILED
    documents = ["", "a b c d e f " * 9, *GOLDEN_TEXTS, "a b c d e f " * 9, "b"]
    sets, ends = signer.shingle_sets(documents)
    shingles = signer.shingle(documents)
    for index, (start, end) in enumerate(zip([0, *ends.tolist()], ends.tolist(), strict=False)):
        expected = sorted(set(shingles.hashes[shingles.ends[index - 1] if index else 0 : shingles.ends[index]].tolist()))
        assert sets[start:end].tolist() == expected
    assert len(sets) == ends[-1] < len(shingles.hashes)
    assert [len(array) for array in signer.shingle_sets([])] == [0, 0]


def assert_equal(one: Signatures, other: Signatures) -> None:
    assert len(one) == len(other)
    assert one.digests.tobytes() == other.digests.tobytes()
    assert one.slots.tobytes() == other.slots.tobytes()


def test_golden_values() -> None:
    """On disk already somewhere: a change of these is a new SIGNATURE_VERSION."""
    signatures = COMPILED.sign(GOLDEN_TEXTS)
    assert [bytes(digest[:4]).hex() for digest in signatures.digests] == GOLDEN_DIGESTS
    assert signatures.slots[:, :3].tolist() == GOLDEN_SLOTS
    assert hashlib.sha256(signatures.slots.astype("<u4").tobytes()).hexdigest()[:16] == GOLDEN_SLOTS_SHA256
    assert shingles_of(COMPILED, GOLDEN_TEXTS[2]).tolist() == GOLDEN_SHINGLES
    assert hashing.SIGNATURE_VERSION == "1"


def test_a_text_of_which_nothing_is_left_equals_only_an_identical_one() -> None:
    nothing = ["", "''", '"', "\u200b", "\0", " ", "\ud800"]
    assert {canonical_text(text) for text in nothing} == {""}
    digests = [digest.tobytes() for digest in COMPILED.sign([*nothing, *nothing, "word"]).digests]
    assert digests[:7] == digests[7:14]
    assert len(set(digests)) == 8


def test_shingles_are_runs_of_five_words() -> None:
    def words(text: str) -> int:
        return len(COMPILED.shingle([text]).hashes)

    assert [words(text) for text in ("", "''", "a", "a b c d", "a b c d e", "a b c d e f", "a+b+c+d+e+f+g")] == [0, 0, 1, 1, 1, 2, 3]
    repeated = "a b c d e " * 4
    assert len(COMPILED.shingle([repeated]).hashes) == 16
    assert len(shingles_of(COMPILED, repeated)) == 5
    assert jaccard(shingles_of(COMPILED, "a b c d e f"), shingles_of(COMPILED, "x A b, c d e")) == 1 / 3


def test_a_text_without_words_is_near_nothing() -> None:
    signatures = COMPILED.sign(["''", "", "word"])
    assert (signatures.slots[:2] == hashing.NO_SHINGLE).all()
    assert (signatures.slots[2] <= hashing.LAST_SLOT_VALUE).all()
    assert estimated_jaccard(signatures.slots[[0, 0, 2]], signatures.slots[[1, 2, 2]]).tolist() == [0, 0, 1]
    assert jaccard(shingles_of(COMPILED, "''"), shingles_of(COMPILED, "")) == 0


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_jaccard_is_that_of_sets(one: set[int], other: set[int]) -> None:
    expected = len(one & other) / len(one | other) if one and other else 0
    assert jaccard(np.array(sorted(one), dtype=np.uint64), np.array(sorted(other), dtype=np.uint64)) == expected


def test_signing_together_or_alone_is_the_same() -> None:
    documents = [*sentences(50, words=30), "x " * 700_000, *GOLDEN_TEXTS]  # the long one is a group of its own
    together = COMPILED.sign(documents)
    for index, document in enumerate(documents):
        assert_equal(
            COMPILED.sign([document]), Signatures(digests=together.digests[index : index + 1], slots=together.slots[index : index + 1])
        )
    shingles = COMPILED.shingle(documents)
    assert all(set_of(shingles, index).tolist() == shingles_of(COMPILED, document).tolist() for index, document in enumerate(documents))


def test_more_shingles_than_the_kernel_buffers_are_all_seen() -> None:
    generator = torch.Generator().manual_seed(1)
    text = " ".join(f"w{number}" for number in torch.randint(1 << 30, (10_000,), generator=generator).tolist())
    assert_equal(COMPILED.sign([text]), PURE.sign([text]))


def test_slots_of_fewer_are_the_first_of_more() -> None:
    document = sentences(3, words=40)
    assert Signer(num_perm=16).sign(document).slots.tolist() == Signer(num_perm=256).sign(document).slots[:, :16].tolist()


def test_no_texts_and_a_pickled_signer() -> None:
    for signer in (COMPILED, pickle.loads(pickle.dumps(COMPILED))):
        assert signer.sign([]).slots.shape == (0, 128)
        assert signer.shingle([]).hashes.shape == (0,)
        assert len(signer.sign(["a"])) == 1


def test_similarity_is_estimated_without_bias_and_with_the_variance_of_the_binomial() -> None:
    """2,000 pairs over the whole range: |mean error| < 0.003, RMSE at most 1.05 x sqrt(J(1-J)/128)."""
    generator = torch.Generator().manual_seed(7)
    ones, others = [], []
    for pair in range(2000):
        words = [f"w{number}" for number in torch.randint(1 << 30, (120,), generator=generator).tolist()]
        changed = list(words)
        for place in torch.randperm(120, generator=generator)[: pair % 12].tolist():
            changed[place] = f"v{pair}"
        ones.append(" ".join(words))
        others.append(" ".join(changed))
    one, other = COMPILED.shingle(ones), COMPILED.shingle(others)
    similarity = np.array([jaccard(set_of(one, index), set_of(other, index)) for index in range(2000)])
    assert similarity.min() < 0.4
    error = estimated_jaccard(COMPILED.sign(ones).slots, COMPILED.sign(others).slots) - similarity
    assert abs(error.mean()) < 0.003
    assert np.sqrt((error**2).mean()) <= 1.05 * np.sqrt((similarity * (1 - similarity) / 128).mean())


CODE = "def grow(size):\n    if size > 3:\n        return [size, 'a b']\n    return {size: grow(size - 1)}\n"


@pytest.mark.parametrize(
    ("other", "is_equal", "similarity"),
    [
        (CODE.replace("\n", "\r\n"), True, 1.0),
        (CODE.replace("    ", "\t"), False, 1.0),
        (CODE.replace("'", '"'), False, 1.0),
        (CODE.replace("grow", "Grow"), False, 9 / 15),
        (CODE.replace("[size, 'a b']", "size"), False, 9 / 13),
    ],
)
def test_code_is_compared_by_its_words_with_case_and_is_equal_only_with_equal_characters(
    other: str, is_equal: bool, similarity: float
) -> None:
    signer = Signer(ngram=2, units="code")
    [one, two] = signer.sign([CODE, other]).digests.tolist()
    assert (one == two) is is_equal
    hashes, ends = signer.shingle_sets([CODE, other])
    assert jaccard(hashes[: ends[0]], hashes[ends[0] :]) == pytest.approx(similarity)
    assert signer.sign([CODE]).slots.tolist() == Signer(ngram=2).sign([" ".join(re.findall(r"\w+", CODE))]).slots.tolist()
    assert signer.sign([CODE]).digests.tolist() != Signer(ngram=2).sign([CODE]).digests.tolist()
    assert len(signer.shingle(["", "++", CODE]).ends) == 3
