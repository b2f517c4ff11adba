"""Options and help of status."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import ALL_HELP, Command


def _add_status_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="data sets, `tokenizer`, `corpus/NAME`; everything where none is named")
    parser.add_argument("--all", action="store_true", help=ALL_HELP)
    parser.add_argument("--full", action="store_true", help="read and verify every file")


COMMAND = Command(
    name="status",
    module="status",
    usage="[NAME ...] ",
    summary="show what is complete, stale, broken, resumable or being built",
    description="""\
Show how the tokenizer, corpora, duplicates and caches stand, why, and what to do. Upstreams are not
asked; whether their text has changed is for build-all to see.

  complete      what the settings ask for, every file of the size that meta.json says
  stale         built with other settings, another tokenizer or another corpus
  missing       not built yet
  broken        meta.json cannot be read or names another data set than the folder, or a file is
                missing or of another size; with --full also where its bytes are others
  off           a setting is missing, or enabled = false (with --all)
  resumable     an unfinished build lies beside it: the next one goes on where it ended
  stale build   an unfinished build lies beside it whose settings, tokenizer, data (local files of up
                to 256 MB) or code version are others now: the next one starts afresh, and why is said
  being built   somebody is at work: which process, where, since when

Data sets that niels_cache.toml does not name are listed if their cache is there. Of a complete one
it says as well where a source ended before its token budget was met, and of the
tokenizer what it was trained on and what it lacks.

exit codes: 0 all of it is complete or off, 1 something is not.""",
    examples="""\
  niels-cache status                  everything
  niels-cache status wikitext --full  one data set and its corpus, every file hashed
  niels-cache status --json           the same for programs""",
    add_options=_add_status_options,
    has_json=True,
)
