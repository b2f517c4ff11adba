"""Error messages for names that are not configured and for wrong values in a table, each of which says what to type.

All such messages are written here, whether the value comes from niels_cache.toml, --set, a flag or a run configuration. Messages of our own
validators are used unchanged. What a key accepts is read from the JSON Schema of its table.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails

from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.base.defaults import CONFIG_NAME
from niels_cache_assets.base.toml import parse_toml, typed_toml
from niels_cache_assets.project.shipped import catalog
from niels_cache_runtime.errors import NielsCacheError, did_you_mean
from niels_cache_runtime.format.layout import FAMILIES, Family

_EXAMPLES = (1_000, 1, 0.5, "...", ["..."], {"NAME": 0.5}, {"NAME": "..."}, [{"files": ["..."]}])
_LONGEST_VALUE = 200
_BOUNDS = {  # by keyword of JSON Schema
    "exclusiveMinimum": "more than {}",
    "minimum": "at least {}",
    "exclusiveMaximum": "less than {}",
    "maximum": "at most {}",
    "multipleOf": "a multiple of {}",
}
_TYPES = {  # by type in JSON Schema: one value, and several
    "string": ("text in quotation marks", "texts"),
    "integer": ("a whole number", "whole numbers"),
    "number": ("a number", "numbers"),
    "boolean": ("true or false", "true and false"),
    "date": ("a date", "dates"),  # a format
    None: ("a table", "tables"),  # a reference to the schema of a table
}

FormatSetting = Callable[[str, str], str]
Schema = Mapping[str, Any]  # JSON Schema of a value


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
        path = each["loc"] or ("",)
        if len(_members(_schema(model, path[:1]))) > 1:
            path = path[:1]  # pydantic adds the name of a type
        clauses.setdefault(".".join(map(str, path)), _explain(each, path, model, table, spell))
    return list(clauses.values())


def _explain(
    problem: ErrorDetails, path: tuple[int | str, ...], model: type[BaseModel], table: Mapping[str, Any], spell: FormatSetting
) -> str:
    key = ".".join(map(str, path))
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(key, model.model_fields, f"known keys: {', '.join(model.model_fields)}")
        return f" has an unknown key {key!r}; {hint}"
    field, schema = model.model_fields.get(str(path[0])), _schema(model, path[:1])
    if problem["type"] == "missing" and field is not None:
        example = _example(field, model, schema)
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
    inner = _schema(model, path)
    requirement = _requirement(problem, inner) or message
    guess = None if is_secret else _guess_value(path, value, problem["input"], field, model, inner)
    if guess is not None:
        return f"{shown}: {requirement}; write {spell(str(path[0]), guess)}"
    example = _example(field, model, schema)
    return f"{shown}: {requirement}" + (f"; write, for example, {spell(str(path[0]), example)}" if example else "")


def _requirement(problem: ErrorDetails, schema: Schema) -> str | None:
    """Return a text such as `must be a list of texts`, or None for a kind of error that no field of ours has."""
    kind = problem["type"]
    if kind == "multiple_of" or kind.startswith(("greater_than", "less_than")):
        bounds = [words.format(_number(each[key])) for each in _members(schema) for key, words in _BOUNDS.items() if key in each]
        return f"must be {' and '.join(bounds)}"
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    if kind == "finite_number":
        return "must be a finite number"
    if kind == "int_from_float" or kind.rpartition("_")[2] in ("type", "parsing", "size", "error") or kind == "none_required":
        names = dict.fromkeys(map(_describe_type, _members(schema)))
        types = {each.get("type") for each in _members(schema)}
        is_quoted = isinstance(problem["input"], str) and types <= _TYPES.keys() - {"string", None}
        return f"must be {' or '.join(names) or 'left out'}{', without quotation marks' if is_quoted else ''}"
    return None


def _describe_type(schema: Schema) -> str:
    """Return the name of one value of this type, such as `a whole number`."""
    items, values = schema.get("items"), schema.get("additionalProperties")
    if choices := _choices(schema):
        return _either(choices)
    if schema.get("type") == "array":
        return f"a list of {_plural(items)}" if items else "a list"
    if schema.get("type") == "object":
        return f"a table of {_plural(values)} by name" if isinstance(values, Mapping) else "a table"
    return _TYPES.get(schema.get("format", ""), _TYPES[schema.get("type")])[0]


def _plural(schema: Schema) -> str:
    member = _members(schema)[0]
    if choices := _choices(member):
        return f"texts, each {_either(choices)}"
    return _TYPES.get(member.get("type"), ("", "values"))[1]


def _either(choices: Sequence[object]) -> str:
    quoted = [typed_toml(choice) for choice in choices]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _number(value: Any) -> str:
    return f"{value:_}" if isinstance(value, int) else f"{value:g}"


def _members(schema: Schema) -> list[Schema]:
    """Return the schemas of the types that are allowed, without null."""
    return [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]


class _AnySchema(GenerateJsonSchema):
    """The generator of schemas that gives an empty one for a type without JSON Schema, which a plug-in may have."""

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Warn of nothing, such as a default that JSON cannot hold."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


@cache
def _whole_schema(model: type[BaseModel]) -> Schema:
    return model.model_json_schema(ref_template="{model}", schema_generator=_AnySchema)


def _schema(model: type[BaseModel], path: Sequence[int | str]) -> Schema:
    """Return the schema of the value in a table that `path` leads to. It is empty for a value of any type, and for an unknown key."""
    schema = whole = _whole_schema(model)
    for step in path:
        member = _members(schema)[0]
        member = whole.get("$defs", {}).get(member.get("$ref"), member)
        values = member.get("properties", {}).get(step, member.get("items", member.get("additionalProperties")))
        schema = values if isinstance(values, Mapping) else {}
    return schema


def _guess_value(path: Sequence[int | str], value: Any, given: Any, field: FieldInfo, model: type[BaseModel], schema: Schema) -> str | None:
    """Return the value that the user probably meant for the key, as TOML, or None if no guess is possible."""
    for candidate in (*_other_types(given), *_allowed_near(given, schema)):
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


def _allowed_near(given: Any, schema: Schema) -> list[Any]:
    """Return the allowed text that is nearest to the given value, alone and in a list, or nothing if no text is near."""
    near = difflib.get_close_matches(str(given), list(map(str, _choices(schema))), n=1)
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


def _example(field: FieldInfo, model: type[BaseModel], schema: Schema) -> str | None:
    """Return the default, the example of the field, or the first of a few values that the field accepts."""
    least = [each["minimum"] for each in _members(schema) if "minimum" in each]
    items = [choice for each in _members(schema) for choice in _choices(each.get("items", {}))]
    found = (schema.get("default"), *schema.get("examples", ()), *_choices(schema), *([choice] for choice in items), True, *least)
    for value in (*found, *_EXAMPLES):
        if value not in (None, []) and _accepts(field, model, value):
            return typed_toml(value)
    return None


def _choices(schema: Schema) -> list[Any]:
    return [choice for each in _members(schema) for choice in each.get("enum", [each["const"]] if "const" in each else [])]


def _format_value(value: Any) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else typed_toml(value)  # without underscores in numbers
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
