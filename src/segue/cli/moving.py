"""The commands that move sessions: import, export, convert, copy."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import segue
from segue import codec
from segue.convert import FORMATS
from segue.copying import Copied, Progress, copy, is_same_place
from segue.errors import Invalid
from segue.exporters import (
    Left,
    export_bundle,
    export_html,
    export_markdown,
    export_messages,
    export_original,
)
from segue.importers import FileReport, has_conversations, import_paths, printable
from segue.model import ScopeKey

from . import address, output
from .address import Desk, given, short_id
from .outcome import DONE, FINDING, NoStore
from .screen import Screen
from .text import one_line, plural

IMPORT_FIELDS = {
    "path": "the file",
    "format": "what it was taken for, or empty",
    "outcome": "imported, unchanged, skipped or failed",
    "reason": "why it was skipped or failed",
    "bytes": "of the file",
    "records": "that were read",
    "entries": "that were new (in a dry run: would be)",
    "usage": "tokens that were new",
    "sessions": "its sessions: id, key, title, format, records, messages, entries, usage, forked_from, abandoned",
    "defects": "the first 200: kind, record, detail",
    "defect_counts": "how many of each kind",
}
EXPORT_FIELDS = {
    "session": "the session, or null for several",
    "as": "what was written",
    "path": "where to",
    "bytes": "of the file",
    "left": "what is not in it: entry, reason, detail",
}
COPY_FIELDS = {
    "tenant": "owner",
    "user": "owner",
    "id": "the session",
    "outcome": "copied, continued, unchanged, tombstone (erased in the source and so in the target, but for what forks "
    "share), differs, refused, damaged or gone (erased in the source meanwhile)",
    "entries": "that were added",
    "hollowed": "entries whose content was erased in the target, as it was in the source",
    "running": "the run that was active in the source, or null",
    "drift_us": "most microseconds that the time of an entry differs from the source's",
    "left": "what was not carried over: fence, version, lease, waiting, hollow",
    "difference": "kind, seq, text; or null",
    "reason": "why it was refused or is damaged, or empty",
}
_LEFT = {
    "lease": "a run is active or paused in the source, and not in the target",
    "waiting": "runs wait in the source's queue, and not in the target's",
    "hollow": "content was erased in the target that is still in the source",
}
BAR = 24
"""Cells of the progress bar."""
KINDS = ("original", "bundle", "messages", "markdown", "html")
OTHERS_MAX = 5
"""How many owners are named when the one that was asked for has nothing."""

LEFT_MAX = 10
"""How many things that were left out are told to a person one by one."""


# import


def import_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", nargs="+", type=given, help="files and folders")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and write nothing")
    parser.add_argument("--quiet", action="store_true", help="leave out what was skipped, unchanged or without defects")
    parser.add_argument(
        "--for", dest="sdk", choices=["claude-agent-sdk"],
        help="bring transcripts of Claude Code in as this SDK keeps them, so that it can resume them",
    )  # fmt: skip
    parser.add_argument(
        "--project", type=given, help="with --for: one project for all, in place of each transcript's own"
    )


def bring(args: Namespace, screen: Screen) -> int:
    """Import files and folders."""
    if args.project and not args.sdk:
        raise Invalid("--project goes with --for; leave it out", where="project")
    url = address.store_url(args.store)
    with _store(url, args) as db:
        return _bring(Desk(url, db, db.scope(*address.owner(args))), args, screen)


def _store(url: str, args: Namespace) -> segue.Database:
    """The store; where there is none and nothing is to be written, an empty one that leaves nothing behind."""
    try:
        if args.dry_run:
            return address.opened(url)
        address.must_exist(url)
    except NoStore:
        if args.dry_run or not has_conversations(args.path):
            return segue.open("memory:")
    return segue.open(url)


def _bring(desk: Desk, args: Namespace, screen: Screen) -> int:
    def progress(path: str, done: int, size: int) -> None:
        screen.progress(f"{path}: {100 * done // max(size, 1)} %")

    outcomes: dict[str, int] = {}
    named = {printable(Path(path)) for path in args.path if not os.path.isdir(path)}  # noqa: PTH112 - Path's may raise
    is_bad = False
    reports = (
        _for_sdk(desk, args)
        if args.sdk
        else import_paths(desk.scope, args.path, is_dry=args.dry_run, progress=progress)
    )
    for report in reports:
        screen.progress("")
        outcomes[report.outcome] = outcomes.get(report.outcome, 0) + 1
        is_bad = is_bad or report.outcome == "failed" or (report.outcome == "skipped" and report.path in named)
        screen.emit(report.value())
        if not args.quiet or report.outcome == "failed" or report.counts:
            _tell(report, screen, is_dry=args.dry_run)
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))
    screen.line(f"{'dry run, nothing written: ' if args.dry_run else ''}{told or 'no files'}")
    return FINDING if is_bad or not outcomes.keys() & {"imported", "unchanged"} else DONE


def _for_sdk(desk: Desk, args: Namespace) -> Iterator[FileReport]:
    from segue.adapters.claude_agent_sdk import SegueSessionStore, import_transcripts

    with SegueSessionStore(desk.scope, project=args.project) as store:
        yield from import_transcripts(store, args.path, is_dry=args.dry_run)


def _tell(report: FileReport, screen: Screen, *, is_dry: bool) -> None:
    style = {"failed": "bad", "skipped": "dim", "unchanged": "dim"}.get(report.outcome, "good")
    screen.line((report.outcome, style), f"  {one_line(report.path)}  ", (one_line(report.reason), "dim"))
    for one in report.sessions if report.outcome == "imported" else ():
        what = f"{plural(one.messages, 'message')}, {plural(one.entries, 'new entry', 'new entries')}"
        more = f", {one.abandoned} on branches that were given up" if one.abandoned else ""
        fork = f", a fork of {short_id(one.forked_from)}" if one.forked_from else ""
        name = short_id(one.id) if one.id and not is_dry else "-"
        screen.line("  ", (name, "id"), f"  {what}{more}{fork}  {one_line(one.title)[:60]}")
    if report.counts:
        screen.line("  ", ("defects", "warn"), f": {_defects(report)}")


def _defects(report: FileReport) -> str:
    """How many of each kind, and where the first is."""
    counts = ", ".join(f"{kind} {count:,}" for kind, count in report.counts.most_common())
    first = report.defects[0]
    return f"{counts} (first: {first.kind} in record {first.record})"


# export


def export_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "session", nargs="+", type=given, help="id, part of an id, key:KEY or latest; several only for a bundle"
    )
    parser.add_argument(
        "--as", dest="kind", choices=KINDS, default="original", help="what to write (default: original)"
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="with --as messages: whose (default: the session's own format)"
    )
    parser.add_argument("--lines", action="store_true", help="with --as messages: one a line instead of an array")
    parser.add_argument("--output", type=given, metavar="FILE", help="where to (default: standard output)")


def export(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Write a session to a file."""
    if args.kind != "messages" and (args.format or args.lines):
        named = "--format" if args.format else "--lines"
        raise Invalid(f"{named} goes with --as messages; leave it out of --as {args.kind}", where="as")
    sessions = [desk.find(one) for one in args.session]
    if len(sessions) > 1 and args.kind != "bundle":
        raise Invalid("several sessions go into one file only as a bundle; use --as bundle", where="session")
    if screen.is_json and not args.output:
        raise Invalid("--json needs --output, as both would go to standard output", where="output")
    with output.opened(args.output, screen, store=desk.url, is_text=args.kind != "bundle") as made:
        left = _written(desk, sessions, args, made.out)
    _tell_left(left, screen)
    if args.output:
        only = sessions[0].id if len(sessions) == 1 else None
        value = {"session": only, "as": args.kind, "path": args.output, "bytes": made.size_bytes}
        screen.emit({**value, "left": [one._asdict() for one in left]})
        screen.line(f"{args.output}: {made.size_bytes:,} bytes")
    return FINDING if args.kind == "original" and left else DONE


