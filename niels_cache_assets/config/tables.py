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
from niels_cache_assets.drop_reasons import reasons_of
from niels_cache_assets.sources.types import ConfigPath
from niels_cache_runtime.format.layout import MAX_VOCAB_SIZE, TOKENIZER_MODEL_NAMES

MEGATRON_SEED = 1234  # the default of Megatron-LM's --seed
ALL_TRAIN = "1"
MAX_EPOCHS = 4.0  # up to this number of epochs, repeated text is nearly as good as new text: Muennighoff et al. 2023, arXiv:2305.16264

LANGUAGES = (  # that cleaning/languages.py can identify
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne nl no pa pl pt ro ru sk sl so sq sv "
    "sw ta te th tl tr uk ur vi zh"
)
REASONS = reasons_of("cleaning")  # names of the filters, in the order in which they run
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

    cache_dir: ConfigPath = Field("cache", description="Root folder of all caches")
    seed: int = Field(defaults.SEED, ge=0, lt=2**63, description="Seed for shuffles and splits")
    shard_bytes: int = Field(defaults.SHARD_BYTES, ge=2, multiple_of=2, description="Exact size of a full shard, in bytes")
    token_dtype: Literal["uint16-le", "uint32-le"] | None = Field(
        None, description="On-disk token type; by default uint16-le for up to 65,536 ids, otherwise uint32-le"
    )
    threads: int | None = Field(
        None, ge=1, le=256, description="Number of encoding threads; by default one per core. Does not affect the bytes"
    )
    verify_parts: Literal["size", "sha256"] = Field(
        "size", description="How each part is checked against its meta.json before parts are joined: by size, or by content"
    )
    network_patience: float = Field(
        defaults.NETWORK_PATIENCE,
        ge=0,
        allow_inf_nan=False,
        strict=False,
        description="How long to retry a failed request, in seconds, before the build fails",
    )


