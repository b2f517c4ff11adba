"""A classifier of fastText from good and bad documents, and what it does to documents that it has not learned from.

    Evaluation(...).train(out, arguments)   ->  writes the classifier, and returns its report as plain data
    Evaluation(...).run(model, label)       ->  returns the report of a classifier

A text counts once: documents with the same words (scores.words_of) are copies. A hash of the words decides whether a text is held out, so
the same texts are held out whatever the seed, the settings and the order of files. A text that is both good and bad is left out.

fastText learns in the order of the lines. They alternate between good and bad, and the order on each side is that of a hash of the words
and the seed. Texts, lines and the new classifier are in unlinked files beside the classifier, so that nothing is left of a killed process.
They take about twice the size of the texts, and that of the classifier. The memory is about 250 bytes for each text, and the weights of
the classifier.
"""

import hashlib
import json
import math
import os
import shutil
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal

import numpy as np

from niels_cache_assets.base.documents import Document, DropReport
from niels_cache_assets.base.wording import UNKNOWN, format_count, format_share
from niels_cache_assets.base.wording import label as reason_label
from niels_cache_assets.tokenizer.kinds import TextTokenizer
from niels_cache_cleaning.classifier_inputs import Given
from niels_cache_cleaning.classifier_report import NewFile, Scored, open_files, report_of
from niels_cache_cleaning.classifier_training import TrainingFailedError, TrainingSettings, train
from niels_cache_cleaning.scores import LABEL_PREFIX, MAX_MEGABYTES, FastText, import_fasttext, words_of
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Ints
from niels_cache_runtime.format.meta import sha256_file

SIDES = ("good", "bad")
LABELS = {"good": f"{LABEL_PREFIX}hq", "bad": f"{LABEL_PREFIX}lq"}
MIN_TEXTS = 10  # on each side
_KEY_BYTES = 8
_COPIED_BYTES = 1 << 20

Balance = Literal["sample", "repeat", "none"]
OnProgress = Callable[[str, int, int], None]  # the step, and its finished and all bytes