def _written(desk: Desk, sessions: list[segue.Session], args: Namespace, out: BinaryIO) -> list[Left]:
    session = sessions[0]
    if args.kind == "bundle":
        export_bundle(sessions, out)
        return []
    if args.kind == "messages":
        own = session.info.format if session.info.format in FORMATS else FORMATS[0]
        return export_messages(session, out, format=args.format or own, lines=args.lines)
    if args.kind == "original":
        return _original(desk, session, out)
    return export_markdown(session, out) if args.kind == "markdown" else export_html(session, out)


def _original(desk: Desk, session: segue.Session, out: BinaryIO) -> list[Left]:
    try:
        return export_original(session, out, scope=desk.scope)
    except Invalid as error:
        if error.where != "session":
            raise
        raise Invalid(
            f"session {session.id!r} was not imported from a file, so it has no original; "
            "say --as messages, markdown, html or bundle",
            where="as",
        ) from error


def _tell_left(left: list[Left], screen: Screen) -> None:
    if screen.is_json:
        return
    for one in left[:LEFT_MAX]:
        screen.note(f"left out: entry {one.seq}, {one.reason}{': ' if one.detail else ''}{one.detail}")
    if len(left) > LEFT_MAX:
        screen.note(f"left out: {len(left) - LEFT_MAX:,} more")


