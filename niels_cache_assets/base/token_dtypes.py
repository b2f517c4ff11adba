"""The choice of the dtype in which a cache stores its tokens."""

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPE_NAME, TOKEN_DTYPES, token_dtype_name


def choose_token_dtype(vocab_size: int, requested: str | None) -> str:
    """Return the name of the dtype of a cache's tokens: `requested`, or the narrowest one that holds every id below `vocab_size`.

    Raises:
        NielsCacheError: If the dtype is unknown, or too narrow for the vocabulary.
    """
    narrowest = token_dtype_name(vocab_size)
    if requested is None:
        return narrowest
    if requested not in TOKEN_DTYPES:
        raise NielsCacheError(f"token_dtype is {requested!r:.80}; choose from {', '.join(TOKEN_DTYPES)}, or leave it out")
    if TOKEN_DTYPES[requested].itemsize < TOKEN_DTYPES[narrowest].itemsize:
        raise NielsCacheError(f"token_dtype is {requested!r}, which is too narrow for the tokenizer's {vocab_size:,} ids; leave it out")
    return requested


def token_dtype_identity(name: str) -> dict[str, str]:
    """Return the entry of the dtype in a fingerprint. It is empty for uint16, the default."""
    return {} if name == TOKEN_DTYPE_NAME else {"token_dtype": name}
