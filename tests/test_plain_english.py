"""Few signs of English that needs a second read are left in docstrings, comments, messages and pages. tests/plain_english.py lists them."""

from collections import Counter
from pathlib import Path

import pytest

from tests.plain_english import SIGNS, files, markdown_texts, python_texts, signs

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("niels_cache_assets", "niels_cache_runtime", "docs", "benchmarks", "examples", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
LEFT = {  # where, and what; plain as they stand; at most 20
    ("niels_cache_assets/sources/reading/encodings.py", "decide what a document is"),
    ("docs/configuration.md", "What the UI shows"),
    ("docs/cookbook.md", "Choose what a tokenizer is trained on"),
    ("docs/dependencies.md", "what it is for"),
    ("docs/dependencies.md", "what the benchmarks are compared with"),
    ("docs/troubleshooting.md", "what it is, and what to do"),
    ("docs/ui.md", "show what the data set was made from"),
    ("CHANGELOG.md", "tells you what it is instead"),
}
SAMPLES = {
    "where there is": "Return the folder where there is one.",
    "is none": "Return None if the value is none.",
    "is gone on with": "The old run is gone on with.",
    "whence": "The file whence it came.",
    "nobody": "A job that nobody waits for.",
    "to be had": "The package is not to be had.",
    "what ... is": "Check what the token is.",
    "a clause as subject": "What is left is deleted.",
    "None where": "Return None where it fails.",
}


def test_few_signs_are_left() -> None:
    found: Counter[str] = Counter()
    paths = list(files([ROOT / place for place in PLACES]))
    assert len(paths) > 300
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        found.update(f"{name}: {sign}: {words}" for _, sign, words in signs(path))
    assert [text for text in found if not any(text.startswith(place) and words in text for place, words in LEFT)] == []
    mended = [(place, words) for place, words in LEFT if not any(text.startswith(place) and words in text for text in found)]
    assert sorted(mended) == [], "take them out of LEFT"
    assert found.total() <= 20


def test_no_sign_is_left_in_the_tests() -> None:
    """The strings of tests are not read, because they are data, and the names of cases."""
    paths = list(files([ROOT / "tests"]))
    assert len(paths) > 200
    assert [f"{path.name}: {sign}: {words}" for path in paths for _, sign, words in signs(path, strings=False)] == []


@pytest.mark.parametrize("sign", SIGNS)
def test_each_sign_is_found(sign: str, tmp_path: Path) -> None:
    module, page = tmp_path / "module.py", tmp_path / "page.md"
    module.write_text(
        f'def call(x):\n    """{SAMPLES[sign]}"""\n    # {SAMPLES[sign]}\n    raise ValueError(f"{SAMPLES[sign]} {{x}}")\n',
        encoding="utf-8",
    )
    page.write_text(f"{SAMPLES[sign]}\n\n```\n{SAMPLES[sign]}\n```\n\n`{SAMPLES[sign]}`\n", encoding="utf-8")
    assert [line for line, name, _ in signs(module) if name == sign] == [3, 2, 4]
    assert [line for line, name, _ in signs(module, strings=False) if name == sign] == [3, 2]
    assert [line for line, name, _ in signs(page) if name == sign] == [1]


def test_names_and_code_are_not_read() -> None:
    assert [text for _, text in python_texts('x = {"is none": "key"}\n')] == []
    assert [text for _, text in markdown_texts("Take `what it is`.\n")] == ["Take X."]
