"""What commands there are: the parser, the help and the documentation are all made from this list."""

from __future__ import annotations

import shutil
import textwrap
from argparse import SUPPRESS, Action, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from . import address, changing, machine, moving, reading, upkeep
from .address import Desk
from .outcome import EXIT_CODES
from .screen import Screen


@dataclass(frozen=True, slots=True)
class Command:
    """
    One command.

    Attributes:
        name: How it is called.
        summary: What it does, in one sentence.
        about: What else there is to know.
        arguments: Adds its arguments to a parser.
        run: Does it with an open store; None for ``alone``.
        alone: Does it without one.
        json: What one line of ``--json`` holds: name and meaning.
        example: A command line.
        reads: True when it writes nothing, so that the store is opened for reading only.
        makes: True when it makes a store where there is none.
        everybody: True when it looks at all owners, so that ``--tenant`` and ``--user`` are refused.
        common: Options of every command that mean something else here, and what.
    """

    name: str
    summary: str
    about: str
    arguments: Callable[[ArgumentParser], None]
    json: dict[str, str]
    example: str
    run: Callable[[Desk, Namespace, Screen], int] | None = None
    alone: Callable[[Namespace, Screen], int] | None = None
    reads: bool = field(default=False)
    makes: bool = field(default=False)
    everybody: bool = field(default=False)
    common: dict[str, str] = field(default_factory=dict)


def _no_arguments(parser: ArgumentParser) -> None:
    """No arguments of its own."""