class Examples:
    """The different texts of both sides."""

    def __init__(self, new_file: NewFile, *, held_out: float, seed: int) -> None:
        """Create an empty set.

        Args:
            new_file: Opens the file in which the texts wait.
            held_out: The share of the texts that is held out.
            seed: The seed of the order.
        """
        self._file = new_file()
        self._held_out, self._key = int(held_out * 2.0**64), seed.to_bytes(8, "little")
        self._numbers: dict[bytes, int] = {}  # by digest
        self._sides, self._starts, self._order, self._is_held_out = list[int](), list[int](), list[int](), list[bool]()
        self._in_both: set[int] = set()
        self.held_out_characters = 0
        self.counts = {side: Counter(read=0, empty=0, copies=0) for side in SIDES}
        self.dropped = {side: dict[str, int]() for side in SIDES}

    def read(self, side: str, given: Given) -> None:
        """Add the documents of one side."""
        counts, report, number = self.counts[side], DropReport(), SIDES.index(side)
        for document in given.documents(report):
            counts["read"] += 1
            words = words_of(document.text).encode()
            if not words:
                counts["empty"] += 1
                continue
            digest = hashlib.blake2b(words, digest_size=16).digest()
            place = self._numbers.setdefault(digest, len(self._sides))
            if place < len(self._sides):
                if self._sides[place] == number or place in self._in_both:
                    counts["copies"] += 1
                else:
                    self._in_both.add(place)
                continue
            is_held_out = int.from_bytes(digest[:_KEY_BYTES], "little") < self._held_out
            self.held_out_characters += is_held_out * len(document.text)
            self._sides.append(number)
            self._is_held_out.append(is_held_out)
            self._order.append(int.from_bytes(hashlib.blake2b(digest, digest_size=_KEY_BYTES, key=self._key).digest(), "little"))
            self._starts.append(self._file.tell())
            self._file.write(json.dumps(document[:5]).encode() + b"\n" if is_held_out else words + b"\n")
        self.dropped[side] = dict(report.dropped)
        if (texts := self._sides.count(number)) < MIN_TEXTS:
            both = f", not counting {self.in_both:,} that are good and bad" if self.in_both else ""
            raise NielsCacheError(
                f"{given.option} {' '.join(given.names)}: {format_count(counts['read'], 'document')} with "
                f"{format_count(texts, 'different text')}{both}, and {MIN_TEXTS} are the least; name more documents"
            )

    @property
    def in_both(self) -> int:
        """The number of texts that are both good and bad, and are left out."""
        return len(self._in_both)

    def numbers(self, side: str, *, held_out: bool) -> Ints:
        """Return the numbers of the texts of a side, in the order in which they are learned.

        Raises:
            NielsCacheError: If there is none.
        """
        chosen = (np.array(self._sides) == SIDES.index(side)) & (np.array(self._is_held_out) == held_out)
        chosen[[*self._in_both]] = False
        found = np.flatnonzero(chosen)
        if not found.size:
            what = "held out" if held_out else "left to learn from"
            both = f" ({self.in_both:,} are good and bad)" if self.in_both else ""
            texts = f"{self._sides.count(SIDES.index(side)):,} texts{both}"
            raise NielsCacheError(f"--{side}: none of its {texts} is {what}; name more documents, or change --held-out")
        order: Ints = found[np.argsort(np.array(self._order, dtype=np.uint64)[found], kind="stable")]
        return order

    def held_out(self) -> Iterator[tuple[str, Document]]:
        """Yield the documents that are held out, with their sides."""
        for side in SIDES:
            for number in self.numbers(side, held_out=True).tolist():
                yield side, Document(*json.loads(self._line(number)))

    def write_lines(self, path: Path, balance: Balance) -> dict[str, Any]:
        """Write the lines to learn from, and return how many of each side there are, how many texts are not used, and one line about it."""
        numbers = [self.numbers(side, held_out=False) for side in SIDES]
        least, most = sorted(map(len, numbers))
        if balance == "sample":
            chosen = [each[:least] for each in numbers]
        else:
            chosen = [np.resize(each, most) for each in numbers] if balance == "repeat" else numbers
        places = np.concatenate([(np.arange(len(each)) + 0.5) / len(each) for each in chosen])  # both sides alternate
        sides = np.repeat([0, 1], [*map(len, chosen)])
        order = np.argsort(places, kind="stable")
        with open(path, "wb") as file:
            for number, side in zip(np.concatenate(chosen)[order].tolist(), sides[order].tolist(), strict=True):
                file.write(f"{LABELS[SIDES[side]]} ".encode() + self._line(number))
        used = {side: len(each) for side, each in zip(SIDES, chosen, strict=True)}
        unused = {side: max(0, len(all_) - len(each)) for side, all_, each in zip(SIDES, numbers, chosen, strict=True)}
        lines = " and ".join(f"{used[side]:,} {side}" for side in SIDES)
        small, large = sorted(SIDES, key=lambda side: len(numbers[SIDES.index(side)]))
        notes = {
            "sample": f"; {unused[large]:,} more {large} ones are not used, so that both sides weigh the same",
            "repeat": f"; the {least:,} {small} texts are repeated, so that both sides weigh the same",
            "none": f"; {large} weighs {most / least:.3g} times as much as {small}",
        }
        return {"balance": balance, "lines": used, "unused": unused, "note": lines + (notes[balance] if least < most else "")}

    def _line(self, number: int) -> bytes:
        self._file.seek(self._starts[number])
        return self._file.readline()


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How a classifier is evaluated.

    Attributes:
        good: Good documents.
        bad: Bad documents.
        on: Documents to count at each threshold. None: those that are held out.
        held_out: The share of the texts that is held out.
        similarity: The similarity of near copies.
        progress: Called with the step, and its finished and all bytes.
        tokenizer: The tokenizer of the tokens to count. None: words are counted.
    """

    good: Given
    bad: Given
    on: Given | None = None
    held_out: float
    similarity: float
    progress: OnProgress
    tokenizer: TextTokenizer | None = None

    def train(self, out: Path, arguments: Namespace) -> dict[str, Any]:
        """Write the classifier, and return its report.

        Args:
            out: The file to write.
            arguments: The balance, and the settings of the training.
        """
        settings = TrainingSettings(**{each.name: getattr(arguments, each.name) for each in fields(TrainingSettings)})
        import_fasttext()  # before anything is read
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=out.parent).close()
        except OSError as error:
            raise NielsCacheError(f"{out}: cannot be written: {error.strerror}; name another file with --out") from error
        with open_files(str(out.parent)) as new_file:
            examples = self._read(new_file, settings.seed)
            for side in SIDES:
                examples.numbers(side, held_out=True)  # raises an error before the training
            files = new_file(), new_file()
            lines, model = (Path(f"/proc/self/fd/{file.fileno()}") for file in files)
            training = {**examples.write_lines(lines, arguments.balance), **asdict(settings)}
            size = lines.stat().st_size * settings.epochs
            train(lines, model, settings, files=files, progress=lambda share: self.progress("training", int(share * size), size))
            files[0].truncate(0)
            try:
                step = FastText(str(model), LABELS["good"], math.inf)
            except NielsCacheError as error:  # fastText does not notice a full disk
                raise TrainingFailedError(f"{out}: the classifier was not written as a whole; is the disk full?") from error
            _write(out, files[1])
            return {**self._report(examples, out, step, new_file), "training": training}

    def run(self, model: Path, label: str) -> dict[str, Any]:
        """Return the report of a classifier.

        Args:
            model: The file of the classifier.
            label: The label of good documents.
        """
        if not model.is_file():
            raise NielsCacheError(f"{model}: no such file; name a classifier of fastText")
        step = FastText(str(model), label, math.inf)  # its errors come before anything is read
        with open_files(None) as new_file:
            return self._report(self._read(new_file, 0), model, step, new_file)

    def _count(self, text: str) -> int:
        if self.tokenizer is None:
            return len(text.split())
        return self.tokenizer.count_tokens([text.encode(errors="replace").decode()])  # it may refuse lone surrogates

    def _read(self, new_file: NewFile, seed: int) -> Examples:
        examples = Examples(new_file, held_out=self.held_out, seed=seed)
        for side, given in zip(SIDES, (self.good, self.bad), strict=True):
            examples.read(side, given)
        return examples

    def _report(self, examples: Examples, model: Path, step: FastText, new_file: NewFile) -> dict[str, Any]:
        tested = Scored(new_file, step.score, self._count)
        for side, document in examples.held_out():
            tested.add(document, side)
            self.progress("scoring", tested.characters, examples.held_out_characters)
        stays, of, dropped = tested, "the held-out documents", {}
        if self.on is not None:
            stays, of, report = Scored(new_file, step.score, self._count), " ".join(self.on.names), DropReport()
            size = self.on.bytes
            for document in self.on.documents(report):
                stays.add(document)
                self.progress(f"scoring {of}", stays.characters, max(size, stays.characters))
            dropped = dict(report.dropped)
        sides = {
            side: {"from": [*given.names], **examples.counts[side], "unreadable": examples.dropped[side]}
            | {"held_out": len(examples.numbers(side, held_out=True))}
            for side, given in zip(SIDES, (self.good, self.bad), strict=True)
        }
        found = report_of(tested, stays, similarity=self.similarity)
        return {
            "model": str(model),
            "bytes": model.stat().st_size,
            "sha256": sha256_file(model),
            "label": step.label,
            "sides": sides,
            "in_both": examples.in_both,
            **found,
            "stays": {"of": of, "unit": "words" if self.tokenizer is None else "tokens", "unreadable": dropped, **found["stays"]},
        }


def _write(path: Path, content: IO[bytes]) -> None:
    """Write a file in one step."""
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        content.seek(0)
        with open(spare, "wb") as file:
            shutil.copyfileobj(content, file, _COPIED_BYTES)
            file.flush()
            os.fsync(file.fileno())
        os.replace(spare, path)
    finally:
        spare.unlink(missing_ok=True)


def table_entry(report: Mapping[str, Any], folder: Path) -> str:
    """Return the lines that a data set of a niels_cache.toml in `folder` needs."""
    model = os.path.relpath(report["model"], folder)
    path, label = (json.dumps(text, ensure_ascii=False) for text in (model, report["label"]))
    settings = f"score = {path}, label = {label}"
    if (megabytes := math.ceil(report["bytes"] / 1e6)) > MAX_MEGABYTES:
        settings += f", max_megabytes = {megabytes}"
    return f'steps = [\n    {{ {settings}, keep = ["score"] }},\n    {{ where = "score > {report["best"]["threshold"]}" }},\n]'


def lines_about(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about what was read."""
    for side, counts in report["sides"].items():
        copies = "copy" if counts["copies"] == 1 else "copies"
        left_out = [f"{counts[key]:,} {what}" for key, what in (("copies", copies), ("empty", "without words")) if counts[key]]
        left_out += _unreadable(counts)
        note = f"; left out: {', '.join(left_out)}" if left_out else ""
        yield f"{side}: {format_count(counts['read'], 'document')}, {counts['held_out']:,} held out{note}"
    if report["in_both"]:
        yield f"{format_count(report['in_both'], 'text')} in both good and bad: left out"
    if left_out := _unreadable(report["stays"]):
        yield f"{report['stays']['of']}: left out: {', '.join(left_out)}"
    if "training" in report:
        yield f"learned from {report['training']['note']}"
    good = sum(row["good"] for row in report["histogram"])
    held_out = good + sum(row["bad"] for row in report["histogram"])
    yield f"{format_share(good, held_out)} of the held-out documents are good, which precision depends on"


def _unreadable(counts: Mapping[str, Any]) -> list[str]:
    return [f"{count:,} {reason_label(reason)} when read" for reason, count in counts["unreadable"].items()]


def rows_of(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of thresholds, the head first."""
    stays, unit = report["stays"], report["stays"]["unit"]
    rows = [["threshold", "precision", "recall", "F1", "documents that stay", unit, f"unique {unit}", "share"]]
    for row, kept in zip(report["thresholds"], stays["thresholds"], strict=True):
        shown = [UNKNOWN if row[key] is None else f"{row[key]:.3f}" for key in ("precision", "recall", "f1")]
        counts = [f"{kept[key]:,}" for key in ("documents", "tokens", "unique_tokens")]
        rows.append([f"{row['threshold']:.2f}", *shown, *counts, format_share(kept["unique_tokens"], stays["unique_tokens"])])
    return rows
