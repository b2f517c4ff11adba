"""The training of a tokenizer on a file of text (artifacts/tokenizer_sample.py), and texts that a tokenizer must reproduce.

Neither SentencePiece nor `tokenizers` can be interrupted, so training runs in a child process (`python -m
niels_cache_assets.tokenizer.training SPEC`). The child is killed if an error or a signal ends `train` early, and it ends if the parent is
killed. No part of a text may be lost. Therefore there is no normalization, white space is kept, and characters without a piece become
bytes. SentencePiece holds the whole sample in memory.
"""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from niels_cache_assets.base.defaults import TOKENIZER_TRAIN_THREADS
from niels_cache_assets.base.processes import attended_command
from niels_cache_assets.tokenizer.byte_level import BYTE_LEVEL, sample_lines, train_byte_level
from niels_cache_assets.tokenizer.kinds import TextTokenizer
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from niels_cache_runtime.errors import NielsCacheError

ROUND_TRIP_TEXTS = (
    "one\ntwo\n\nthree\n",
    "\tindented\n\t\ttwice\n",
    "def f(x):\n    if x:\n        return [x]\n",
    "runs   of    blanks  ",
    " leading blank",
    "中文、日本語、한국어",
    "emoji 😀👩‍👩‍👧 and ½ €",
    "\u0000\u007f\ufffd",
)

_POLL_SECONDS = 0.1
MAX_LINE_BYTES = 4192  # SentencePiece skips longer lines, so the sample splits them


def round_trip_losses(tokenizer: TextTokenizer) -> dict[str, str]:
    """Return the texts in ROUND_TRIP_TEXTS that decode differently, of which a tokenizer that was trained here has none.

    Returns:
        What comes back, or the error if the text cannot be encoded, by text.
    """

    def decoded(text: str) -> str:
        try:
            return tokenizer.decode(tokenizer.encode(text))
        except NielsCacheError as error:
            return str(error)

    return {text: found for text in ROUND_TRIP_TEXTS if (found := decoded(text)) != text}


def train(settings: TokenizerSettings, sample: Path, model: Path) -> None:
    """Train in a child process on the lines of the file `sample`, and write the file `model`."""
    spec = {
        "sample": str(sample),
        "model": str(model),
        "vocab_size": settings.vocab_size,
        "model_type": settings.model_type,
        "character_coverage": settings.character_coverage,
        "special_tokens": list(settings.special_tokens.values()),
    }
    _run_child(spec)


def _run_child(spec: dict[str, Any]) -> None:
    read_end, write_end = os.pipe()
    command = attended_command(read_end, "niels_cache_assets.tokenizer.training", json.dumps(spec))
    try:
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pass_fds=[read_end], start_new_session=True
        )
        try:
            while child.poll() is None:
                time.sleep(_POLL_SECONDS)
        finally:
            child.kill()
            _, errors = child.communicate()
    finally:
        os.close(read_end)
        os.close(write_end)
    if child.returncode != 0:
        raise NielsCacheError(f"tokenizer training failed: {_explain_failure(errors, spec)}")


def _explain_failure(errors: str, spec: dict[str, Any]) -> str:
    """Return the last line of the library's error, without the position in SentencePiece's code, and advice."""
    last = errors.strip().splitlines()[-1].split("] ")[-1] if errors.strip() else "the child process was killed"
    last = last.rpartition(f"{NielsCacheError.__name__}: ")[2]
    if "size too high" in last:
        return f"{last} The sample is too small for vocab_size = {spec['vocab_size']}: lower it (--vocab-size) or add text"
    if "required_chars" in last:
        return f"{last.split('Increase')[0]}The text has more characters than that: raise --vocab-size or lower --character-coverage"
    return last


def _train_from_spec(spec: dict[str, Any]) -> None:
    if spec["model_type"] == BYTE_LEVEL:
        train_byte_level(spec)
    else:
        _train_sentencepiece(spec)


def _train_sentencepiece(spec: dict[str, Any]) -> None:
    import sentencepiece

    model = io.BytesIO()

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sample_lines(spec["sample"]),
        model_writer=model,  # with model_prefix, the model would contain a path, so its bytes would depend on the machine
        vocab_size=spec["vocab_size"],
        model_type=spec["model_type"],
        character_coverage=spec["character_coverage"],
        user_defined_symbols=spec["special_tokens"],
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        max_sentence_length=MAX_LINE_BYTES,
        num_threads=TOKENIZER_TRAIN_THREADS,
        minloglevel=1,
    )
    Path(spec["model"]).write_bytes(model.getvalue())


if __name__ == "__main__":
    _train_from_spec(json.loads(sys.argv[1]))
