"""The code of a user that a configuration names: loading it, and what identifies it in a fingerprint.

The identity has the name, the settings, and a hash of the syntax trees of the module and of all modules of its own package that it imports,
directly or not. So comments and formatting do not count, and other packages do not. Code may set a `version`, and `identity = "version"` to
be identified by it alone. Modules that are imported by a computed name are not found; `depends_on` can name their files. Loading executes
the module. Hashing takes 17 ms for a thousand lines, once in a process unless a file changes.
"""

import ast
import hashlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import entry_points
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path
from typing import Any

from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.base.fingerprint import Identity
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import sha256_file

_DECIDED = {"kind", "ctx"}  # fields of syntax trees without a meaning of their own
_INSTALLED = {"site-packages", "dist-packages"}  # folders in which modules side by side do not belong together


def load_code(name: str, *, group: str, folder: str, where: str) -> Callable[..., Any]:
    """Import the function or class that a configuration names.

    Args:
        name: `module:name`, or the name of an entry point.
        group: The group of entry points.
        folder: The folder of the configuration. Modules in it are found after all others.
        where: What messages begin with: the file and the key.

    Raises:
        NielsCacheError: If it does not exist, cannot be imported, or is not a function or class at the top of a module.
    """
    path = name
    if ":" not in name:
        found = {each.name: each.value for each in entry_points(group=group)}
        if name not in found:
            raise_unknown_choice(where, "no `module:name`, and no entry point", name, found, f" (of the group {group})")
        path = found[name]
    module, _, attribute = path.partition(":")
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        target: Any = import_module(module)
    except Exception as error:
        is_missing = isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name))
        advice = f"put it into {folder}, or install it" if is_missing else "the module must be importable"
        raise NielsCacheError(f"{where}: cannot import {module!r} ({type(error).__name__}: {error}); {advice}") from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise_unknown_choice(where, f"{module} has no", attribute, [each for each in vars(target) if callable(vars(target)[each])])
        target = getattr(target, part)
    own, qualified = getattr(target, "__module__", None), str(getattr(target, "__qualname__", "<"))
    if own == "__main__":
        raise NielsCacheError(f"{where}: {path!r} is in the main script, which workers cannot import; move it into a module")
    if "<" in qualified or not callable(target) or own is None:  # <lambda>, <locals>
        raise NielsCacheError(
            f"{where}: {path!r} is not a function or class at the top of a module (no lambda, closure or object); define one"
        )
    return target


def describe_error(error: BaseException, caller: str) -> str:
    """Return an error of a user's code, and the last line of the code that led to it, in one line. `caller` is our file that called it."""
    if isinstance(error, NielsCacheError):
        return str(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != caller]
    own = [frame for frame in frames if Path(frame.filename).parent == Path(frames[0].filename).parent]  # not of libraries
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}{where}"


def code_identity(target: Callable[..., Any], settings: Mapping[str, Any], files: Sequence[str | Path] = ()) -> Identity:
    """Return what identifies a function or class in a fingerprint, as JSON values.

    Args:
        target: The function or class, with the optional attributes `version`, `identity` and `depends_on` (files, relative to its module).
        settings: The settings that it gets.
        files: Further files whose content counts.

    Raises:
        NielsCacheError: If a file cannot be read, if `identity = "version"` is set without `version`, or if `depends_on` is no list.
    """
    name = f"{target.__module__}:{target.__qualname__}"
    version, kind = getattr(target, "version", None), getattr(target, "identity", "code")
    if callable(kind):  # a method of a class for more than this
        kind = "code"
    if kind not in ("code", "version") or (kind == "version" and version is None):
        raise NielsCacheError(f"{name}: identity is {kind!r}; set it to 'code', or to 'version' together with a version")
    own_files = getattr(target, "depends_on", ())
    if isinstance(own_files, str):
        raise NielsCacheError(f"{name}: depends_on is {own_files!r}; give a list of files: [{own_files!r}]")
    folder = Path(sys.modules[target.__module__].__file__ or ".").parent
    paths = {folder / each: str(each) for each in own_files} | {Path(each): Path(each).name for each in files}
    every = dict[str, str]()
    for path, key in paths.items():  # several may have the same name
        every[key] = every.get(key, "") + _file_sha256(path, name)
    return {
        "use": name,
        "settings": dict(settings),
        **({} if version is None else {"version": str(version)}),
        **({"code": code_sha256(target.__module__)} if kind == "code" else {}),
        **({"files": every} if every else {}),
    }