# convert


def convert_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", type=given, help="the file, or a folder of files")
    parser.add_argument("--to", choices=FORMATS, required=True, help="whose messages")
    parser.add_argument("--output", type=given, metavar="FILE", help="where to (default: standard output)")


def convert(args: Namespace, screen: Screen) -> int:
    """Turn files of another tool into messages of a format."""
    with segue.open("memory:") as db:
        scope = db.scope()
        reports = list(import_paths(scope, [args.path]))
        names = {one.id: one.key or one.id for report in reports for one in report.sessions}
        if not names:
            reason = f"none of {len(reports):,} files is a conversation" if reports else "there is no file in it"
            raise Invalid(f"{args.path}: {reports[0].reason if len(reports) == 1 else reason}", where="path")
        told = [_told(scope.open(id), name, args.to) for id, name in names.items() if not name.endswith("/frame")]
    left = [one for _, ones in told for one in ones]
    with output.opened(args.output, screen, store=address.store_url(args.store)) as made:
        if screen.is_json or len(told) > 1:
            made.out.writelines(codec.encode(value) + b"\n" for value, _ in told)
        else:
            made.out.write(codec.encode(told[0][0]["messages"]) + b"\n" if told else b"[]\n")
    _tell_left(left, screen)
    for report in reports:
        if report.reason:
            screen.note(f"{report.outcome}: {one_line(report.path)}: {one_line(report.reason)}")
        if report.counts:
            screen.note(f"defects: {one_line(report.path)}: {_defects(report)}")
    return FINDING if any(report.outcome == "failed" for report in reports) else DONE


def _told(session: segue.Session, name: str, format: str) -> tuple[dict[str, Any], list[Left]]:
    body = BytesIO()
    left = export_messages(session, body, format=format)
    value = {
        "id": name,
        "title": session.info.title,
        "format": format,
        "messages": codec.decode(body.getvalue()),
        "left": [one._asdict() for one in left],
    }
    return value, left


# copy


def copy_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="source", type=given, metavar="URL", help="the store to copy (default: that of --store)"
    )
    parser.add_argument("--to", dest="target", type=given, metavar="URL", required=True, help="the store to copy into")
    parser.add_argument(
        "--refuse-running",
        action="store_true",
        help="leave sessions out on which a run is active, instead of copying what it has appended so far",
    )
    parser.add_argument(
        "--source-attributes",
        action="store_true",
        help="where a session of the target has another title, state or the like, take the source's",
    )
    parser.add_argument("--quiet", action="store_true", help="show only what differs, is refused or damaged")


