"""Copies of files between repositories, and forks: repositories that are mostly copies of one earlier repository.

Files are equal if all characters are, without white space at the ends of lines. The first repository by name keeps its files. The caller
leaves out texts of licences, which unrelated repositories share. What is left of a repository may be a line with its version, which they
share too, so a fork has at least 1,000 characters. A file takes about 150 bytes of memory during the whole pass: 10 million
files take 1.5 GB.
"""

import hashlib
from collections import Counter

_MIN_CHARACTERS = 1_000  # of a fork


class Copies:
    """The files of all repositories so far."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.owners: dict[int, int] = {}  # the number of the first repository with a file, by the hash of the file

    def start(self, repository: str) -> "RepositoryCopies":
        """Return the copies of the next repository."""
        self.names.append(repository)
        return RepositoryCopies(self)


class RepositoryCopies:
    """The files of one repository that earlier repositories have.

    Args:
        seen: The files of earlier repositories.
    """

    def __init__(self, seen: Copies) -> None:
        self._seen, self._number = seen, len(seen.names) - 1
        self._characters = 0
        self._shared = Counter[int]()  # characters, by the number of the earlier repository
        self._copies: list[str] = []
        self._new: list[int] = []

    def add(self, path: str, text: str) -> None:
        """Add a file."""
        content = "\n".join(map(str.rstrip, text.splitlines())).encode(errors="surrogatepass")
        key = int.from_bytes(hashlib.blake2b(content, digest_size=12).digest(), "little")
        self._characters += len(text)
        owner = self._seen.owners.get(key)
        if owner is None:
            self._new.append(key)
        else:
            self._shared[owner] += len(text)
            self._copies.append(path)

    def original(self, share: float) -> str | None:
        """Return the earlier repository that has at least this share of the characters, or None."""
        for owner, characters in self._shared.most_common(1):
            if self._characters >= _MIN_CHARACTERS and characters >= share * self._characters:
                return self._seen.names[owner]
        return None

    def end(self) -> list[str]:
        """Remember the files for later repositories. Return the paths of the copies."""
        self._seen.owners |= dict.fromkeys(self._new, self._number)
        return self._copies
