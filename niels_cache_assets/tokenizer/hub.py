"""The tokenizers of models on the Hugging Face hub, by name.

Only files that are read as data are fetched, and no code of a repository is run. The hub's library keeps them in its cache on this machine,
so a revision that was fetched once costs no request.
"""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.hub.errors import hub_errors
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import CHAT_TEMPLATE_NAME, TOKENIZER_MODEL_NAMES

_MODELS = (TOKENIZER_MODEL_NAMES["tokenizer.json"], "tokenizer.model", "tekken.json")  # the first that exists is the tokenizer
_FILES = [*_MODELS, "tokenizer_config.json", "special_tokens_map.json", CHAT_TEMPLATE_NAME]


@lru_cache
def fetch_model(name: str, revision: str | None) -> Path:
    """Return the tokenizer file of a model, and download it and the files beside it if this machine does not have them.

    The name of its folder is the commit.

    Args:
        name: OWNER/NAME on the hub.
        revision: A commit, tag or branch. None: main, as it was when it was last fetched.

    Raises:
        SourceUnavailableError: If the files are not on this machine, and the hub cannot be reached now.
        NielsCacheError: If there is no such model, revision or tokenizer, or the hub refuses access.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils import disable_progress_bars, logging

    from niels_cache_assets.sources.net.transport import install

    install()
    disable_progress_bars()
    logging.set_verbosity_error()
    without_hub = f"fetch its files where it can be reached: hf download {name} --revision {revision or 'main'} {' '.join(_FILES)}"

    def download(revision: str | None, *, offline: bool = False) -> Path:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_FILES, local_files_only=offline, max_workers=1))

    folder = None
    with hub_errors(name, revision, repo_type="model", without_hub=without_hub):
        with suppress(LocalEntryNotFoundError):  # which also stands for files that are on the list of the hub, and not here
            folder = download(revision, offline=True)
        if folder is None:
            folder = download(revision)
        elif not is_complete(folder):
            with suppress(SourceUnavailableError):
                folder = download(folder.name)
    found = [path for file in _MODELS if (path := folder / file).is_file()]
    if not found:
        problem = f"has no {' and no '.join(_MODELS)}; nothing else is read, and code of the hub is never run"
        raise NielsCacheError(f"{name}: {problem}; name another model, or a file")
    return found[0]


def is_complete(folder: Path) -> bool:
    """Return whether this machine has the hub's list of the files of a commit, against which the hub's library checks the folder."""
    return (folder.parents[1] / "trees" / f"{folder.name}.json").is_file()