COMMANDS = (
    Command(
        "ls",
        "List the owner's sessions, last active first.",
        "One line a session: the end of its id (which finds it again), status, last activity, entries, tokens "
        "(input and output), title, tags, and the session it was forked from. Archived sessions and those of "
        "sub-agents are shown with --all.",
        reading.ls_arguments,
        machine.SESSION_FIELDS,
        "segue ls --tag sales --since 7d",
        run=reading.ls,
        reads=True,
    ),
    Command(
        "show",
        "Show a session as a conversation.",
        "Roles, text, calls of tools (→) with their arguments on one line, their results (←) cut after a few "
        "lines with the number of characters that are left, and what else the log holds: notes, cuts, readings "
        "of the world, effects. Messages that were taken back are marked, and erased content is told. --raw gives "
        "the exact bytes as they are stored (a terminal gets them with control characters escaped). A damaged "
        "entry is told in its place, the rest is shown, and the exit code is 1. Of an imported session people see the "
        "messages; the records around them are shown with --kinds, --raw or --json.",
        reading.show_arguments,
        {**machine.ENTRY_FIELDS, "damage": "only in the place of a damaged entry, with seq: what is wrong"},
        "segue show latest --last 10",
        run=reading.show,
        reads=True,
    ),
    Command(
        "resume",
        "Show what a resume would find: the gap, what changed, what is open, what is advised.",
        "It plans and writes nothing. Sources other than files need the program's own probes, so here they are "
        "told as not verifiable; --files allows to look at file: sources in a folder.",
        reading.resume_arguments,
        {"session": "the session, as in ls", "briefing": "the facts of the briefing", "text": "the briefing in words"},
        "segue resume latest --language zh --time-zone Asia/Shanghai",
        run=reading.resume,
        reads=True,
    ),
    Command(
        "fork",
        "Make a session that shares the beginning of another and goes on by itself.",
        "Nothing is copied and the parent never changes.",
        changing.fork_arguments,
        machine.SESSION_FIELDS,
        'segue fork latest --at 12 --title "Another split"',
        run=changing.fork,
    ),
    Command(
        "title",
        "Set a session's title.",
        "",
        changing.title_arguments,
        machine.SESSION_FIELDS,
        'segue title 3f9a1c22 "East China: the August decline"',
        run=changing.title,
    ),
    Command(
        "tag",
        "Add and remove a session's tags.",
        "Without tags it only shows them.",
        changing.tag_arguments,
        machine.SESSION_FIELDS,
        "segue tag 3f9a1c22 sales q3 --remove draft",
        run=changing.tag,
    ),
    Command(
        "pin",
        "Pin sessions, so that no sweep touches them, or unpin them.",
        "",
        changing.pin_arguments,
        machine.SESSION_FIELDS,
        "segue pin 3f9a1c22",
        run=changing.pin,
    ),
    Command(
        "end",
        "Mark sessions as completed.",
        "A new message, a run or reopen takes that back.",
        changing.some_arguments,
        machine.SESSION_FIELDS,
        "segue end 3f9a1c22",
        run=changing.end,
    ),
    Command(
        "reopen",
        "Make completed sessions idle again.",
        "Archived ones need restore.",
        changing.some_arguments,
        machine.SESSION_FIELDS,
        "segue reopen 3f9a1c22",
        run=changing.reopen,
    ),
    Command(
        "archive",
        "Put sessions away: hidden from ls, kept, refusing appends.",
        "Refused while a run is active. A sweep erases what was archived long ago.",
        changing.some_arguments,
        machine.SESSION_FIELDS,
        "segue archive 3f9a1c22",
        run=changing.archive,
    ),
    Command(
        "restore",
        "Bring archived or expired sessions back.",
        "The idle lifetime starts again; an end of lifetime that has passed is lifted. Here latest is the last active "
        "one of the archived.",
        changing.some_arguments,
        machine.SESSION_FIELDS,
        "segue restore 3f9a1c22",
        run=changing.restore,
    ),
    Command(
        "rm",
        "Erase sessions for good.",
        "Asks first; without a terminal it needs --yes. Entries that forks share live on in the forks alone.",
        changing.rm_arguments,
        {"id": "the erased session", "erased": "entries that are gone", "shared": "entries that forks still share"},
        "segue rm 3f9a1c22 --yes",
        run=changing.rm,
    ),
    Command(
        "import",
        "Bring in sessions of other tools: files, and everything in folders.",
        "Claude Code, Codex, Gemini CLI, OpenAI Agents, LangGraph, ChatGPT, Claude.ai, llm, lists of messages, and "
        "bundles of Segue, each recognised by its content. Importing again adds what is new; a file that was "
        "rewritten becomes a fork. What cannot be understood is kept and reported. With --for claude-agent-sdk "
        "transcripts of Claude Code become sessions that this SDK resumes. Exit code 1 when a file could not be read "
        "or nothing was a conversation. It makes the store where there is none and something is to be written.",
        moving.import_arguments,
        moving.IMPORT_FIELDS,
        "segue import ~/.claude/projects --dry-run",
        alone=moving.bring,
        makes=True,
    ),
    Command(
        "export",
        "Write a session to a file: its original, a bundle, messages, Markdown or a page.",
        "What is not in the export is told on standard error. original is what was imported, byte for byte. A bundle "
        "holds everything, of one session or several.",
        moving.export_arguments,
        moving.EXPORT_FIELDS,
        "segue export latest --as html --output session.html",
        run=moving.export,
        reads=True,
    ),
    Command(
        "convert",
        "Turn files of another tool into messages of a format, without a store.",
        "One conversation gives an array of messages, several give one line each, with id, title and messages, in the "
        "order of the files' names, in a folder the files before its folders. What has no counterpart, a file that is "
        "no conversation, and what in a file is damaged is left out and told on standard error. Exit code 1 when a "
        "file could not be read.",
        moving.convert_arguments,
        {"id": "what names the conversation", "title": "its title", "format": "of the messages",
         "messages": "as the provider takes them", "left": "what was left out: entry, reason, detail"},
        "segue convert rollout.jsonl --to anthropic",
        alone=moving.convert,
        reads=True,
    ),
    Command(
        "copy",
        "Copy sessions from one store to another, of any two kinds.",
        "All owners' sessions, unless --tenant or --user is given on the command line (what the environment names for "
        "other commands does not count here): entries with their times, forks that share, titles, tags, states, erased "
        "content. Digests are compared afterwards. Nothing in the target is overwritten: "
        "run it again after an interruption, or for what came since; what is there already is only compared. Exit code "
        "1 when a session differs, was refused or is damaged. It makes the store that is copied into.",
        moving.copy_arguments,
        moving.COPY_FIELDS,
        "segue copy --from sqlite:///segue.db --to postgresql://segue@db.example.com/segue",
        alone=moving.copy_sessions,
        makes=True,
        common={
            "--tenant": "only this tenant's sessions, with --user one user's alone (default: all owners')",
            "--user": "with --tenant: only this user's sessions (default: all users')",
        },
    ),
    Command(
        "sweep",
        "Archive the sessions whose lifetime ended, and erase those archived for long.",
        "All owners' sessions, so --tenant and --user are refused. Pinned and running ones are left alone. "
        "Run it as often as you like.",
        upkeep.sweep_arguments,
        {
            "action": "archived or erased",
            "tenant": "owner",
            "user": "owner",
            "id": "the session",
            "dry_run": "true when nothing was done",
        },
        "segue sweep --dry-run --purge-after 30d",
        run=upkeep.sweep,
        everybody=True,
    ),
    Command(
        "verify",
        "Read every entry of the store and compare it with its digest.",
        "All owners' sessions, so --tenant and --user are refused. Exit code 1 when there is damage.",
        upkeep.verify_arguments,
        {
            "level": "ok, warn or damage",
            "text": "what was found",
            "tenant": "owner, or null",
            "user": "owner, or null",
            "session": "or null",
            "seq": "the entry, or null",
        },
        "segue verify --quiet",
        run=upkeep.verify,
        reads=True,
        everybody=True,
    ),
    Command(
        "migrate",
        "Show or apply the migrations that the schema of a store lacks.",
        "A program that opens a store brings its schema up to date by itself; of the commands, only import and the "
        "target of copy do so on a server. Use this where programs connect as a user who may not: run it as the owner. "
        "It may be run while programs work, and by several at once. What was cut short is not half done, or (MySQL) "
        "done again. Stores without numbered migrations (JSON lines, Redis, MongoDB) are only opened: they have "
        "nothing to do. --row-security and --app-user are done whether or not a migration is pending.",
        upkeep.migrate_arguments,
        upkeep.MIGRATE_FIELDS,
        "segue migrate postgresql://owner@db.example.com/segue --plan",
        alone=upkeep.migrate,
        everybody=True,
    ),
    Command(
        "doctor",
        "Look at the installation and the store's settings, and say what is wrong and how to mend it.",
        "Versions, extras, modes of the files, settings of the engine. Exit code 1 when something is wrong.",
        _no_arguments,
        {"level": "ok, warn or damage", "topic": "segue, drivers, extra, folder or store", "text": "what was found"},
        "segue doctor",
        alone=upkeep.doctor,
        reads=True,
        everybody=True,
    ),
)  # fmt: skip
"""Every command, in the order of the help."""

