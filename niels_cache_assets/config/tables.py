"""The schemas of the tables that are not data sets. These are [build], [tokenizer], [cleaning], [dedup], [blend.NAME], [reports] and
[dagster].

The schema for the table of a data set is defined by the source of the data set. This module opens no file; it only asks whether a model is
a folder.
"""

import difflib
import os
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, field_validator, model_validator

from niels_cache_assets.config import defaults
from niels_cache_assets.sources.types import ConfigPath
from niels_cache_runtime.format.layout import MAX_VOCAB_SIZE, TOKENIZER_MODEL_NAMES

MEGATRON_SEED = 1234  # the default of Megatron-LM's --seed
ALL_TRAIN = "1"
MAX_EPOCHS = 4.0  # up to this number of epochs, repeated text is nearly as good as new text: Muennighoff et al. 2023, arXiv:2305.16264

LANGUAGES = (  # that cleaning/languages.py can identify
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne nl no pa pl pt ro ru sk sl so sq sv "
    "sw ta te th tl tr uk ur vi zh"
)
REASONS = (  # names of the filters, in the order in which they run
    "redirect",
    "empty",
    "disambiguation",
    "too_short",
    "not_english",
    "list_page",
    "bad_mean_word_len",
    "high_symbol_ratio",
    "low_alpha_ratio",
    "no_stopwords",
    "repetitive",
    "language_error",
)
NORMALIZERS = (  # names of the steps from markup to text, in the order in which they run
    "unreadable",
    "entities",
    "file_links",
    "templates",
    "tables",
    "tags",
    "links",
    "external_links",
    "headings",
    "blanks",
)
MASKS = ("email", "ip", "phone", "key")  # kinds of personal data and secrets that `mask` finds
_NEVER_SKIPPED = {
    "empty": "a document without text has nothing to keep",
    "unreadable": "a document with lone surrogates cannot be written",
}

_SHARE = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*")
_OWNER = re.compile(r"team:\w+|[^@\s]+@[^@\s]+\.[^@\s]+")
_TAG = re.compile(r"[A-Za-z0-9_.-]{1,63}")


