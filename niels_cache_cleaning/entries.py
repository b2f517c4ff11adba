"""The shipped steps that an entry of `steps` names by a key of their own, such as `{ filter = "too_short", min_words = 20 }`.

`SHIPPED` is the only table of them: the schema of entries expands and checks them here, docs/steps.md lists them, and messages name them.
An entry becomes one with `use`, whose class has the settings as arguments. The path of this class, and its version, identify the step in
fingerprints, so a class is not moved, and its version changes if its results do.

This module is loaded while a configuration is read that has such an entry.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from niels_cache_assets.cleaning.settings import LANGUAGES, MASKS, NORMALIZERS, REASONS, CleaningSettings
from niels_cache_cleaning.filters import RULES
from niels_cache_runtime.errors import did_you_mean

PROFILES = ("gopher", "gopher-repetition", "c4", "fineweb")
SPLITTERS = ("words", "spacy")
_LANGUAGE_KEYS = ("languages", "language_characters")
_OTHER_KEYS = {"not_english": _LANGUAGE_KEYS, "language_error": _LANGUAGE_KEYS, "no_stopwords": ("languages",)}  # beside limits


def limits_in(reason: str) -> tuple[str, ...]:
    """Return the keys of the limits of a filter."""
    return tuple(rule.key for rule in RULES if rule.reason == reason)


def keys_of(reason: str) -> tuple[str, ...]:
    """Return the keys of [cleaning] that a filter uses."""
    return (*limits_in(reason), *_OTHER_KEYS.get(reason, ()))


def _filter(value: Any, settings: Mapping[str, Any]) -> str:
    _choose("filter", value, REASONS)
    _only(f"the filter {value!r}", settings, keys_of(value))
    _cleaning(settings)
    return str(value)


def _code(value: Any, settings: Mapping[str, Any]) -> str:
    from niels_cache_cleaning import code

    _each("code", value, code.RULES)
    _only("code", settings, code.Limits._fields)
    code.Limits(**settings).require_valid()
    return "code"


def _mask(value: Any, settings: Mapping[str, Any]) -> str:
    _each("mask", value, MASKS)
    _only("mask", settings, ())
    return "mask"


def _languages(value: Any, settings: Mapping[str, Any]) -> str:
    _each("languages", value, LANGUAGES.split())
    _only("languages", settings, _LANGUAGE_KEYS)
    _cleaning({"languages": value, **settings})
    return "languages"


def _normalize(value: Any, settings: Mapping[str, Any]) -> str:
    _each("normalize", value, NORMALIZERS)
    _only("normalize", settings, ())
    return "normalize"


def _profile(value: Any, settings: Mapping[str, Any]) -> str:
    _choose("profile", value, PROFILES)
    _only(f"the profile {value!r}", settings, ("splitter",))
    if "splitter" in settings:
        _choose("splitter", settings["splitter"], SPLITTERS)
    return str(value)


def _score(value: Any, settings: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        raise ValueError(f"score is {value!r}; set it to the path of a model of fastText")
    _only("score", settings, ("label", "max_megabytes"))
    if "label" not in settings:
        raise ValueError('score has no label; add the label whose probability is the score, such as label = "__label__hq"')
    return "score"


class Shipped(NamedTuple):
    """A row of the table. Of several keys in an entry, the first one of the table names the step.

    Attributes:
        use: The class.
        check: Refuses a value of the key, or other settings, with ValueError. Returns the name of the step.
        example: An entry, as the page shows it.
        effect: What the step does.
        reasons: What follows the name of the step in drop reasons.
        argument: The argument of the class that has the value; by default named like the key.
    """

    use: str
    check: Callable[[Any, Mapping[str, Any]], str]
    example: str
    effect: str
    reasons: str
    argument: str = ""


SHIPPED = {
    "code": Shipped(
        "niels_cache_cleaning.code:CodeRules",
        _code,
        '{ code = ["generated", "long_line"], max_line_length = 500 }',
        "The [rules for source code](code.md#which-files-are-dropped) with these names, by the kept column `path` or the name of the file; "
        "`max_line_length`, `max_mean_line_length`, `min_alphanumeric_share`",
        "the rule, such as `long_line`",
        "rules",
    ),
    "filter": Shipped(
        "niels_cache_cleaning.steps:Filter",
        _filter,
        '{ filter = "too_short", min_words = 20 }',
        "One of the [filters of cleaning](cleaning.md#filters), by its reason, with the keys of `[cleaning]` that it uses",
        "the key of the limit, such as `min_words`, if the filter has limits",
    ),
    "languages": Shipped(
        "niels_cache_cleaning.steps:Languages",
        _languages,
        '{ languages = ["en", "de"] }',
        "Drops documents in other languages, and returns the columns `language` and `language_share`; `language_characters` as in "
        "`[cleaning]`",
        "`other_language`, `unknown_language`",
    ),
    "mask": Shipped(
        "niels_cache_cleaning.steps:Mask",
        _mask,
        '{ mask = ["email", "phone"] }',
        "[Masks personal data](cleaning.md#how-do-i-mask-personal-data-and-secrets) in text and title, and returns the number in the "
        "text as `masked`",
        "",
    ),
    "normalize": Shipped(
        "niels_cache_cleaning.steps:Normalize",
        _normalize,
        '{ normalize = ["entities", "blanks"] }',
        "The [normalizers of cleaning](cleaning.md#normalizers) with these names, in their order, until the text no longer changes",
        "",
    ),
    "profile": Shipped(
        "niels_cache_cleaning.profiles:Profile",
        _profile,
        '{ profile = "fineweb" }',
        "[Decides as datatrove's filters do](#profiles-of-other-projects); `splitter`",
        "datatrove's reason, such as `gopher_short_doc`",
    ),
    "score": Shipped(
        "niels_cache_cleaning.scores:FastText",
        _score,
        '{ score = "quality.bin", label = "__label__hq", keep = ["score"] }',
        "Returns the [probability of a label](#the-score-of-a-classifier) as `score`; `max_megabytes`",
        "",
        "model",
    ),
}


def expand(entry: Mapping[str, Any], fields: Collection[str]) -> Mapping[str, Any]:
    """Return an entry without `use` and `where` as one with `use`.

    Args:
        entry: The entry.
        fields: The keys that every entry may have.

    Raises:
        ValueError: If it names no shipped step, or if the step does not have these settings.
    """
    key = next((each for each in SHIPPED if each in entry), None)
    if key is None:
        near = (did_you_mean(each, SHIPPED) for each in entry if each not in fields)
        hint = next(filter(None, near), f"set use, where, or one of {', '.join(SHIPPED)}")
        raise ValueError(f"an entry of steps names no step; {hint}")
    row, value = SHIPPED[key], entry[key]
    own = {name: each for name, each in entry.items() if name in fields}
    settings = {name: each for name, each in entry.items() if name not in fields and name != key}
    if key == "score" and isinstance(value, Mapping):
        if "model" not in value:
            raise ValueError('score has no model; write score = { model = "quality.bin", label = "__label__hq" }')
        settings = {**{name: each for name, each in value.items() if name != "model"}, **settings}
        value = value["model"]
    return {"use": row.use, "name": row.check(value, settings), **own, row.argument or key: value, **settings}


def settings_of(keys: Mapping[str, Any]) -> CleaningSettings:
    """Return settings of [cleaning] with these keys."""
    return CleaningSettings.model_validate(dict(keys))


def meaning_of(reason: str) -> str:
    """Return what `step:NAME:REASON` means if a shipped step has this name and reason, or else an empty string."""
    _, name, detail, *_ = *reason.split(":"), "", ""
    if name in PROFILES and detail:
        from niels_cache_cleaning.profiles import MEANINGS

        return MEANINGS.get(detail, "")
    if name == "code" and detail:
        from niels_cache_cleaning import code

        return code.MEANINGS.get(detail, "")
    if name in REASONS:
        from niels_cache_assets.base.reasons import explain

        return explain(name)
    if name == "languages":
        return {"other_language": "the text is in another language", "unknown_language": "the language cannot be identified"}.get(
            detail, ""
        )
    return ""


def _choose(key: str, value: Any, choices: Iterable[str]) -> None:
    if value not in choices:
        choices = [*choices]
        raise ValueError(f"{key} is {value!r}; {did_you_mean(value, choices, 'choose from ' + ', '.join(choices))}")


def _each(key: str, value: Any, choices: Iterable[str]) -> None:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{key} is {value!r}; write a list of {', '.join(choices)}")
    for each in value:
        _choose(key, each, choices)


def _only(step: str, settings: Iterable[str], keys: Collection[str]) -> None:
    for key in settings:
        if key not in keys:
            raise ValueError(f"{step} has no key {key!r}; {did_you_mean(key, keys, 'it has ' + (', '.join(keys) or 'none'))}")


def _cleaning(keys: Mapping[str, Any]) -> None:
    """Refuse values that [cleaning] would refuse."""
    try:
        settings_of(keys)
    except ValidationError as error:
        [first, *_] = error.errors()
        where = "".join(f"{each}: " for each in first["loc"][:1])
        raise ValueError(f"{where}{first['msg'].removeprefix('Value error, ')}") from None
