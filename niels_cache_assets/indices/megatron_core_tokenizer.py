"""The `unique_identifiers` of a tokenizer of megatron-core 0.16.1, which are a part of the hash of an index. No tokenizer is loaded.

They follow two functions of megatron-core. `build_tokenizer` (`megatron/core/tokenizers/text/utils/build_tokenizer.py`) converts flags to
keyword arguments. `MegatronTokenizerText.unique_identifiers` (`text_tokenizer.py`) contains the class, the path, and each keyword argument
as text. For a tokenizer of any other class, including the classes of --legacy-tokenizer, you give the identifiers yourself.
"""

from collections.abc import Mapping
from typing import Any

from niels_cache_assets.config.problems import refuse_choice
from niels_cache_assets.indices.prebuild import parse_json, read_text
from niels_cache_runtime.errors import NielsCacheError

_OF_HUGGINGFACE = ("BertWordPieceLowerCase", "BertWordPieceCase", "GPT2BPETokenizer")
_OF_SENTENCEPIECE = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
TYPES = (*_OF_SENTENCEPIECE, "HuggingFaceTokenizer", *_OF_HUGGINGFACE, "TikTokenizer", "NullTokenizer")
_MODELS = {
    "default": "default_tokenizer.DefaultTokenizerText",
    "gpt": "gpt_tokenizer.GPTTokenizer",
    "mamba": "mamba_tokenizer.MambaTokenizer",
    "bert": "bert_tokenizer.BertTokenizer",
    "t5": "t5_tokenizer.T5Tokenizer",
}
_EXTRA_IDS = [f"<extra_id_{number}>" for number in range(100)]


def tokenizer_of_flags(flags: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return the identifiers of the tokenizer that these flags of Megatron-LM build. Flags that this type of tokenizer does not use are
    ignored.

    flags: the values by their names in Megatron-LM's `args`.
    Raises NielsCacheError for an unknown type, for a missing --tokenizer-model, and for unreadable metadata.
    """
    kind = flags["tokenizer_type"]
    if kind not in TYPES:
        refuse_choice(f"{where}: --tokenizer-type (for another class give --tokenizer-identifiers)", "no tokenizer type", kind, TYPES)
    special = flags["tokenizer_special_tokens"]
    path, options = flags["tokenizer_model"], dict[str, Any]()
    if kind in _OF_SENTENCEPIECE:
        options = {"legacy": flags["tokenizer_sentencepiece_legacy"], "special_tokens": special}
    elif kind == "TikTokenizer":
        options = {name: value for name, value in (("pattern", flags["tiktoken_pattern"]), ("vocab_size", flags["vocab_size"])) if value}
        options |= {"num_special_tokens": flags["tiktoken_num_special_tokens"], "special_tokens": special}
    elif kind == "NullTokenizer":
        path = None
        options = {"vocab_size": flags["vocab_size"]} if flags["vocab_size"] else {}
    else:
        files = {"vocab_file": flags["vocab_file"], "merges_file": flags["merge_file"]}
        tokens = {"additional_special_tokens": special or []}
        if kind == "BertWordPieceCase":
            tokens = {"additional_special_tokens": _EXTRA_IDS}
        if kind in _OF_HUGGINGFACE:
            path, options = kind, tokens | files
        else:
            options = files | tokens
        options |= {
            "use_fast": flags["tokenizer_hf_use_fast"],
            "trust_remote_code": flags["trust_remote_code"],
            "include_special_tokens": flags["tokenizer_hf_include_special_tokens"],
        }
    if path is None and kind != "NullTokenizer":
        raise NielsCacheError(f"{where}: --tokenizer-type {kind} needs --tokenizer-model with the value of the training run")
    model = "default" if kind == "NullTokenizer" else _model_of(flags["tokenizer_metadata"])
    return {
        "class": f"megatron.core.tokenizers.text.models.{_MODELS[model]}",
        "tokenizer_path": path,
        **{name: str(value) for name, value in options.items()},
    }


def _model_of(metadata: str | None) -> str:
    """Return the kind of model from the file of --tokenizer-metadata. The kind of model decides the class of the tokenizer."""
    if metadata is None:
        return "default"
    content = _json_object(read_text(metadata, "--tokenizer-metadata takes a JSON file"), metadata)
    model = content.get("model_type", "default")
    if not isinstance(model, str) or model not in _MODELS or content.get("tokenizer_class"):
        raise NielsCacheError(f"{metadata}: the tokenizer has a custom class (model_type {model!r}); use --tokenizer-identifiers")
    return model


def tokenizer_of_text(given: str, *, where: str) -> dict[str, Any]:
    """Read the identifiers from JSON text, or from a file.

    The file contains only the identifiers, or is a `description.txt` of megatron-core. Raises NielsCacheError for any other text or file.
    """
    is_json = given.lstrip().startswith("{")
    content: Any = _json_object(given, where) if is_json else _json_object(read_text(given, f"{where} takes a JSON file"), given)
    if isinstance(content.get("datasets"), list) and content["datasets"] and isinstance(content["datasets"][0], dict):
        content = content["datasets"][0]  # all data sets of a blend have the same tokenizer
    if "dataset_path" in content:
        content = content.get("tokenizer")
    if not isinstance(content, dict) or "class" not in content:
        raise NielsCacheError(
            f'{where}: these are not the identifiers of a tokenizer; give {{"class": ..., "tokenizer_path": ...}} and its options'
        )
    return content


def _json_object(text: str, where: str) -> dict[str, Any]:
    content = parse_json(text, where)
    if not isinstance(content, dict):
        raise NielsCacheError(f"{where}: is not a JSON object")
    return content