def copy_sessions(args: Namespace, screen: Screen) -> int:
    """Copy the sessions of one store into another."""
    source, target = address.store_url(args.source or args.store), address.store_url(args.target)
    if target.startswith("memory:"):
        raise Invalid("a copy into memory: would be gone when the command ends; name a store that stays", where="to")
    if is_same_place(source, target):
        raise Invalid("--from and --to are the same store", where="to")

    def each(copied: Copied) -> None:
        screen.progress("")
        screen.emit(_copied_value(copied))
        if not copied.is_whole or not (args.quiet or copied.outcome == "unchanged"):
            _tell_copied(copied, screen)

    with address.opened(source, reads=True) as db:
        report = copy(
            db,
            target,
            scope=_owners(db, args, address.shown(source)),
            running="refuse" if args.refuse_running else "copy",
            attributes="source" if args.source_attributes else "keep",
            each=each,
            progress=lambda done: screen.progress(_bar(done)),
        )
    screen.progress("")
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(report.outcomes.items()))
    screen.line(f"{told or 'no sessions'}; {plural(report.entries, 'entry', 'entries')} copied")
    left = Counter(_LEFT[name] for copied in report.sessions for name in copied.left if name in _LEFT)
    for what, count in left.items():
        screen.line((f"{plural(count, 'session')}: {what}", "dim"))
    return DONE if report.is_whole else FINDING


def _owners(db: segue.Database, args: Namespace, where: str) -> list[ScopeKey] | None:
    """Whose sessions are meant, if not everybody's: one owner's, or those of all users of a tenant."""
    if not args.tenant and not args.user:
        return None
    if not args.tenant:
        raise Invalid(f"which {args.user}? name the tenant too, with --tenant", where="tenant")
    if args.user:
        asked = ScopeKey(args.tenant, args.user)
        has = next(db.scope(*asked).iterate(status=address.STATUSES, unlisted=True), None) is not None
        found = [asked] if has else []
    else:
        found = [one for one in db.scopes() if one.tenant == args.tenant]
    if not found:
        others = [f"{one.tenant}/{one.user}" for one in islice(db.scopes(), OTHERS_MAX + 1)]
        named = ", ".join(others[:OTHERS_MAX]) + (" and others" if len(others) > OTHERS_MAX else "")
        whose = f"{args.tenant}/{args.user}" if args.user else f"any user of {args.tenant}"
        raise Invalid(
            f"no sessions of {whose} in {where}; "
            + (f"there are some of {named}" if others else "nobody has any there"),
            where="tenant",
        )
    return found


def _copied_value(copied: Copied) -> dict[str, Any]:
    differs = copied.difference
    return {
        "tenant": copied.scope.tenant,
        "user": copied.scope.user,
        "id": copied.session,
        "outcome": copied.outcome,
        "entries": copied.entries,
        "hollowed": copied.hollowed,
        "running": copied.running or None,
        "drift_us": copied.drift_us,
        "left": list(copied.left),
        "difference": None if differs is None else differs._asdict(),
        "reason": copied.reason,
    }


def _tell_copied(copied: Copied, screen: Screen) -> None:
    style = "good" if copied.is_whole else "warn" if copied.outcome == "refused" else "bad"
    owner = f"{copied.scope.tenant}/{copied.scope.user}"
    what = plural(copied.entries, "entry", "entries")
    if copied.running:
        what += f", up to what run {one_line(copied.running)} had appended"
    differs = copied.difference
    if differs is not None:
        what += f": {differs.text}" + (f" (entry {differs.seq})" if differs.seq is not None else "")
    what += f": {copied.reason}" if copied.reason else ""
    screen.line((copied.outcome, style), "  ", (short_id(copied.session), "id"), f"  ({owner})  {one_line(what)}")


def _bar(done: Progress) -> str:
    share = done.entries / done.entries_total if done.entries_total else 1.0
    full = round(BAR * min(share, 1.0))
    counts = (
        f"{done.sessions:,} of {plural(done.sessions_total, 'session')}, {plural(done.entries, 'entry', 'entries')}"
    )
    return f"copying {'█' * full}{'░' * (BAR - full)} {100 * min(share, 1.0):.0f} %  {counts}"
