"""Identifiers of languages, compared on real English text (prose, and technical pages with tables and code), and on the made-up prose of
the tests in nine more languages and three scripts without blanks.

    python -m pip install pycld2 cld3-py py3langid        (what is not installed is left out)
    PYTHONPATH=. NIELS_CACHE_REAL_DATA=DIR python benchmarks/languages.py

`right` is the share of pieces of 400 characters whose language is named; `us` is the time of one answer, the best of five rounds.
"""

import gzip
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

import repository_path  # noqa: F401
from niels_cache_cleaning.languages import identify_language
from niels_cache_cleaning.normalizers import collapse_blanks, replace_unreadable
from tests.helpers.prose import PARAGRAPHS, unspaced_documents

SIZE = 400


def identifiers() -> dict[str, Callable[[str], str | None]]:
    found: dict[str, Callable[[str], str | None]] = {"langdetect-rs, as cleaning asks it": lambda text: identify_language(text).code}
    with suppress(ImportError):
        import pycld2

        def cld2(text: str) -> str:  # it refuses controls and surrogates
            return pycld2.detect(collapse_blanks(replace_unreadable(text)).encode(), isPlainText=True)[2][0][1][:2]

        found["pycld2"] = cld2
    with suppress(ImportError):
        import gcld3

        network = gcld3.NNetLanguageIdentifier(min_num_bytes=0, max_num_bytes=10_000)
        found["cld3-py"] = lambda text: network.FindLanguage(text=replace_unreadable(text)).language[:2]
    with suppress(ImportError):
        import py3langid

        found["py3langid"] = lambda text: py3langid.classify(text)[0]
    return found


def pieces() -> list[tuple[str, str]]:
    real = Path(os.environ["NIELS_CACHE_REAL_DATA"])
    with (
        (real / "wikipedia" / "enwiki_extracted_dev.jsonl").open("rb") as wikipedia,
        gzip.open(real / "bulk" / "debian_docs_dev.jsonl.gz") as bulk,
    ):
        lines = [json.loads(line)["text"] for line in (*wikipedia, *islice(bulk, 1_000))]
    books = [(real / "gutenberg" / name).read_text(encoding="utf-8") for name in ("2701-0.txt", "pg1342.txt", "botchan.txt")]
    english = [*lines, *(book[start : start + SIZE] for book in books for start in range(2_000, 300_000, 1_000))]
    others = [(code, text) for code, text in PARAGRAPHS.items()]
    others += [(code, text) for code in ("zh", "ja", "th") for text in unspaced_documents(code, 10)]
    return [(code, text[:SIZE]) for code, text in [*(("en", text) for text in english), *others] if len(text) >= 100]


def main() -> None:
    asked = pieces()
    for name, identify in identifiers().items():
        seconds = []
        for _ in range(5):
            begin = time.process_time()
            answers = [identify(text) for _, text in asked]
            seconds.append(time.process_time() - begin)
        right = [
            [answer == code for (code, _), answer in zip(asked, answers, strict=True) if (code == "en") == english]
            for english in (True, False)
        ]
        shares = "  ".join(f"{sum(each) / len(each):.2%} of {len(each)}" for each in right)
        print(f"{name:36} {min(seconds) / len(asked) * 1e6:6.0f} us   right: English {shares} others")


if __name__ == "__main__":
    main()