class TokenizerSettings(Table):
    """[tokenizer]: a model to import, or the settings for training one."""

    model_config = ConfigDict(protected_namespaces=())
    model: ConfigPath | None = Field(
        None,
        description="A model to import instead of training one: a SentencePiece .model, a tokenizer.json or its folder, or a tiktoken rank "
        "file",
    )
    kind: defaults.ModelKind | None = Field(
        None,
        description="Model kind, if the file name does not show it; files other than .json and .tiktoken are assumed to be SentencePiece",
    )
    encoding: Literal[defaults.ENCODINGS] | None = Field(  # type: ignore[valid-type]
        None, description="For a tiktoken rank file: the name of its encoding, if tiktoken defines it"
    )
    pattern: str | None = Field(
        None, min_length=1, description="For any other tiktoken rank file: the regular expression that splits text into words"
    )
    normalize: Literal["nfc"] | None = Field(
        None,
        description="For a tiktoken rank file whose model normalizes text to Unicode NFC before encoding, such as Qwen's",
    )
    engine: Literal["auto", "reference"] = Field(
        "auto", description="The encoder: 'auto' uses a fast engine if its ids equal those of 'reference', the library that defines them"
    )
    vocab_size: int = Field(defaults.VOCAB_SIZE, ge=1, le=MAX_VOCAB_SIZE, description="Vocabulary size, including special tokens")
    model_type: Literal["unigram", "bpe", "bytelevel_bpe"] = Field(
        "unigram",
        description="Type of model to train: 'unigram' and 'bpe' produce a SentencePiece model, 'bytelevel_bpe' a tokenizer.json",
    )
    character_coverage: float = Field(
        1.0, gt=0, le=1, description="For SentencePiece: share of characters that get their own piece; all others are encoded as bytes"
    )
    train_on: Words | None = Field(None, description="Data sets to train on; by default all")
    sample_bytes: int = Field(defaults.TOKENIZER_SAMPLE_BYTES, ge=1, description="Bytes of text to take from the start of each data set")
    special_tokens: dict[str, str] = Field(
        defaults.SPECIAL_TOKENS,
        description="Strings for eot and, for SFT data, for sys, usr and asst; if bos is set, every pretraining document begins with it",
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
    """[cleaning]: filter thresholds for every data set with `prepare = ["clean", ...]`. Drop reasons are in
    parentheses.

    `cleaning = {...}` in the table of a data set replaces keys. The page docs/cleaning.md gives the source of each threshold.
    """

    skip: Words = Field(
        (),
        description="Filters to skip, by drop reason, such as 'not_english', and normalizers, such as 'tags' and 'blanks'",
    )
    mask: tuple[Literal["email", "ip", "phone", "key"], ...] = Field(
        (),
        strict=False,
        description="Personal data and secrets to mask: 'email' replaces addresses with [email]; 'ip', 'phone' and 'key' work the same way",
    )
    min_characters: int = Field(400, ge=0, description="Drop documents with fewer characters (too_short)")
    min_words: int = Field(50, ge=0, description="Drop documents with fewer words (too_short)")
    max_bullet_share: Share = Field(
        0.5, description="Drop documents in which bulleted lines make up a larger share of both lines and characters (list_page)"
    )
    min_alpha_word_share: Share = Field(
        0.8, description="Drop documents in which a smaller share of words contains a letter (low_alpha_ratio)"
    )
    min_mean_word_length: float = Field(
        3, ge=0, description="Drop documents with a lower mean word length, in characters (bad_mean_word_len)"
    )
    max_mean_word_length: float = Field(
        12, ge=0, description="Drop documents with a higher mean word length, in characters (bad_mean_word_len)"
    )
    max_symbols_per_word: float = Field(0.1, ge=0, description="Drop documents with more # signs and ellipses per word (high_symbol_ratio)")
    min_stopwords: int = Field(2, ge=0, description="Drop documents with fewer distinct stop words of their language (no_stopwords)")
    max_bigram_share: Share = Field(
        0.05, description="Drop documents in which a single word pair makes up a larger share of all word pairs (repetitive)"
    )
    max_top_2gram_characters: Share | None = Field(
        None, description="Drop documents in which the most frequent word pair makes up a larger share of characters (repetitive)"
    )
    max_top_3gram_characters: Share | None = Field(
        None, description="Drop documents in which the most frequent three-word phrase makes up a larger share of characters (repetitive)"
    )
    max_top_4gram_characters: Share | None = Field(
        None, description="Drop documents in which the most frequent four-word phrase makes up a larger share of characters (repetitive)"
    )
    max_duplicate_lines: Share | None = Field(
        None, description="Drop documents in which duplicate lines make up a larger share of all lines (repetitive)"
    )
    max_duplicate_paragraphs: Share | None = Field(
        None, description="Drop documents in which duplicate paragraphs make up a larger share of all paragraphs (repetitive)"
    )
    languages: Words = Field(("en",), min_length=1, description="Languages to keep, as ISO 639-1 codes")
    language_characters: int = Field(
        400,
        ge=1,
        le=1_000,
        description="Number of characters at the start of a document from which to identify its language. If that language is not in "
        "`languages`, the middle and ten times as many characters are also tried",
    )
    max_reason_share: float = Field(0.5, gt=0, le=1, description="Warn if a single reason drops a larger share of the documents")
    min_language_share: Share = Field(
        0.5,
        description="Warn if `languages` covers a smaller share of the documents whose language was identified",
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
    """[dedup]: how near duplicates are defined, and which copy is kept, for every data set with `prepare = [..., "dedup"]`."""

    threshold: float = Field(0.85, gt=0, lt=1, description="Minimum Jaccard similarity of the word n-grams of near duplicates")
    num_perm: int = Field(128, ge=16, le=1024, description="Number of hashes per MinHash signature")
    ngram: int = Field(5, ge=1, le=32, description="Number of words per n-gram")
    bands: int | None = Field(
        None, ge=1, description="Number of LSH bands; by default chosen to fit the threshold. Must be set together with `rows`"
    )
    rows: int | None = Field(None, ge=1, description="Number of hashes per band")
    verify: Literal["none", "jaccard"] = Field("none", description="'jaccard' also compares the texts of documents that share a band")
    priority: Words = Field((), description="Data sets whose copies are kept, highest priority first; the rest follow in table order")
    ranges: int = Field(
        1,
        ge=1,
        le=1024,
        description="Number of hash ranges. More ranges need less memory and drop the same documents",
    )

    @model_validator(mode="after")
    def _bands_fit(self) -> Self:
        if (self.bands is None) != (self.rows is None):
            raise ValueError("give bands and rows, or neither")
        if self.bands is not None and self.rows is not None and self.bands * self.rows > self.num_perm:
            raise ValueError(f"bands x rows is {self.bands * self.rows}, more than num_perm = {self.num_perm}")
        return self


class BlendSettings(Table):
    """[blend.NAME]: a weighted blend of pretrain data sets in Megatron-LM's order, with indices built in advance."""

    weights: dict[str, PositiveFloat] = Field(
        min_length=1, description="Weight of each member, by the name of its pretrain table, on any scale"
    )
    sequence_length: int = Field(ge=1, description="Number of tokens per sample: Megatron-LM's --seq-length")
    num_samples: int = Field(
        ge=1, le=2**60, description="Number of samples in the run: --train-iters times --global-batch-size, or --train-samples"
    )
    seed: int = Field(MEGATRON_SEED, ge=0, lt=2**32, description="Megatron-LM's --seed")
    split: str = Field(ALL_TRAIN, description='Megatron-LM\'s --split: shares of train, valid and test, such as "99,1,0"')
    part: Literal["train", "valid", "test"] = Field("train", description="The split to blend: train, valid or test")

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
    """[reports]: the training run over all pretrain data sets that `reports/mixture` assumes if there is no [blend.NAME]."""

    steps: int | None = Field(None, ge=1, le=2**40, description="Number of training steps; by default enough to read everything once")
    batch_size: int = Field(32, ge=1, le=2**20, description="Number of samples per step across all ranks; also applies to blends")
    sequence_length: int = Field(1024, ge=1, lt=2**31, description="Number of tokens per sample")
    max_epochs: float = Field(
        MAX_EPOCHS, gt=0, le=2**20, strict=False, description="Warn if a data set is read for more epochs; also applies to blends"
    )


class DagsterSettings(Table):
    """[dagster]: settings for Dagster and its UI, which never change the bytes of a cache."""

    owners: Words = Field((), description='Owners of the assets: email addresses ("ada@example.org") and teams ("team:data")')
    tags: dict[str, str] = Field({}, description='Tags for the assets, such as { project = "tiny" }')
    plots: bool = Field(
        False,
        description="Draw PNG plots of each build, at the cost of time and database space",
    )
    upstream_builds: bool = Field(
        False,
        description="Let `upstream_revision_sensor` request a new build when upstream has changed",
    )
    notes_quiet_seconds: int = Field(
        300, ge=0, description="How long a folder of notes must stay unchanged, in seconds, before it is built"
    )

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
