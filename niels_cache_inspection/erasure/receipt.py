"""The receipt of an erasure: what was erased, when, for whom, and what could not be reached.

A receipt is passed on, so it must not help anyone to find out what was erased. Somebody who guesses a short text, such as a name and a
number, can hash all guesses, whether a hash is salted or slow, because a receipt has to contain the salt. So everything that depends on
erased text or ids is in the receipt as a keyed hash (BLAKE2b), and the key, 32 random bytes, is in a file of its own, RECEIPT.key. Whoever
has only the receipt learns the number of documents and of prints, from which the length of the text can be estimated. Whoever also has the
key can test guesses, as every check of absence must; so the key belongs to whoever erased, and may be destroyed. The hashes of old builds
are keyed, too: whoever has all other documents could build the cache with a guess in it, and compare. New builds are named by their plain
hashes.

A signature (Ed25519) covers the canonical JSON of everything else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_cache_assets.disk.journal import write_atomically
from niels_cache_runtime.errors import NielsCacheError

FORMAT = 1
KIND = "niels-cache erasure"
KEY_BYTES = 32

_READ = {"is_absent": bool, "documents": list, "prints": list, "too_short_to_search": int, "builds_after": list, "remaining": list}
Receipt = dict[str, Any]


def key_path(receipt: Path) -> Path:
    """Return the path of the key of a receipt."""
    return receipt.with_name(f"{receipt.name}.key")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, in one step.

    Raises:
        NielsCacheError: If it cannot be written.
    """
    try:
        path.touch(mode=0o600)
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        write_atomically(path, content)
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be written: {error.strerror or error}; choose another --receipt") from error


def canonical(receipt: Mapping[str, Any]) -> bytes:
    """Return the bytes of a receipt that a signature covers."""
    unsigned = {key: value for key, value in receipt.items() if key != "signature"}
    return json.dumps(unsigned, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def sign(receipt: Receipt, key_file: Path) -> Receipt:
    """Return a receipt with a signature.

    Args:
        receipt: The receipt.
        key_file: An Ed25519 key in PEM, such as `openssl genpkey -algorithm ed25519` writes it.

    Raises:
        NielsCacheError: If the key cannot be used, or the library is missing.
    """
    from cryptography.hazmat.primitives import serialization

    key = load_signing_key(key_file)
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    signature = {"algorithm": "ed25519", "public_key": _text(public), "value": _text(key.sign(canonical(receipt)))}
    return {**receipt, "signature": signature}


def load_signing_key(key_file: Path) -> Any:
    """Return the key in a file.

    Raises:
        NielsCacheError: If the key cannot be used, or the library is missing.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise NielsCacheError('signing needs cryptography: pip install "niels-cache[erase]"') from error
    try:
        key = load_pem_private_key(key_file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise NielsCacheError(f"{key_file}: is not a readable private key in PEM without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise NielsCacheError(f"{key_file}: is not an Ed25519 key; make one: openssl genpkey -algorithm ed25519 -out {key_file}")
    return key


def signature_problem(receipt: Receipt, public_key: Path | None) -> str | None:
    """Return what is wrong with the signature of a receipt, or None.

    Args:
        receipt: The receipt.
        public_key: The public key in PEM that must have signed it. None accepts the key in the receipt.

    Raises:
        NielsCacheError: If the public key cannot be read, or the library is missing.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
    except ImportError as error:
        raise NielsCacheError('checking a signature needs cryptography: pip install "niels-cache[erase]"') from error
    if (signature := receipt.get("signature")) is None:
        return "it has no signature"
    try:
        raw = base64.b64decode(signature["public_key"])
        if public_key is not None and load_pem_public_key(public_key.read_bytes()).public_bytes(Encoding.Raw, PublicFormat.Raw) != raw:
            return f"it was signed with another key than {public_key}"
        Ed25519PublicKey.from_public_bytes(raw).verify(base64.b64decode(signature["value"]), canonical(receipt))
    except InvalidSignature:
        return "the signature is wrong: the receipt was changed"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NielsCacheError(f"the signature cannot be checked: {error}") from error
    return None


def read_receipt(path: Path) -> Receipt:
    """Return a receipt.

    Raises:
        NielsCacheError: If the file is not a receipt that this version knows.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise NielsCacheError(f"{path}: cannot be read as a receipt: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise NielsCacheError(f"{path}: is not the receipt of an erasure")
    if found.get("format") != FORMAT:
        raise NielsCacheError(f"{path}: has format {found.get('format')!r}, and this version reads {FORMAT}; update niels-cache")
    if wrong := next((name for name, kind in _READ.items() if not isinstance(found.get(name), kind)), None):
        raise NielsCacheError(f"{path}: is damaged: it lacks {wrong!r}, or has something else there; use the receipt as erase wrote it")
    return found


def read_key(path: Path) -> bytes:
    """Return the key of a receipt.

    Raises:
        NielsCacheError: If the file is not one.
    """
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise NielsCacheError(f"{path}: cannot be read as the key of a receipt: {error}") from error
    if len(key) != KEY_BYTES:
        raise NielsCacheError(f"{path}: is not the key of a receipt")
    return key


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")
