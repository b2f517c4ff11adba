"""The asset package, which turns text into token caches.

It reads sources as streams, tokenizes them with one tokenizer, and writes shards of uint16 or uint32 tokens. The lineage of the tokens and
the sha256 of each file are stored with the shards. Each name loads its module at first use.
"""

from typing import TYPE_CHECKING

from niels_cache_runtime.lazy_names import load_lazily

if TYPE_CHECKING:
    from niels_cache_assets.base.documents import Conversation, Document, Message, SourceReport
    from niels_cache_assets.build_cache import build_pretrain_cache, build_sft_cache
    from niels_cache_assets.defs.component import NielsCacheComponent
    from niels_cache_assets.exchange.hf import to_hf_dataset
    from niels_cache_assets.project.registry import Registry, load_registry
    from niels_cache_assets.steps.step import Drop, step
    from niels_cache_assets.tokenizer.base import TextTokenizer
    from niels_cache_assets.tokenizer.kinds import open_built_model, open_model, view_tokenizer
    from niels_cache_assets.tokenizer.sentencepiece_model import SentencePieceTokenizer
    from niels_cache_assets.tokenizer.tiktoken_ranks import TiktokenTokenizer
    from niels_cache_assets.tokenizer.tokenizer_json import HuggingFaceTokenizer

__all__ = [
    "Conversation",
    "Document",
    "Drop",
    "HuggingFaceTokenizer",
    "Message",
    "NielsCacheComponent",
    "Registry",
    "SentencePieceTokenizer",
    "SourceReport",
    "TextTokenizer",
    "TiktokenTokenizer",
    "build_pretrain_cache",
    "build_sft_cache",
    "load_registry",
    "open_built_model",
    "open_model",
    "step",
    "to_hf_dataset",
    "view_tokenizer",
]

_MODULES = {
    "base.documents": "Conversation Document Message SourceReport",
    "build_cache": "build_pretrain_cache build_sft_cache",
    "defs.component": "NielsCacheComponent",
    "exchange.hf": "to_hf_dataset",
    "project.registry": "Registry load_registry",
    "steps.step": "Drop step",
    "tokenizer.base": "TextTokenizer",
    "tokenizer.kinds": "open_built_model open_model view_tokenizer",
    "tokenizer.sentencepiece_model": "SentencePieceTokenizer",
    "tokenizer.tiktoken_ranks": "TiktokenTokenizer",
    "tokenizer.tokenizer_json": "HuggingFaceTokenizer",
}

__getattr__ = load_lazily(__name__, _MODULES)
