"""All defaults, each of which has a command-line flag and a configuration key."""

from typing import Literal

SEED = 42
SHARD_BYTES = 134_217_728
SHUFFLE_BUFFER = 10_000
VAL_FRAC = 0.10
FINEWEB_TRAIN_TOKENS = 200_000_000
FINEWEB_VAL_TOKENS = 5_000_000

VOCAB_SIZE = 16_000
TOKENIZER_SAMPLE_BYTES = 20_000_000
ModelKind = Literal["sentencepiece", "tokenizer.json", "tiktoken"]  # the kinds of files that describe a tokenizer
# Known encodings of tiktoken rank files, with their numbers of ranks: those of tiktoken, and two that this project defines.
ENCODINGS = {
    "gpt2": 50_256,
    "r50k_base": 50_256,
    "p50k_base": 50_280,
    "p50k_edit": 50_280,
    "cl100k_base": 100_256,
    "o200k_base": 199_998,
    "o200k_harmony": 199_998,
    "qwen": 151_643,
    "llama3": 128_000,
}
TOKENIZER_TRAIN_THREADS = 2  # SentencePiece's result depends on this number, so it belongs to the model's identity

_SUFFIX = "84a5023f67d74cf29cc4001becde983c"
ROLE_KEYS = ("sys", "usr", "asst", "eot")
SPECIAL_TOKENS = {key: f"<|ngpt_{key}_{_SUFFIX}|>" for key in ROLE_KEYS}
BOS = "bos"  # the key of an optional special token, which begins each document of a pretrain cache
ROLE_TO_KEY = {"system": "sys", "user": "usr", "assistant": "asst"}
Turns = Literal["all", "each", "last"]  # the turns of a conversation that are targets, see the key `turns`
TEMPLATE_ROLES = frozenset({"developer", "tool"})  # further roles, which only chat templates know

PROGRESS_SECONDS = 10.0
NETWORK_RETRY_SECONDS = 600.0
RECORD_SECONDS = 10.0
RECORD_SECONDS_IN_STORE = 600.0  # seconds; each record sends unfinished files


CONFIG_NAME = "niels_cache.toml"
