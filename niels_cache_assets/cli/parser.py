"""Commands, options and help. What is wrong in a command line is one line with the nearest valid choice."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from niels_cache_assets.cli import corpus_options, exchange_options, prebuild_options, status_options, ui_options, verify_options
from niels_cache_assets.cli.console import PROGRAM
from niels_cache_assets.cli.overrides import FLAGS, SFT_VAL_FRAC, SHUFFLE_BUFFER, Flag, whole_number
from niels_cache_runtime.errors import NielsCacheError

_DESCRIPTION = """\
Turn text into token caches, with lineage and sha256 for every file, and look at what is there.

Data sets come from a profile (default: fineweb_edu, wikitext, dolly15k, oasst1, ...; quickstart:
Python's own documentation, no network) and from your niels_cache.toml, which adds tables and
overrides keys."""

_EPILOG = """\
examples:
  niels-cache build-all --profile quickstart           a small cache in about a minute, without network
  niels-cache build-all --only wikitext dolly15k       two data sets of the default profile
  niels-cache list                                     what is configured, and what is built
  niels-cache status                                   what is complete, what is not and why
  niels-cache sample python_docs --profile quickstart  what training will see
  niels-cache trace --state checkpoint.pt --step 1200  what training saw in that batch, and whence
  niels-cache clean articles.jsonl.gz -n 2             what cleaning would take out, and why

exit codes: 0 done, 1 a data set failed or verify found something, 2 wrong use or configuration,
130 interrupted. `niels-cache COMMAND --help` explains one command."""

_BUILD_ALL = """\
Build the tokenizer, then every pretrain data set, then every SFT data set, through Dagster: its UI
shows the same runs. Data sets with `prepare` are cleaned and deduplicated before (docs/cleaning.md).

What is already built from the same settings, tokenizer and upstream revision is a cache hit and
takes no time. A data set that fails does not stop the others and leaves its last good cache as it
was; one that still needs a setting (roam without a folder) is skipped."""

_BUILD_ALL_EPILOG = """\
examples:
  niels-cache build-all --profile quickstart
  niels-cache build-all --only fineweb_edu --fineweb-train-tokens 10_000_000 --fineweb-val-tokens 100_000
  niels-cache build-all --roam-dir ~/roam --set pretrain.wikitext.enabled=false
  niels-cache build-all --only oasst1 --force --set sft.oasst1.split_by=tree"""

_LIST_EPILOG = """\
states: in sync; missing; disabled (enabled = false); needs ... (a setting); other tokenizer, other
settings (built before they changed); damaged (a file), unreadable (meta.json); `niels-cache status`
says more

corpus: documents that cleaning and deduplication left, of those read, for data sets with `prepare`

example:
  niels-cache list --profile quickstart"""

_SHOW_EPILOG = """\
examples:
  niels-cache show wikitext
  niels-cache show tokenizer --cache-dir cache/quickstart"""

_SAMPLE_EPILOG = """\
examples:
  niels-cache sample wikitext                   three random windows of train
  niels-cache sample dolly15k --split val -n 5  examples; what the assistant is trained to say is marked
  niels-cache sample wikipedia --stage corpus   documents that cleaning left, any with the same chance"""

_TRACE = """\
Show where a batch of a training run came from: data set, epoch, sample, shard and offset of every
row, and of every document in it the source's own id, file, row and text.

FILE is what loader.state_dict() was saved in: JSON, or a torch checkpoint that holds it somewhere.
The batch is computed again from that state: any step of the run, on the batch size and the ranks
that it ran with. A cache that changed since is refused."""

_TRACE_EPILOG = """\
examples:
  niels-cache trace --state checkpoint.pt --step 1200                    every row of rank 0
  niels-cache trace --state checkpoint.pt --step 1200 --rank 3 --row 5   one row, with all of its text
  niels-cache trace --state loader.json --step 0 --row 0 --column 17     one token and the text around it
  niels-cache trace --state loader.json --step 0 --source notes=/mnt/cache/pretrain/notes/train"""


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=32)


class _Parser(argparse.ArgumentParser):
    """argparse, but an error is a NielsCacheError, and options are not abbreviated: a typo is refused with the nearest choice."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_formatter, **settings)

    def error(self, message: str) -> NoReturn:
        raise NielsCacheError(f"{message} ({self.prog} --help explains)")


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace | None:
    """The parsed command line; `.module` of this package runs it. None where there is no command: its help is printed.

    Raises NielsCacheError for wrong use, SystemExit after --help and --version.
    """
    top, commands = _build_parsers()
    if not argv:
        top.print_help()
        return None
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        _refuse("no command", argv[0], commands)
    if argv and argv[0].startswith("-") and argv[0] not in top._option_string_actions:
        raise NielsCacheError(f"{argv[0]}: options come after the command, for example {PROGRAM} build-all {argv[0]} ...")
    arguments, unknown = top.parse_known_args(argv)
    if unknown:
        options = [word for word in unknown if word.startswith("-")]
        if not options:
            raise NielsCacheError(f"{PROGRAM} {arguments.command}: unexpected argument {unknown[0]!r}")
        _refuse(f"{arguments.command} has no option", options[0].partition("=")[0], commands[arguments.command]._option_string_actions)
    return arguments


def _refuse(problem: str, given: str, choices: Any) -> NoReturn:
    from niels_cache_assets.registry import refuse_choice

    refuse_choice("command line", problem, given, choices)


def _build_parsers() -> tuple[_Parser, dict[str, _Parser]]:
    top = _Parser(prog=PROGRAM, description=_DESCRIPTION, epilog=_EPILOG)
    top.add_argument("--version", action=_Version)
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    where: Any = _where_options()  # no _Parser: it only lends its options
    commands: dict[str, _Parser] = {}

    def command(
        name: str, module: str, words: str, summary: str, epilog: str, description: str | None = None, common: Sequence[Any] = (where,)
    ) -> _Parser:
        usage = f"{PROGRAM} {name} {words}[options]"
        text = description or f"{summary[0].upper()}{summary[1:]}."
        commands[name] = subparsers.add_parser(name, parents=common, help=summary, description=text, epilog=epilog, usage=usage)
        commands[name].set_defaults(module=module)
        return commands[name]

    build_all = command("build-all", "build_all", "", "build the tokenizer and every data set", _BUILD_ALL_EPILOG, _BUILD_ALL)
    _add_build_options(build_all)
    command("list", "listing", "", "list all configured data sets, and what is built of them", _LIST_EPILOG)
    status = command(
        "status",
        "status",
        "[NAME ...] ",
        "show what is complete, stale, broken, resumable or being built",
        status_options.STATUS_EPILOG,
        status_options.STATUS,
    )
    status_options.add_status_options(status)
    show = command(
        "show", "showing", "NAME ", "show what a cache holds: counts, what was dropped, revision, files with sha256", _SHOW_EPILOG
    )
    show.add_argument("name", metavar="NAME", help="a data set, or `tokenizer`")
    verify = command(
        "verify", "verifying", "[NAME ...] ", "hash every file again and check the invariants of the format", verify_options.VERIFY_EPILOG
    )
    verify_options.add_verify_options(verify)
    sample = command("sample", "sampling", "NAME ", "print random windows (pretrain), examples (SFT) or documents as text", _SAMPLE_EPILOG)
    _add_sample_options(sample)
    clean = command(
        "clean",
        "cleaning",
        "FILE ... ",
        "run the cleaning chain on files: what goes, and why",
        corpus_options.CLEAN_EPILOG,
        corpus_options.CLEAN,
    )
    corpus_options.add_clean_options(clean)
    rejected = command(
        "rejected", "rejections", "NAME ", "show what cleaning took out", corpus_options.REJECTED_EPILOG, corpus_options.REJECTED
    )
    corpus_options.add_rejected_options(rejected)
    duplicates = command(
        "duplicates", "duplicates", "[NAME] ", "show duplicates side by side", corpus_options.DUPLICATES_EPILOG, corpus_options.DUPLICATES
    )
    corpus_options.add_duplicates_options(duplicates)
    export = command(
        "export",
        "exporting",
        "FORMAT NAME --out PATH ",
        "write a cache as the files of Megatron-LM, nanoGPT, llm.c, datatrove or NumPy",
        exchange_options.EXPORT_EPILOG,
        exchange_options.EXPORT,
    )
    exchange_options.add_export_options(export)
    importing = command(
        "import",
        "importing",
        "FORMAT PREFIX --name NAME ",
        "make a cache of Megatron-LM's tokens",
        exchange_options.IMPORT_EPILOG,
        exchange_options.IMPORT,
    )
    exchange_options.add_import_options(importing)
    prebuild = command(
        "prebuild-index",
        "prebuilding",
        "[NAME] ",
        "build a blend's indices before training asks for them",
        prebuild_options.PREBUILD_EPILOG,
        prebuild_options.PREBUILD,
    )
    prebuild_options.add_prebuild_options(prebuild)
    ui = command("ui", "ui", "", "serve the web UI on this machine", ui_options.UI_EPILOG, ui_options.UI, common=())
    ui_options.add_ui_options(ui)
    trace = command(
        "trace",
        "tracing",
        "--state FILE --step N ",
        "show which documents a batch of a training run came from",
        _TRACE_EPILOG,
        _TRACE,
        common=(),
    )
    _add_trace_options(trace)
    return top, commands


def _where_options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    group = options.add_argument_group("where")
    group.add_argument("--cache-dir", metavar="DIR", help="root of the caches (default: NIELS_CACHE_ROOT, else [build] cache_dir)")
    group.add_argument("--profile", metavar="NAME", help="default or quickstart (default: NIELS_CACHE_PROFILE, else `profile` of the file)")
    group.add_argument(
        "--config", metavar="FILE", help="your settings (default: NIELS_CACHE_CONFIG, else ./niels_cache.toml if there is one)"
    )
    return options


def _add_build_options(parser: _Parser) -> None:
    parser.add_argument("--only", metavar="NAME", nargs="+", help="build these data sets only (and the tokenizer where there is none)")
    parser.add_argument("--force", action="store_true", help="build again what is already there")
    parser.add_argument("--wait", action="store_true", help="wait where another process is building the same, instead of failing")
    parser.add_argument(
        "--set",
        metavar="TABLE.KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="any setting of the configuration: pretrain.NAME.key=value, sft.NAME.key=value, tokenizer.key=value, build.key=value; "
        "values are TOML, or plain text where they are not; may be given many times",
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for flag in (*FLAGS, SHUFFLE_BUFFER, SFT_VAL_FRAC):
        group = groups.setdefault(flag.group, parser.add_argument_group(flag.group))
        group.add_argument(flag.option, type=flag.type, metavar=flag.metavar, nargs=flag.nargs, dest=flag.dest, help=_help_of(flag))


def _help_of(flag: Flag) -> str:
    if flag.default is None:
        return flag.help
    return f"{flag.help} (default: {f'{flag.default:_}' if isinstance(flag.default, int) and flag.default > 9_999 else flag.default})"


def _add_sample_options(parser: _Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="a data set that is built")
    parser.add_argument("--stage", metavar="STAGE", default="cache", help="cache: what training sees (default); corpus: what cleaning left")
    parser.add_argument("--split", metavar="SPLIT", help="train or val (default: train; of a corpus, all of it)")
    parser.add_argument("-n", metavar="N", dest="count", type=whole_number, default=3, help="how many (default: 3)")
    parser.add_argument("--seed", metavar="N", type=whole_number, help=corpus_options.SEED_HELP)
    parser.add_argument(
        "--tokens", metavar="N", type=whole_number, default=128, help="longest to print, in tokens (default: 128; of a corpus, estimated)"
    )


def _add_trace_options(parser: _Parser) -> None:
    parser.add_argument("--state", metavar="FILE", required=True, help="JSON or torch checkpoint with the loader's state")
    parser.add_argument("--step", metavar="N", type=whole_number, required=True, help="which batch, counted from 0 as loader.step does")
    parser.add_argument("--rank", metavar="R", type=whole_number, default=0, help="whose batch of that step (default: 0)")
    parser.add_argument("--row", metavar="I", type=whole_number, help="only this row, with all of its text")
    parser.add_argument("--column", metavar="J", type=whole_number, help="only this token of the row: x[I, J], which is y[I, J - 1]")
    parser.add_argument(
        "--source",
        metavar="NAME=FOLDER",
        nargs="+",
        type=_name_and_folder,
        action="extend",
        default=[],
        dest="sources",
        help="where a data set's split lies now, if not where training read it",
    )


def _name_and_folder(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    if not name or not equals or not folder:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER")
    return name, folder


class _Version(argparse.Action):
    """--version, without importing importlib.metadata for any other command."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"{PROGRAM} {version(PROGRAM)}")
        except PackageNotFoundError:
            print(f"{PROGRAM} (not installed: run from its sources)")
        parser.exit()
