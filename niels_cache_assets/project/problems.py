"""Error messages for names that are not configured and for wrong values in a table, each of which says what to type.

All such messages are written here, whether the value comes from niels_cache.toml, --set, a flag or a run configuration. Messages of our own
validators are used unchanged.
"""

import difflib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.base.defaults import CONFIG_NAME
from niels_cache_assets.base.toml import parse_toml, typed_toml
from niels_cache_assets.project.shipped import catalog
from niels_cache_runtime.errors import NielsCacheError, did_you_mean
from niels_cache_runtime.format.layout import FAMILIES, Family

_EXAMPLES = (1_000, 1, 0.5, "...", ["..."], {"NAME": 0.5}, {"NAME": "..."}, [{"files": ["..."]}])
_LONGEST_VALUE = 200
_BOUNDS = {  # by pydantic's error type
    "greater_than": (annotated_types.Gt, "gt", "more than {}"),
    "greater_than_equal": (annotated_types.Ge, "ge", "at least {}"),
    "less_than": (annotated_types.Lt, "lt", "less than {}"),
    "less_than_equal": (annotated_types.Le, "le", "at most {}"),
    "multiple_of": (annotated_types.MultipleOf, "multiple_of", "a multiple of {}"),
}

FormatSetting = Callable[[str, str], str]


def raise_not_configured(
    where: str,
    problem: str,
    given: str,
    choices: Iterable[str],
    *,
    names: Iterable[str],
    origin: str,
    elsewhere: str = "",
    families: Iterable[Family] = FAMILIES,
) -> NoReturn:
    """Raise an error for a name that is not configured, and say if the catalog has it.

    Args:
        where: What the message begins with: the place that the name comes from.
        problem: What is wrong with the name, such as "no data set".
        given: The name.
        choices: The names that are valid here.
        names: All configured names, valid here or not.
        origin: The file or profile that names the data sets.
        elsewhere: Text that follows a list of the choices; by default none.
        families: The families whose data sets are valid here; by default all.

    Raises:
        NielsCacheError: Always.
    """
    choices, names = list(choices), set(names)
    addable = [name for name, (family, _) in catalog().items() if family in families and name not in names]
    near = [given] if given in addable else difflib.get_close_matches(given, addable, n=1)
    if given in names or not near or difflib.get_close_matches(given, choices, n=1):
        raise_unknown_choice(where, problem, given, choices, elsewhere)
    shown = "it" if near[0] == given else repr(near[0])
    add = f"add [{catalog()[near[0]][0]}.{near[0]}] to {CONFIG_NAME if origin.startswith('profile ') else origin}"
    raise NielsCacheError(f"{where}: {problem} {given!r}; {shown} is in the catalog, and {origin} does not name it: {add}")


def explain_problems(
    error: ValidationError, model: type[BaseModel], table: Mapping[str, Any], *, spell: FormatSetting = "{} = {}".format
) -> list[str]:
    """Return a clause for each problem of a table, which continues a message that names the table.

    If there are unknown keys, only unknown keys are reported.

    Args:
        error: What pydantic reported for the table.
        model: The schema of the table.
        table: The table.
        spell: Returns what the user must type where the table comes from, given a key and its value as TOML; by default a line of a file.

    Returns:
        The clauses, each of which begins with a space or a colon.
    """
    problems = error.errors()
    problems = [each for each in problems if each["type"] == "extra_forbidden"] or problems
    clauses: dict[str, str] = {}  # for a union, pydantic reports an error for each type of the union
    for each in problems:
        path = _path(each, model)
        clauses.setdefault(".".join(map(str, path)), _explain(each, path, model, table, spell))
    return list(clauses.values())


def _path(problem: ErrorDetails, model: type[BaseModel]) -> tuple[int | str, ...]:
    """Return the keys and item numbers in the location of a problem, without the names of types that pydantic adds for a union."""
    if not problem["loc"]:
        return ()
    first, *rest = problem["loc"]
    field = model.model_fields.get(str(first))
    if field is None or len(_members(field.annotation)) > 1:
        return (first,)
    return (first, *rest)