Words = Annotated[tuple[str, ...], Field(strict=False)]  # a list in TOML
Share = Annotated[float, Field(ge=0, le=1)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class BuildSettings(Table):
    """[build]: settings that all data sets share."""

    cache_dir: ConfigPath = Field("cache", description="Root of all caches")
    seed: int = Field(defaults.SEED, ge=0, lt=2**63, description="Seed of shuffles and splits")
    shard_bytes: int = Field(defaults.SHARD_BYTES, ge=2, multiple_of=2, description="Exact size of a full shard, in bytes")
    token_dtype: Literal["uint16-le", "uint32-le"] | None = Field(
        None, description="Type of a token on disk; None: uint16-le for a vocabulary of at most 65,536 ids, uint32-le for a larger one"
    )
    threads: int | None = Field(
        None, ge=1, le=256, description="Threads that encode text; None uses every core. The number never changes the bytes"
    )
    verify_parts: Literal["size", "sha256"] = Field(
        "size", description="How the seal of a data set in parts compares its parts with their meta.json: by size, or by content"
    )
    network_patience: float = Field(
        defaults.NETWORK_PATIENCE,
        ge=0,
        allow_inf_nan=False,
        strict=False,
        description="Seconds to retry a failed request before the build fails",
    )


class TokenizerSettings(Table):
    """[tokenizer]: a model to import, or the settings to train one."""

    model_config = ConfigDict(protected_namespaces=())
    model: ConfigPath | None = Field(
        None,
        description="A model to import: a SentencePiece .model, a tokenizer.json or the folder that has it, or a rank file of tiktoken; "
        "None trains one",
    )
    kind: defaults.ModelKind | None = Field(
        None,
        description="Kind of the model, if its name does not tell it: a file that is not .json or .tiktoken is taken for SentencePiece",
    )
    encoding: Literal[defaults.ENCODINGS] | None = Field(  # type: ignore[valid-type]
        None, description="For a rank file of tiktoken: the known encoding that it belongs to; not the `encoding` of a source"
    )
    pattern: str | None = Field(
        None, min_length=1, description="For a rank file of tiktoken of no known encoding: the regular expression that cuts text into words"
    )
    normalize: Literal["nfc"] | None = Field(
        None,
        description="For a rank file of tiktoken whose model normalizes text first, such as that of Qwen: nfc is Unicode's form C; "
        "None encodes text as it is",
    )
    engine: Literal["auto", "reference"] = Field(
        "auto", description="The encoder: auto is a fast engine that gave the same ids; reference is the library that defines them"
    )
    vocab_size: int = Field(defaults.VOCAB_SIZE, ge=1, le=MAX_VOCAB_SIZE, description="Number of pieces, including special tokens")
    model_type: Literal["unigram", "bpe", "bytelevel_bpe"] = Field(
        "unigram",
        description="Type of the model to train: unigram and bpe are SentencePiece, bytelevel_bpe is a tokenizer.json",
    )
    character_coverage: float = Field(
        1.0, gt=0, le=1, description="SentencePiece: share of characters that get a piece; all others become bytes"
    )
    train_on: Words | None = Field(None, description="Data sets to train on; None: every configured one")
    sample_bytes: int = Field(defaults.TOKENIZER_SAMPLE_BYTES, ge=1, description="Bytes of text to take from the start of each data set")
    special_tokens: dict[str, str] = Field(
        defaults.SPECIAL_TOKENS,
        description="The strings of eot and, for SFT data, of sys, usr and asst; with bos, each document of pretraining begins with it",
    )

    @field_validator("special_tokens")
    @classmethod
    def _different_strings(cls, value: dict[str, str]) -> dict[str, str]:
        roles = (*defaults.ROLE_KEYS, defaults.BOS)
        unknown = [role for role in value if role not in roles]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not a role; name eot, and where they are needed sys, usr, asst, bos")
        if "eot" not in value or len(set(value.values())) != len(value) or not all(value.values()):
            raise ValueError("name at least eot; each role needs a different string")
        return {key: value[key] for key in roles if key in value}

    @model_validator(mode="after")
    def _fits_the_kind_of_model(self) -> Self:
        of_model = [key for key in ("kind", "encoding", "pattern", "normalize") if getattr(self, key) is not None]
        if of_model and self.model is None:
            raise ValueError(f"{of_model[0]} describes an imported model, and no model is named; add model, or remove {of_model[0]}")
        of_ranks = [key for key in ("encoding", "pattern") if getattr(self, key) is not None]
        if len(of_ranks) > 1:
            raise ValueError("encoding and pattern exclude each other; give the encoding if it is known")
        of_ranks += ["normalize"] if self.normalize is not None else []
        if of_ranks and self.model_kind != "tiktoken":
            raise ValueError(f'{of_ranks[0]} is for rank files of tiktoken only; remove it, or add kind = "tiktoken"')
        return self

    @property
    def roles_problem(self) -> str | None:
        """Why no SFT data set can be built with these special tokens, or None."""
        missing = [role for role in defaults.ROLE_KEYS if role not in self.special_tokens]
        if not missing:
            return None
        example = ", ".join(f'{role} = "..."' for role in missing)
        return f"[tokenizer] special_tokens names no {', '.join(missing)}, which SFT data needs; add {example}, the tokens of the model"

    @property
    def model_kind(self) -> defaults.ModelKind:
        """The kind of the model that is imported or trained."""
        if self.model is None:
            return "tokenizer.json" if self.model_type == "bytelevel_bpe" else "sentencepiece"
        return self.kind or kind_of_model(self.model)


def kind_of_model(path: str | os.PathLike[str]) -> defaults.ModelKind:
    """Return the kind of model that the name of a file tells: .json or a folder is a tokenizer.json, .tiktoken is a rank file.

    Any other file is taken for a SentencePiece model. The file `tiktoken.json` of a cache is the description of ranks.
    """
    name = os.fspath(path)
    if name.endswith(".tiktoken") or os.path.basename(name) == TOKENIZER_MODEL_NAMES["tiktoken"]:
        return "tiktoken"
    return "tokenizer.json" if name.endswith(".json") or os.path.isdir(name) else "sentencepiece"


class CleaningSettings(Table):
    """[cleaning]: thresholds of the filters, for every data set with `prepare = ["clean", ...]`.

    `cleaning = {...}` in the table of a data set replaces keys. The page docs/cleaning.md gives the source of each threshold.
    """

    skip: Words = Field(
        (),
        description="Filters and normalizers that do not run. A filter has the name of its reason, such as 'not_english'; "
        "normalizers are for example 'tags' and 'blanks'",
    )
    mask: tuple[Literal["email", "ip", "phone", "key"], ...] = Field(
        (),
        strict=False,
        description="Personal data and secrets to replace: 'email' becomes [email], 'ip', 'phone' and 'key' likewise; empty masks nothing",
    )
    min_characters: int = Field(400, ge=0, description="too_short: fewer characters than this")
    min_words: int = Field(50, ge=0, description="too_short: fewer words than this")
    max_bullet_share: Share = Field(
        0.5, description="list_page: the share of lines with a bullet, and of the characters in them, is above this"
    )
    min_alpha_word_share: Share = Field(0.8, description="low_alpha_ratio: the share of words with a letter is below this")
    min_mean_word_length: float = Field(3, ge=0, description="bad_mean_word_len: the mean word length, in characters, is below this")
    max_mean_word_length: float = Field(12, ge=0, description="bad_mean_word_len: the mean word length, in characters, is above this")
    max_symbols_per_word: float = Field(0.1, ge=0, description="high_symbol_ratio: more # and ellipses per word than this")
    min_stopwords: int = Field(2, ge=0, description="no_stopwords: fewer different stop words of the document's language than this")
    max_bigram_share: Share = Field(0.05, description="repetitive: one pair of words is a larger share of all pairs than this")
    max_top_2gram_characters: Share | None = Field(
        None, description="repetitive: the most frequent pair of words is a larger share of all characters than this"
    )
    max_top_3gram_characters: Share | None = Field(
        None, description="repetitive: the most frequent run of three words is a larger share of all characters than this"
    )
    max_top_4gram_characters: Share | None = Field(
        None, description="repetitive: the most frequent run of four words is a larger share of all characters than this"
    )
    max_duplicate_lines: Share | None = Field(None, description="repetitive: repeated lines are a larger share of all lines than this")
    max_duplicate_paragraphs: Share | None = Field(
        None, description="repetitive: repeated paragraphs are a larger share of all paragraphs than this"
    )
    languages: Words = Field(("en",), min_length=1, description="Languages to keep, as ISO 639-1 codes")
    language_characters: int = Field(
        400,
        ge=1,
        le=1_000,
        description="The language is identified from this number of characters at the start; "
        "if it is not in `languages`, the middle and ten times as many characters are asked, too",
    )
    max_reason_share: float = Field(0.5, gt=0, le=1, description="Warn if a reason rejects a larger share of the documents than this")
    min_language_share: Share = Field(
        0.5,
        description="Warn if the share of documents whose language is in `languages` is below this; "
        "documents whose language was not identified are not counted",
    )

    @field_validator("skip")
    @classmethod
    def _skips_what_there_is(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        skippable = [name for name in (*REASONS, *NORMALIZERS) if name not in _NEVER_SKIPPED]
        for name in value:
            if name in _NEVER_SKIPPED:
                raise ValueError(f"{name!r} cannot be skipped: {_NEVER_SKIPPED[name]}")
            if name not in skippable:
                near = difflib.get_close_matches(name, skippable, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(skippable)}"
                raise ValueError(f"no reason or normalizer {name!r}; {hint}")
        return value

    @field_validator("languages")
    @classmethod
    def _are_codes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for code in value:
            if not re.fullmatch("[a-z]{2,3}", code):
                raise ValueError(f"{code!r} is not a language code; write ISO 639 codes such as 'en', 'de', 'zh'")
        return value

    @model_validator(mode="after")
    def _languages_are_identified(self) -> Self:
        unknown = [code for code in self.languages if code not in LANGUAGES.split()]
        if unknown and "not_english" not in self.skip:
            raise ValueError(
                f"languages: {unknown[0]!r} is a language that cannot be identified; choose from {LANGUAGES}, or skip not_english"
            )
        return self

    @model_validator(mode="after")
    def _word_lengths_in_order(self) -> Self:
        if self.min_mean_word_length > self.max_mean_word_length:
            raise ValueError("min_mean_word_length is above max_mean_word_length")
        return self

    def with_changes(self, changes: dict[str, Any]) -> Self:
        """Return these settings with some keys replaced. Validates them again, and raises pydantic.ValidationError if they are invalid."""
        return type(self).model_validate({**self.model_dump(), **changes})


class DedupSettings(Table):
    """[dedup]: the definition of a near duplicate, and which copy is kept, for every data set with `prepare = [..., "dedup"]`."""

    threshold: float = Field(
        0.85, gt=0, lt=1, description="Two documents are near duplicates if the Jaccard similarity of their word n-grams is at least this"
    )
    num_perm: int = Field(128, ge=16, le=1024, description="Slots of a MinHash signature")
    ngram: int = Field(5, ge=1, le=32, description="Words of a shingle")
    bands: int | None = Field(None, ge=1, description="LSH bands; None: chosen for the threshold. Set it together with `rows`")
    rows: int | None = Field(None, ge=1, description="Slots of a band; None: chosen for the threshold")
    verify: Literal["none", "jaccard"] = Field("none", description="'jaccard': also compare the texts of documents that share a band")
    priority: Words = Field((), description="Data sets whose copies are kept, best first; the rest follow in table order")
    ranges: int = Field(
        1,
        ge=1,
        le=1024,
        description="Ranges of hashes, each of which can be a job. A higher number takes less memory. "
        "It never changes which documents are dropped",
    )

    @model_validator(mode="after")
    def _bands_fit(self) -> Self:
        if (self.bands is None) != (self.rows is None):
            raise ValueError("give bands and rows, or neither")
        if self.bands is not None and self.rows is not None and self.bands * self.rows > self.num_perm:
            raise ValueError(f"bands x rows is {self.bands * self.rows}, more than num_perm = {self.num_perm}")
        return self


class BlendSettings(Table):
    """[blend.NAME]: samples of pretrain data sets, in proportion to weights, in Megatron-LM's order. Indices are built in advance."""

    weights: dict[str, PositiveFloat] = Field(min_length=1, description="Weight of each member (name of a pretrain table), in any scale")
    sequence_length: int = Field(ge=1, description="Tokens of a sample: Megatron-LM's --seq-length")
    num_samples: int = Field(ge=1, le=2**60, description="Samples of the run: --train-iters times --global-batch-size, or --train-samples")
    seed: int = Field(MEGATRON_SEED, ge=0, lt=2**32, description="Megatron-LM's --seed")
    split: str = Field(ALL_TRAIN, description='Shares of train, valid and test in each member: --split, such as "99,1,0"')
    part: Literal["train", "valid", "test"] = Field("train", description="The part to blend: train, valid or test")

    @field_validator("weights")
    @classmethod
    def _finite(cls, value: dict[str, float]) -> dict[str, float]:
        if not sum(value.values()) < float("inf"):
            raise ValueError("the weights add up to infinity")
        return value

    @field_validator("split")
    @classmethod
    def _a_split(cls, value: str) -> str:
        """Check the form of a split. `split_ranges` of the runtime makes the same check, but it would load torch."""
        parts = value.split(",")
        if len(parts) > 3 or not all(_SHARE.fullmatch(part) for part in parts) or not any(map(float, parts)):
            raise ValueError('give the weights of train, valid and test, such as "99,1,0"')
        return value


class ReportsSettings(Table):
    """[reports]: settings of a run with all pretrain data sets. If there is no [blend.NAME], `reports/mixture` plans this run."""

    steps: int | None = Field(None, ge=1, le=2**40, description="Steps of the run; None: enough to read everything once")
    batch_size: int = Field(32, ge=1, le=2**20, description="Samples per step on all ranks together; blends use this key too")
    sequence_length: int = Field(1024, ge=1, lt=2**31, description="Tokens of a sample")
    max_epochs: float = Field(
        MAX_EPOCHS, gt=0, le=2**20, strict=False, description="Warn if a data set is read more often than this; blends use this key too"
    )


class DagsterSettings(Table):
    """[dagster]: what the UI shows in addition to the builds. No key here changes a byte of a cache."""

    owners: Words = Field((), description='Owners of assets: addresses ("ada@example.org") and teams ("team:data")')
    tags: dict[str, str] = Field({}, description='Tags of assets, such as { project = "tiny" }')
    plots: bool = Field(
        False,
        description="Draw PNGs of each build for the UI, one or two seconds and about 100 kB in the database for each; "
        "the page of `niels-cache report` has the same pictures",
    )
    upstream_builds: bool = Field(
        False,
        description="If upstream has changed since a finished build, `upstream_revision_sensor` requests a new build, "
        "even an expensive one",
    )
    notes_quiet_seconds: int = Field(300, ge=0, description="A folder of notes is built after this many seconds without a change")

    @field_validator("owners")
    @classmethod
    def _people_or_teams(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for owner in value:
            if not _OWNER.fullmatch(owner):
                raise ValueError(f"{owner!r} is neither an address nor a team; write it as 'ada@example.org' or 'team:data'")
        return value

    @field_validator("tags")
    @classmethod
    def _short_words(cls, value: dict[str, str]) -> dict[str, str]:
        for key, text in value.items():
            if not _TAG.fullmatch(key) or not (text == "" or _TAG.fullmatch(text)):
                raise ValueError(f"{key!r} = {text!r}: a tag has at most 63 letters, digits, _ - .")
        return value