COMMON = (
    ("--store", "URL", f"the store, or a path to an SQLite file (SEGUE_STORE; default: {address.STORE})"),
    ("--tenant", "NAME", f"whose sessions: the tenant (SEGUE_TENANT; default: {address.TENANT})"),
    ("--user", "NAME", f"whose sessions: the user (SEGUE_USER; default: {address.USER})"),
)
"""Options of every command that take a value: option, what it takes, help."""

OWNER = ("--tenant", "--user")
"""Those of them that say whose sessions are meant."""

SWITCHES = (
    ("--json", "JSON lines for programs: one object a line"),
    ("--debug", "show where an error comes from"),
)

ABOUT = "Look at and look after the sessions of AI agents that Segue keeps."


class WrongWords(Exception):
    """
    The command line cannot be understood.

    Attributes:
        usage: How the command is called.
        said: What is wrong.
    """

    def __init__(self, usage: str, said: str) -> None:
        super().__init__(said)
        self.usage, self.said = usage, said


class Words(ArgumentParser):
    """A parser that raises ``WrongWords`` instead of ending the process, so that programs are told in JSON."""

    def error(self, message: str) -> NoReturn:
        raise WrongWords(self.format_usage(), f"{self.prog}: {message}")


def parsed(made: ArgumentParser, argv: Sequence[str] | None) -> Namespace:
    """
    What the command line says.

    Raises:
        WrongWords: It cannot be understood. An option that is unknown is told with the usage of its command.
    """
    args, unknown = made.parse_known_args(argv)
    if unknown:
        (args.own or made).error(f"unknown arguments: {' '.join(unknown)}")
    return args


def parser() -> ArgumentParser:
    """The parser of the whole command line; options of every command may stand before or after its name."""
    columns = max(40, shutil.get_terminal_size().columns - 2)
    made = Words(
        "segue", description=textwrap.fill(ABOUT, columns), epilog=_epilog(columns),
        formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    made.set_defaults(command=None, own=None, store=None, tenant=None, user=None, json=False, debug=False)
    made.add_argument("--version", action="version", version=f"segue {_version()}")
    _common(made)
    below = made.add_subparsers(title="commands", metavar="COMMAND", dest="name")
    for command in COMMANDS:
        one = below.add_parser(
            command.name, help=command.summary, description=f"{command.summary} {command.about}", allow_abbrev=False
        )
        one.set_defaults(command=command, own=one)
        command.arguments(one)
        _common(one, command)
    return made


def _common(made: ArgumentParser, command: Command | None = None) -> None:
    """
    Options of every command, with the command's own help where it has one; those that it refuses are not shown.

    Suppressed defaults let the one given before the command's name stand.
    """
    own = {} if command is None else command.common
    refused = OWNER if command is not None and command.everybody else ()
    group = made.add_argument_group("options of every command")
    for name, metavar, help in COMMON:
        told = SUPPRESS if name in refused else own.get(name, help)
        group.add_argument(name, type=address.given, metavar=metavar, help=told, default=SUPPRESS)
    for name, help in SWITCHES:
        group.add_argument(name, action="store_true", help=help, default=SUPPRESS)


def own_actions(command: Command) -> list[Action]:
    """The arguments that are this command's alone."""
    return list(_own(command)._actions)  # noqa: SLF001 - argparse has no public way to list them


def own_choices(command: Command) -> list[list[Action]]:
    """Those of its arguments of which exactly one must be given."""
    groups = _own(command)._mutually_exclusive_groups  # noqa: SLF001 - as above
    return [list(group._group_actions) for group in groups if group.required]  # noqa: SLF001


def _own(command: Command) -> ArgumentParser:
    made = ArgumentParser(add_help=False)
    command.arguments(made)
    return made


def _epilog(columns: int) -> str:
    named = (
        "A session is named by its full id, by the beginning or end of it (4 characters or more, where one "
        "session fits), by key:KEY (the caller's own key), or by latest."
    )
    codes = [
        textwrap.fill(meaning, columns, initial_indent=f"  {code:<4} ", subsequent_indent=" " * 7)
        for code, meaning in EXIT_CODES.items()
    ]
    return "\n".join([textwrap.fill(named, columns), "", "exit codes:", *codes])


def _version() -> str:
    from importlib.metadata import version

    return version("segue")