def _explain(
    problem: ErrorDetails, path: tuple[int | str, ...], model: type[BaseModel], table: Mapping[str, Any], spell: FormatSetting
) -> str:
    key = ".".join(map(str, path))
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(key, model.model_fields, f"known keys: {', '.join(model.model_fields)}")
        return f" has an unknown key {key!r}; {hint}"
    field = model.model_fields.get(str(path[0])) if path else None
    if problem["type"] == "missing" and field is not None:
        example = _example(field, model)
        return f" needs the key {key!r}" + (f"; add {spell(key, example)}" if example else "")
    message = problem["msg"].removeprefix("Value error, ")
    message = f"{message[0].lower()}{message[1:]}"
    if field is None:
        return f": {message}"
    is_secret = not field.repr  # `repr=False` marks a value that may be a secret: it is not shown, and not guessed
    value = table.get(str(path[0]), problem["input"])
    shown = f" {key}" if is_secret else f" {key} = {_format_value(problem['input'])}"
    if problem["type"] == "value_error":
        return f"{shown}: {message}"
    requirement = _requirement(problem, _inner(field.annotation, path[1:]), field) or message
    guess = None if is_secret else _guess_value(path, value, problem["input"], field, model)
    if guess is not None:
        return f"{shown}: {requirement}; write {spell(str(path[0]), guess)}"
    example = _example(field, model)
    return f"{shown}: {requirement}" + (f"; write, for example, {spell(str(path[0]), example)}" if example else "")


