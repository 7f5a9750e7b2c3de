"""The commands that look after a store: sweep, verify, migrate, doctor."""

from __future__ import annotations

import platform
import re
import stat
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

from segue import migrations
from segue.errors import Corrupt, Invalid, SegueError
from segue.model import ScopeKey

from . import address
from .address import Desk, short_id
from .outcome import DONE, FINDING, exit_code, message
from .screen import Screen
from .text import plural, span

PURGE_AFTER = "30d"
LEVEL_STYLES = {"ok": "good", "warn": "warn", "damage": "bad"}


# sweep


def sweep_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument(
        "--purge-after",
        default=PURGE_AFTER,
        metavar="SPAN",
        help=f"how long an archived session stays (default: {PURGE_AFTER})",
    )


def sweep(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Archive sessions whose lifetime ended; erase those archived for long."""
    report = desk.db.sweep(purge_after=span(args.purge_after), dry=args.dry_run)
    would = "would be " if args.dry_run else ""
    for action, done in (("archived", report.archived), ("erased", report.erased)):
        for scope, id in done:
            screen.emit(
                {"action": action, "tenant": scope.tenant, "user": scope.user, "id": id, "dry_run": args.dry_run}
            )
            screen.line((short_id(id), "id"), f"  {would}{action}  ({scope.tenant}/{scope.user})")
    screen.line(f"{plural(len(report.archived), 'session')} {would}archived, {len(report.erased):,} {would}erased")
    return DONE


# verify


def verify_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="show only what is wrong")


def verify(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Read every entry of the store, all owners' included, and compare it with its digest."""
    began = time.monotonic()
    with _waiting(screen, f"verifying {address.shown(desk.url)}"):
        reports = desk.db.check(deep=True)
    bad = [report for report in reports if report.level == "damage"]
    for report in reports:
        place = _place(report.scope, report.session, report.seq)
        screen.emit({"level": report.level, "text": report.text, **place})
        if report.level != "ok" or not args.quiet:
            where = " ".join(f"{key} {value}" for key, value in place.items() if value is not None)
            level = (f"{report.level:6}", LEVEL_STYLES[report.level])
            screen.wrapped(level, "  ", words=report.text + (f" ({where})" if where else ""))
    if not args.quiet or bad:
        took = f"in {time.monotonic() - began:.1f} s"
        screen.line(f"damage found: {plural(len(bad), 'finding')}, {took}" if bad else f"no damage, {took}")
    return FINDING if bad else DONE


def _place(scope: ScopeKey | None, session: str | None, seq: int | None) -> dict[str, Any]:
    return {
        "tenant": None if scope is None else scope.tenant,
        "user": None if scope is None else scope.user,
        "session": session,
        "seq": seq,
    }


class _waiting:  # noqa: N801 - reads as a statement
    """Shows on a terminal how long something takes, twice a second."""

    def __init__(self, screen: Screen, what: str) -> None:
        self._screen, self._what = screen, what
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        began = time.monotonic()
        while not self._over.wait(0.5):
            self._screen.progress(f"{self._what} … {time.monotonic() - began:.0f} s")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._screen.progress("")


# migrate


MIGRATE_FIELDS = {
    "number": "of the migration; they are applied in this order; null for what --row-security and --app-user did",
    "name": "what it is called; row-security or app-user",
    "state": "pending or applied",
    "sql": "what it does; @schema@ stands for the schema's name",
}


def migrate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "url", nargs="?", type=address.given, metavar="URL", help="the store (default: that of --store)"
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--plan", action="store_true", help="show the SQL that is pending, and change nothing")
    which.add_argument("--apply", action="store_true", help="apply it")
    parser.add_argument(
        "--schema", type=address.given, metavar="NAME", help="the schema's name, where it is not segue (PostgreSQL)"
    )
    parser.add_argument(
        "--row-security", action="store_true", help="switch row-level security on, for good (PostgreSQL; with --apply)"
    )
    parser.add_argument(
        "--app-user",
        type=address.given,
        metavar="NAME",
        help="let this user work with the tables, and not change them (PostgreSQL; with --apply)",
    )


def migrate(args: Namespace, screen: Screen) -> int:
    """Show or apply the migrations that a store's schema lacks."""
    url = address.store_url(args.url or args.store)
    address.must_exist(url)
    options = {name: getattr(args, name) for name in ("schema", "row_security", "app_user") if getattr(args, name)}
    if args.plan and options.keys() - {"schema"}:
        raise Invalid("--row-security and --app-user change something: use them with --apply", where="plan")
    done = migrations.plan(url, **options) if args.plan else migrations.apply(url, **options)
    state = "pending" if args.plan else "applied"
    for step in done.steps:
        screen.emit({"number": step.number, "name": step.name, "state": state, "sql": step.sql})
        screen.line((f"-- {step.number:04} {step.name}: {state}", "bold"))
        for line in step.sql.splitlines() if args.plan else ():
            screen.line(line)
    also = {
        "row-security": "row-level security is switched on" if args.row_security else "",
        "app-user": f"{args.app_user} may work with the tables" if args.app_user else "",
    }
    for name, told in also.items():
        if told:
            screen.emit({"number": None, "name": name, "state": "applied", "sql": ""})
            screen.line(told)
    if not done.has_schema:
        screen.line("this store has no schema to migrate: nothing to do")
    elif args.plan:
        count = plural(len(done.steps), "migration")
        screen.line(f"-- {count} pending; segue migrate --apply" if done.steps else "-- up to date: nothing to do")
    else:
        nothing = "no migration was pending" if any(also.values()) else "up to date: nothing to do"
        screen.line(f"{plural(len(done.steps), 'migration')} applied" if done.steps else nothing)
    return DONE


# doctor


Level = Literal["ok", "warn", "damage"]


class Finding(NamedTuple):
    """One thing that doctor looked at: whether it is well, and if not, how to mend it."""

    level: Level
    topic: str
    text: str


def doctor(args: Namespace, screen: Screen) -> int:
    """Look at the installation and at the store, and say what is wrong and how to mend it."""
    url = address.store_url(args.store)
    code = DONE
    for finding in (*_installation(), *_folder(address.file_of(url))):
        code = max(code, _show(finding, screen))
    try:
        with address.desk(args, reads=True) as desk:
            for finding in _settings(desk):
                code = max(code, _show(finding, screen))
    except SegueError as error:
        level: Level = "damage" if isinstance(error, Corrupt) else "warn"
        _show(Finding(level, "store", message(error, scope="")), screen)
        return exit_code(error)
    screen.line(
        ("everything is as it should be", "good")
        if code == DONE
        else ("what is marked warn or damage needs mending", "warn")
    )
    return code


def _show(finding: Finding, screen: Screen) -> int:
    screen.emit(finding._asdict())
    level = (f"{finding.level:6}", LEVEL_STYLES[finding.level])
    screen.wrapped(level, f"  {finding.topic:7}  ", words=finding.text)
    return DONE if finding.level == "ok" else FINDING


def _installation() -> Iterator[Finding]:
    where = f"{platform.system()} {platform.machine()}"
    yield Finding("ok", "segue", f"{_version('segue')} on Python {platform.python_version()} ({where})")
    core = [name for name, extra in _requirements() if not extra]
    yield Finding("ok", "drivers", ", ".join(f"{name} {_version(name)}" for name in core))
    extras: dict[str, list[str]] = {}
    for name, extra in _requirements():
        if extra and name != "segue":
            extras.setdefault(extra, []).append(name)
    for extra, names in sorted(extras.items()):
        missing = [name for name in names if _version(name) == "missing"]
        told = ", ".join(f"{name} {_version(name)}" for name in names)
        yield Finding(
            "ok", "extra", f"{extra}: " + (f"not installed (pip install 'segue[{extra}]')" if missing else told)
        )


_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)")


def _requirements() -> Iterator[tuple[str, str]]:
    """Each distribution that segue names, and the extra that brings it (empty: always)."""
    for line in metadata.requires("segue") or ():
        name, extra = _NAME.match(line), _EXTRA.search(line)
        if name is not None:
            yield name[0], "" if extra is None else extra[1]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def _folder(place: Path | None) -> Iterator[Finding]:
    """Who may replace the files of an embedded store; their own modes are told by the store's check."""
    if place is None or not place.exists():
        return
    folder = place.resolve().parent
    if folder.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        yield Finding("warn", "folder", f"everybody may replace files in {folder}; run: chmod o-w {folder}")


def _settings(desk: Desk) -> Iterator[Finding]:
    can = ", ".join(sorted(desk.db.capabilities)) or "nothing beyond the contract"
    yield Finding("ok", "store", f"{desk.db.name} at {address.shown(desk.url)}: {can}")
    owners = sum(1 for _ in desk.db.scopes())
    yield Finding("ok", "store", f"sessions of {plural(owners, 'owner')}")
    for report in desk.db.check(deep=False):
        yield Finding(report.level, "store", report.text)
