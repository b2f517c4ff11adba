"""Scores of documents, as steps for the key `steps` (docs/steps.md).

fastText's classifiers are read and run by the package `fasttext-community`, which is the code of the reference program. A model is a
stranger's input to this C++ code: the form of the file is checked first (fasttext_files.py), and the worker that scores loads it, so a
model that ends its process stops the build and nothing else. Each worker has the whole model in memory.
"""

import re
from pathlib import Path
from typing import Any

from niels_cache_assets.base.documents import Document
from niels_cache_assets.steps.step import step
from niels_cache_cleaning.fasttext_files import check_model
from niels_cache_runtime.errors import NielsCacheError, did_you_mean

DIGITS = 6  # of a score, which the reference program prints too; the last bits depend on the processor
MAX_MEGABYTES = 4000
LABEL_PREFIX = "__label__"
_END = "</s>"  # the word that stands for the end of a line, where the reference program stops reading
_END_WORD = re.compile(rf"(?<![^ \r\t\v\f\0]){_END}(?![^ \r\t\v\f\0])")
_BLANKS = re.compile(r"[ \t\r\v\f\0]+")


@step(version=1, identity="version")
class FastText:
    """The probability of a label of a fastText classifier, as the column `score`.

    It is the probability that `fasttext predict-prob MODEL - -1` prints for the text in one line, rounded to 6 digits. That program adds a
    hundred-thousandth to each probability, so a score may be 1.00001. A label that it does not print has the score 0.0. An empty text is an
    empty line, for which most models have a probability too.

    The line has blanks in place of line ends and of the word `</s>`, which would both end it. NUL is a blank, as for the program. Lone
    surrogates are question marks.

    Attributes:
        file_settings: The settings that are paths.
        label: The label.
    """

    file_settings = ("model",)

    def __init__(self, model: str, label: str, max_megabytes: float = MAX_MEGABYTES) -> None:
        """Load the model.

        Args:
            model: The path of a supervised model, .bin or .ftz.
            label: A label of the model, such as "__label__hq".
            max_megabytes: The largest size of the model, in millions of bytes.

        Raises:
            NielsCacheError: If the model is too large, is no supervised model, or does not have the label.
        """
        path = Path(model)
        megabytes = path.stat().st_size / 1e6
        if megabytes > max_megabytes:
            raise NielsCacheError(
                f"{path}: has {megabytes:,.0f} MB, more than max_megabytes = {max_megabytes:g}; raise it if you trust the file"
            )
        self._model, self.label = load_model(path), label
        labels = self._model.get_labels()
        if label not in labels:
            hint = did_you_mean(label, labels, f"choose from {', '.join(labels[:20])}")
            raise NielsCacheError(f"{path}: the model has no label {label!r:.80}; {hint}")

    def __call__(self, document: Document) -> dict[str, float]:
        """Return the score of a document."""
        return {"score": self.score(document.text)}

    def score(self, text: str) -> float:
        """Return the score of a text."""
        found = self._model.f.predict(f"{one_line(text)}\n", -1, 0.0, "replace")
        return round(next((float(share) for share, label in found if label == self.label), 0.0), DIGITS)


def one_line(text: str) -> str:
    """Return a text as one line of the reference program, without a line end, which has all words of the text."""
    line = text.replace("\n", " ")
    if _END in line:
        line = _END_WORD.sub(" ", line)
    return line if line.isascii() else line.encode(errors="replace").decode()


def words_of(text: str) -> str:
    """Return the words of `one_line` that count for a classifier, with one blank between them.

    The reference program skips words that begin as its labels do: in a text that is scored, but not in one that it learns from, where they
    would be labels. Two texts with the same result have the same score.
    """
    line = one_line(text)
    words = _BLANKS.split(line)
    if LABEL_PREFIX in line:
        words = [word for word in words if not word.startswith(LABEL_PREFIX)]
    return " ".join(filter(None, words))


def load_model(path: Path) -> Any:
    """Load a supervised model with fastText.

    Raises:
        NielsCacheError: If fastText is not installed, cannot read the file, or the model is not supervised.
    """
    fasttext = import_fasttext()
    check_model(path)
    try:
        return fasttext.load_model(str(path))
    except (ValueError, RuntimeError, MemoryError) as error:
        raise NielsCacheError(
            f"{path}: fastText cannot load the model ({type(error).__name__}: {error}); train or copy it again"
        ) from error


def import_fasttext() -> Any:
    """Return the module `fasttext`.

    Raises:
        NielsCacheError: If it is not installed.
    """
    try:
        import fasttext
    except ImportError as error:
        raise NielsCacheError("FastText needs fasttext-community; install it: pip install 'niels-cache[classifier]'") from error
    return fasttext