def _requirement(problem: ErrorDetails, annotation: Any, field: FieldInfo) -> str | None:
    """Return a text such as `must be a list of texts`, or None for a kind of error that no field of ours has."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in _BOUNDS:
        _, name, words = _BOUNDS[kind]
        return f"must be {_range(annotation, field) or words.format(_number(context[name]))}"
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    if kind == "finite_number":
        return "must be a finite number"
    if kind == "int_from_float" or kind.rpartition("_")[2] in ("type", "parsing", "size", "error") or kind == "none_required":
        plain = isinstance(problem["input"], str) and {*_members(annotation)} <= {int, float, bool}
        return f"must be {_describe_type(annotation)}{', without quotation marks' if plain else ''}"
    return None


def _describe_type(annotation: Any) -> str:
    """Return the name of one value of this type, such as `a whole number`."""
    names = [_describe_one_type(member) for member in _members(annotation)]
    return " or ".join(dict.fromkeys(names)) or "left out"


def _describe_one_type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _either(arguments)
    if origin in (list, tuple, set, frozenset) or annotation in (list, tuple):
        return f"a list of {_plural(arguments[0])}" if arguments else "a list"
    if origin is dict or annotation is dict:
        return f"a table of {_plural(arguments[1])} by name" if arguments and arguments[1] is not Any else "a table"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a table"
    return {
        str: "text in quotation marks",
        SecretStr: "text in quotation marks",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
    }.get(annotation, f"of type {getattr(annotation, '__name__', annotation)}")


def _plural(annotation: Any) -> str:
    member = next(iter(_members(annotation)), Any)
    if get_origin(member) is Literal:
        return f"texts, each {_either(get_args(member))}"
    if isinstance(member, type) and issubclass(member, BaseModel):
        return "tables"
    return {str: "texts", int: "whole numbers", float: "numbers", bool: "true and false"}.get(member, "values")


def _either(choices: Sequence[object]) -> str:
    quoted = [typed_toml(choice) for choice in choices]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _range(annotation: Any, field: FieldInfo) -> str:
    """Return all bounds of the value in one phrase: `at least 0 and less than 1`."""
    metadata = [*_metadata(annotation), *_metadata(field.annotation), *field.metadata]
    bounds = []
    for kind, name, words in _BOUNDS.values():
        bounds += [words.format(_number(getattr(each, name))) for each in metadata if isinstance(each, kind)]
    return " and ".join(dict.fromkeys(bounds))


def _number(value: Any) -> str:
    return f"{value:_}" if isinstance(value, int) else f"{value:g}"


def _metadata(annotation: Any) -> Sequence[Any]:
    """Return the metadata of an annotated type, or of the annotated member of a union."""
    if get_origin(annotation) is Annotated:
        return annotation.__metadata__
    if get_origin(annotation) in (Union, types.UnionType):
        return [each for member in get_args(annotation) for each in _metadata(member)]
    return ()


def _members(annotation: Any) -> list[Any]:
    """Return the types that the annotation allows, without None and without the metadata of the types."""
    if get_origin(annotation) is Annotated:
        return _members(annotation.__origin__)
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for each in get_args(annotation) for member in _members(each)]
    return [] if annotation in (None, type(None)) else [annotation]


def _inner(annotation: Any, path: Sequence[int | str]) -> Any:
    """Return the type of the item of a list, or of the value of a table, that `path` leads to."""
    for _ in path:
        member = next(iter(_members(annotation)), Any)
        arguments = get_args(member)
        annotation = Any if not arguments else arguments[1] if get_origin(member) is dict and len(arguments) > 1 else arguments[0]
    return annotation


def _guess_value(path: Sequence[int | str], value: Any, given: Any, field: FieldInfo, model: type[BaseModel]) -> str | None:
    """Return the value that the user probably meant for the key, as TOML, or None if no guess is possible."""
    for candidate in (*_other_types(given), *_allowed_near(given, _inner(field.annotation, path[1:]))):
        replaced = _replaced(value, path[1:], candidate)
        if _accepts(field, model, replaced):
            typed = typed_toml(replaced)
            return typed if len(typed) <= _LONGEST_VALUE else None
    return None


def _other_types(given: Any) -> Iterator[Any]:
    """Yield the given value in other types."""
    if isinstance(given, str):
        with suppress(ValueError):
            yield parse_toml(f"value = {given.strip()}")["value"]
        with suppress(ValueError):
            yield TypeAdapter(bool).validate_python(given.strip())
        if "," in given:
            yield [part.strip() for part in given.split(",") if part.strip()]
    if isinstance(given, int | float) and not isinstance(given, bool):
        if given in (0, 1):
            yield bool(given)
        if given == given and abs(given) < 1 << 62 and given == int(given):
            yield int(given)
        yield float(given)
    if isinstance(given, list | tuple) and len(given) == 1:
        yield given[0]
    if not isinstance(given, str | list | dict):
        yield typed_toml(given)
    yield [given]


def _allowed_near(given: Any, annotation: Any) -> list[Any]:
    """Return the allowed text that is nearest to the given value, alone and in a list, or nothing if no text is near."""
    choices = _choices(annotation)
    near = difflib.get_close_matches(str(given), list(map(str, choices)), n=1)
    return [near[0], [near[0]]] if near else []


def _replaced(value: Any, path: Sequence[int | str], candidate: Any) -> Any:
    """Return `value` with the candidate at `path`."""
    if not path:
        return candidate
    first, *rest = path
    if isinstance(value, Mapping):
        return {**value, first: _replaced(value.get(str(first)), rest, candidate)}
    if isinstance(value, list | tuple) and isinstance(first, int) and first < len(value):
        return [*value[:first], _replaced(value[first], rest, candidate), *value[first + 1 :]]
    return candidate


def _accepts(field: FieldInfo, model: type[BaseModel], value: Any) -> bool:
    adapter = TypeAdapter(field.rebuild_annotation(), config={"strict": bool(model.model_config.get("strict"))})
    try:
        adapter.validate_python(value)
    except (ValidationError, ValueError, TypeError):
        return False
    return True


def _example(field: FieldInfo, model: type[BaseModel]) -> str | None:
    """Return the default, the example of the field, or the first of a few values that the field accepts."""
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    metadata = [*_metadata(field.annotation), *field.metadata]
    least = [each.ge for each in metadata if isinstance(each, annotated_types.Ge)]
    items = [get_args(member)[0] for member in _members(field.annotation) if get_args(member)]
    choices = [*_choices(field.annotation), *([choice] for item in items for choice in _choices(item))]
    if isinstance(default, tuple | list):
        default = list(default) or None
    found = (default, *(field.examples or ()), *choices, True, *least)
    for value in (*found, *_EXAMPLES):
        if value is not None and _accepts(field, model, value):
            return typed_toml(value)
    return None


def _choices(annotation: Any) -> list[Any]:
    return [choice for member in _members(annotation) if get_origin(member) is Literal for choice in get_args(member)]


def _format_value(value: Any) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else typed_toml(value)  # without underscores in numbers
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
