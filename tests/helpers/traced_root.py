"""A cache root with a tokenizer, documents and chats of known lineage, for the commands that show the origin of tokens."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from niels_cache_assets.base.documents import Conversation, Document
from niels_cache_assets.build_cache import build_pretrain_cache, build_sft_cache
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import sha256_file, write_meta

QUESTION = "a stream?"  # the text of every chat
_SETTINGS: dict[str, Any] = {"max_train_tokens": 100_000, "max_val_tokens": 0, "shard_bytes": 1024, "seed": 1, "shuffle_buffer": None}


def rows_of(texts: Sequence[str]) -> list[Document]:
    return [Document(text, source_id=f"id-{row}", file=f"part{row % 3}.jsonl", row=row) for row, text in enumerate(texts)]


def put_tokenizer(root: Path, tokenizer: SentencePieceTokenizer) -> None:
    folder = root / "tokenizer"
    folder.mkdir(parents=True)
    model = Path(shutil.copy(tokenizer.model_path, folder / "spm.model"))
    tables = {"kind": "tokenizer", "sha256": sha256_file(str(model)), "special_tokens": tokenizer.special_tokens, "files": {}}
    write_meta(str(folder / META_NAME), tables)


def build_notes(root: Path, tokenizer: SentencePieceTokenizer, documents: Sequence[Document | str], **changes: Any) -> None:
    build_pretrain_cache(documents, str(root / "pretrain/notes"), tokenizer=tokenizer, **{**_SETTINGS, **changes})


def build_chats(root: Path, tokenizer: SentencePieceTokenizer, answers: Sequence[str], *, seed: int = 1) -> None:
    chats = [
        Conversation(
            [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": answer}],
            source_id=f"chat-{row}",
            file="chats.jsonl",
            row=row,
        )
        for row, answer in enumerate(answers)
    ]
    build_sft_cache(chats, str(root / "sft/chats"), tokenizer=tokenizer, val_frac=0.1, seed=seed)


def build_root(root: Path, tokenizer: SentencePieceTokenizer, *, texts: Sequence[str], answers: Sequence[str], **changes: Any) -> Path:
    """Build a root. notes: documents that cross shards. chats: short examples, several of which fit into a row. `changes`: changed settings
    of notes.
    """
    put_tokenizer(root, tokenizer)
    build_notes(root, tokenizer, rows_of(texts), **changes)
    build_chats(root, tokenizer, answers)
    return root
