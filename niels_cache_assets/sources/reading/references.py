"""The entries of `decontaminate_against`: other data sets, whose val stays out of train, and JSON Lines files of evaluation questions.

The name of a data set has no slash, dot or star. Everything else is a glob of files, relative to the folder of the configuration.
`streaming/decontaminate.py` compares documents with these texts.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.base.config_path import is_name
from niels_cache_assets.base.documents import Document
from niels_cache_assets.sources.reading.compressed import endings_with_compressions
from niels_cache_assets.sources.reading.files import SourceFile, files_digest, find_files
from niels_cache_assets.sources.reading.rows import first_rows, json_rows
from niels_cache_assets.sources.text_column import ROWS, choose_text_field, chosen_note, errors_without_samples
from niels_cache_assets.sources.types import PretrainSource, Siblings, Source, growth_identity
from niels_cache_runtime.errors import NielsCacheError

ENDINGS = endings_with_compressions(".jsonl", ".ndjson", ".json")
QUESTION_FIELDS = ("text", "question", "prompt", "problem", "query", "instruction")
CODE_FIELDS = ("canonical_solution", "solution", "code")  # of HumanEval, MBPP and data sets like them


def questions(pattern: str, log: Callable[[str], None] = lambda message: None, *, with_code: bool = False) -> Iterator[Document]:
    """Yield the texts of the files that match a glob, in order, without ids: for each row, every string in one of QUESTION_FIELDS.

    If the first rows have none of these fields, the rule of `text_column.py` chooses one field for all files.

    Args:
        pattern: The glob.
        log: Receives the name of an automatically chosen field.
        with_code: Whether strings in CODE_FIELDS are texts too, and each text without its comments.

    Raises:
        NielsCacheError: If no file matches, if a row has none of the fields, or if a file is not JSON Lines.
    """
    files = find_files([pattern], ENDINGS)
    fields = _question_fields(files, log, (*QUESTION_FIELDS, *CODE_FIELDS) if with_code else QUESTION_FIELDS)
    for file in files:
        for row, values in json_rows(file):
            texts = [values[field] for field in fields if isinstance(values.get(field), str)]
            if not texts:
                raise NielsCacheError(
                    f"{file.name}: line {row + 1} has no string in any of the fields {', '.join(fields)}, so its question is not "
                    "known; rename the field that has the question"
                )
            if with_code:
                texts = [*dict.fromkeys([*texts, *filter(str.strip, map(load_beside("cleaning", "code").without_comments, texts))])]
            yield from (Document(text, file=file.name, row=row) for text in texts)


def _question_fields(files: Iterable[SourceFile], log: Callable[[str], None], known: Sequence[str]) -> Sequence[str]:
    for file in files:
        head = [values for _, values in first_rows(json_rows(file), ROWS)]
        if any(isinstance(values.get(field), str) for values in head for field in known):
            return known
        if head:
            try:
                with errors_without_samples():
                    field = choose_text_field(head, file.name, key=None)
            except NielsCacheError as error:
                raise NielsCacheError(f"{error}; questions are read from the fields {', '.join(known)}") from error
            log(f"{file.name}: {chosen_note(field)}")
            return (field,)
    return known


def named_data_sets(references: Sequence[str], siblings: Siblings) -> dict[str, PretrainSource]:
    """Return the data sets that `decontaminate_against` names.

    Raises:
        NielsCacheError: If a data set is unknown, is a mixture, or has added files without parts.
    """
    return {name: data_set_with_val("decontaminate_against", name, siblings, "remove the name") for name in filter(is_name, references)}


def data_set_with_val(key: str, name: str, siblings: Siblings, otherwise: str) -> PretrainSource:
    """Return a data set that the key of another one names.

    Args:
        key: The key, for errors.
        name: The name of the data set.
        siblings: All pretrain tables by name.
        otherwise: What to do if its val cannot be found, for the error.

    Raises:
        NielsCacheError: If the data set is unknown, is a mixture, or has added files without parts.
    """
    if name not in siblings:
        raise_unknown_choice(key, "no data set", name, siblings)
    source = siblings[name]
    if getattr(source, "members", None):
        raise NielsCacheError(f"{key}: {name!r} is a mixture itself; name its members instead")
    if source.added and source.parts == 1:
        raise NielsCacheError(
            f"{key}: {name!r} has grown by added files, whose val cannot be found without parts; set parts above 1, or {otherwise}"
        )
    return source


def revision_of_val(source: PretrainSource, siblings: Siblings) -> str | None:
    """Return the revision at which the val of another data set is read: that of its own next build.

    Remote files of a data set in parts are listed only once, so the revision of its plan is used. Errors of `revision` are passed on.
    """
    frozen = None if source.plan is None else source.plan.frozen_revision()
    return source.revision(siblings) if frozen is None else frozen


def revision_with_references(source: Source, own: str | None, siblings: Siblings) -> str | None:
    """Return the revision that a build of this table depends on.

    With `decontaminate_against`, it is a digest of `own` and of everything that the key names: the content of the files, and the revisions
    and settings of the data sets. Otherwise it is `own`. Errors of `revision` are passed on.

    Args:
        source: The table.
        own: The revision of the source, or of its corpus.
        siblings: All pretrain tables by name.
    """
    references = _references_of(source)
    return _digest(references, own, siblings) if references else own


def own_revision(source: Source, ask: Callable[[], str | None], siblings: Siblings, revision: str | None) -> str | None:
    """Return the revision of the source alone.

    Args:
        source: The table.
        ask: Returns the current revision of the source.
        siblings: All pretrain tables by name.
        revision: The value of `revision_with_references` for this build.

    Raises:
        NielsCacheError: If upstream has changed since `revision` was computed.
    """
    references = _references_of(source)
    if not references:
        return revision
    own = ask()
    if revision is not None and _digest(references, own, siblings) != revision:
        raise NielsCacheError("the source, or what decontaminate_against names, changed while the build started; run it again")
    return own


def _references_of(source: Source) -> tuple[str, ...]:
    return getattr(source, "decontaminate_against", ())


def _digest(references: Sequence[str], own: str | None, siblings: Siblings) -> str:
    digest = hashlib.sha256(f"{own}\n".encode())
    for name, other in named_data_sets(references, siblings).items():
        revision = f"{revision_of_val(other, siblings)}{growth_identity(other.added)}"
        digest.update(f"data set\0{name}\0{other.identity()}\0{revision}\n".encode())
    for pattern in references:
        if not is_name(pattern):
            digest.update(f"files\0{files_digest(find_files([pattern], ENDINGS))}\n".encode())
    return f"sha256:{digest.hexdigest()}"