def code_sha256(module: str) -> str:
    """Return the sha256 over the syntax trees of an imported module and of the modules of its own package that it imports.

    A module that is in no package has the modules in its folder as its package, unless that is a folder of installed packages.

    Raises:
        NielsCacheError: If a module has no file, or one that is not Python.
    """
    top = sys.modules[module.partition(".")[0]]
    file = getattr(top, "__file__", None)
    roots = [Path(each).parent for each in getattr(top, "__path__", ())] or ([Path(file).parent] if file else [])
    is_alone = hasattr(top, "__path__") or top.__name__ in sys.stdlib_module_names or any(root.name in _INSTALLED for root in roots)
    digests, seen, waiting = dict[str, str](), set[str](), [module]
    while waiting:
        for name in accumulate(waiting.pop().split("."), "{}.{}".format):  # a, a.b, a.b.c: each of them is executed
            is_new = name not in seen and (not is_alone or name.partition(".")[0] == top.__name__)
            seen.add(name)
            if is_new and (path := _module_file(name, roots)) is not None:
                stat = path.stat()
                digests[name], imported = _read_module(name, path, stat.st_mtime_ns, stat.st_size)
                waiting += imported
    if module not in digests:
        raise NielsCacheError(f'{module}: has no source file to identify it by; set version, and identity = "version"')
    return hashlib.sha256("".join(f"{name} {digests[name]}\n" for name in sorted(digests)).encode()).hexdigest()


def _module_file(name: str, roots: Sequence[Path]) -> Path | None:
    stems = [root.joinpath(*name.split(".")) for root in roots]
    endings = ("/__init__.py", ".py", *EXTENSION_SUFFIXES)
    return next((path for stem in stems for ending in endings if (path := Path(f"{stem}{ending}")).is_file()), None)


@lru_cache(maxsize=1024)
def _read_module(name: str, path: Path, _changed: int, _size: int) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a module, and the names of what it imports, which may be modules or values in them."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return hashlib.sha256(content).hexdigest(), ()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imports, imported = list[ast.Import | ast.ImportFrom](), list[str]()
    try:
        digest = hashlib.sha256("\n".join(_tokens(ast.parse(content), imports)).encode("utf-8", "backslashreplace")).hexdigest()
        for node in imports:
            origin = resolve_name("." * node.level + (node.module or ""), package) if isinstance(node, ast.ImportFrom) else ""
            names = [alias.name for alias in node.names]
            imported += [origin, *(f"{origin}.{each}" for each in names)] if origin else names
    except (SyntaxError, ValueError, ImportError) as error:
        raise NielsCacheError(f"{path}: is not valid Python ({error}); correct it") from error
    return digest, tuple(imported)


def _tokens(tree: ast.AST, imports: list[ast.Import | ast.ImportFrom]) -> Iterator[str]:
    """Yield a syntax tree as text, and add its imports to `imports`.

    What differs between versions of Python is left out: fields that are empty, and empty constants in f-strings. So is what other nodes
    decide.
    """
    stack: list[Any] = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, ast.AST):
            if isinstance(item, ast.Import | ast.ImportFrom):
                imports.append(item)
            elif isinstance(item, ast.JoinedStr):
                item = ast.JoinedStr([each for each in item.values if getattr(each, "value", None) != ""])
            yield type(item).__name__
            for key in item._fields:
                value = getattr(item, key, None)
                if value is not None and value != [] and key not in _DECIDED:
                    yield key
                    stack.append(value)
        elif isinstance(item, list):
            yield str(len(item))
            stack += item
        else:
            yield repr(item)


def _file_sha256(path: Path, name: str) -> str:
    try:
        stat = path.stat()
    except OSError as error:
        raise NielsCacheError(f"{name}: depends_on: {path}: {error.strerror or error}; correct the path") from error
    return _content_sha256(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1024)  # a model may have gigabytes, and each look at a data set asks for its hash
def _content_sha256(path: Path, _changed: int, _size: int) -> str:
    return sha256_file(path)
