"""Files and folders in: each is recognised by its content, imported or named with the reason, and reported."""

from __future__ import annotations

import errno
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Literal

from segue.errors import Corrupt, Invalid, NotDone, SegueError
from segue.session import Scope

from . import chatgpt, claude_ai, claude_code, codex, gemini_cli, langgraph, llm_logs, messages, openai_agents
from .conversation import Conversation
from .report import FileReport, Outcome, SessionReport
from .source import Progress, Source, printable
from .strangers import name_of
from .writing import Writer

IMPORTERS: tuple[ModuleType, ...] = (
    openai_agents, langgraph, llm_logs, claude_code, codex, gemini_cli, chatgpt, claude_ai, messages,
)  # fmt: skip
"""One module a format, in the order in which they are asked."""

_ZSTD = b"\x28\xb5\x2f\xfd"

FILES_MAX = 1_000_000
"""Most files of one import."""


def import_paths(
    scope: Scope, paths: Iterable[str | PathLike[str]], *, is_dry: bool = False, progress: Progress | None = None
) -> Iterator[FileReport]:
    """
    Import files, and everything in folders, one report a file.

    Args:
        scope: The owner of the sessions.
        paths: Files and folders. In a folder the files come before its folders, so that a transcript
            comes before those of its sub-agents.
        is_dry: Compare and count, and write nothing.
        progress: Told of bytes done.

    Raises:
        Invalid: A path is not there.
        Unavailable: The store cannot work now; what was reported so far is imported.
    """
    for number, path in enumerate(files(paths)):
        if number >= FILES_MAX:
            raise Invalid(f"more than {FILES_MAX:,} files; import them folder by folder", where="paths")
        yield import_file(scope, path, is_dry=is_dry, progress=progress)


def files(paths: Iterable[str | PathLike[str]]) -> Iterator[Path]:
    """
    Files, and everything in folders, in a folder the files before its folders.

    A folder that cannot be looked into, and what cannot be looked at, is there as it is: reading it says why.

    Raises:
        Invalid: A path is not there.
    """
    for given in paths:
        path = Path(given)
        kind = _kind(path)
        if kind == "folder":
            yield from _below(path)
        elif kind:
            yield path
        else:
            raise Invalid(f"no file or folder {printable(path)!r}", where="paths")


def _below(folder: Path) -> Iterator[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        yield folder
        return
    kinds = {path: _kind(path) for path in inside}
    yield from (path for path, kind in kinds.items() if kind in {"file", "closed"})
    for path, kind in kinds.items():
        if kind == "folder" and not path.is_symlink():
            yield from _below(path)


def _kind(path: Path) -> Literal["file", "folder", "other", "closed", ""]:
    """What is at a place: ``closed`` may not be looked at, and the empty word is nothing."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return "closed" if error.errno in {errno.EACCES, errno.EPERM, errno.EIO} else ""
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def import_file(
    scope: Scope, path: str | PathLike[str], *, is_dry: bool = False, progress: Progress | None = None
) -> FileReport:
    """
    Import one file: recognise it by its content, add what is new, and tell what was found.

    Importing it again adds nothing; when it has grown, what is new; when it was rewritten, a fork.

    Args:
        scope: The owner of the sessions.
        path: The file.
        is_dry: Compare and count, and write nothing.
        progress: Told of bytes done.

    Raises:
        Unavailable: The store cannot work now; import it again to go on.
    """
    report = FileReport(printable(path))
    try:
        source = Source(Path(path), progress)
        report.bytes = source.size
        importer = recognise(source)
    except OSError as error:
        what = "folder" if _kind(Path(path)) == "folder" else "file"
        report.outcome, report.reason = "failed", f"the {what} cannot be read: {error.strerror or error}"
        return report
    except sqlite3.Error as error:
        report.outcome, report.reason = "failed", f"the database cannot be read: {error}"
        return report
    if importer is None and source.start.startswith(_ZSTD):
        return _bundle(scope, source, report, is_dry=is_dry)
    if importer is None:
        report.reason = name_of(source)
        return report
    report.format = importer.NAME
    if source.is_damaged:
        report.note("broken", 0, "the document is damaged; what could be read of it is here")
    try:
        for talk in importer.read(source, report):
            _write(scope, talk, report, is_dry=is_dry)
    except OSError as error:
        report.outcome, report.reason = "failed", f"the file cannot be read to its end: {error.strerror or error}"
    except sqlite3.Error as error:
        report.outcome, report.reason = "failed", f"the database cannot be read to its end: {error}"
    else:
        report.outcome = _outcome(report)
    return report


def _bundle(scope: Scope, source: Source, report: FileReport, *, is_dry: bool) -> FileReport:
    """A bundle of Segue's own."""
    from segue.exporters.bundle import bring_bundle

    try:
        with source.path.open("rb") as file:
            brought = bring_bundle(scope, file, is_dry=is_dry)
    except (NotDone, Corrupt) as error:
        if isinstance(error, NotDone) and not isinstance(error, Invalid) and not _is_of_one_session(error):
            raise
        report.outcome, report.reason = "failed", str(error)
        return report
    report.format = "bundle"
    report.outcome = "imported" if any(one.is_new or one.entries for one in brought) else "unchanged"
    for one in brought:
        info = None if one.session is None else one.session.refresh()
        key, title, format = (one.row[name] or "" for name in ("key", "title", "format"))
        if info is not None:
            key, title, format = info.key or "", info.title, info.format
        told = SessionReport("" if info is None else info.id, key, title, format)
        told.messages, told.entries = one.messages, one.entries
        report.sessions.append(told)
    return report


def has_conversations(paths: Iterable[str | PathLike[str]]) -> bool:
    """
    Whether an import of the paths into an empty store would write anything. Of each file only as much is read as tells.

    Raises:
        Invalid: A path is not there.
    """
    return any(map(_has_conversation, islice(files(paths), FILES_MAX)))


def _has_conversation(path: Path) -> bool:
    from segue.exporters.bundle import is_bundle

    try:
        source = Source(path)
        importer = recognise(source)
        if importer is not None:
            return any(True for _ in importer.read(source, FileReport("")))
        with path.open("rb") as file:
            return source.start.startswith(_ZSTD) and is_bundle(file)
    except (OSError, sqlite3.Error):
        return False  # the import says why


def recognise(source: Source) -> ModuleType | None:
    """The importer that knows the file, or None."""
    return next((importer for importer in IMPORTERS if importer.recognises(source)), None)


def _outcome(report: FileReport) -> Outcome:
    if report.counts["not-written"]:
        report.reason = report.reason or "a session could not be written; see the defects"
        return "failed"
    if not report.sessions:
        report.reason = "there is no conversation in it"
        return "skipped"
    return "imported" if report.entries else "unchanged"


def _write(scope: Scope, talk: Conversation, report: FileReport, *, is_dry: bool) -> None:
    """One conversation, then those that were found inside it. One that cannot be written stops no other."""
    writer = Writer(scope, talk, report, is_dry=is_dry)
    try:
        report.sessions.append(writer.run())
        report.records += writer.done.records
    except NotDone as error:
        if not isinstance(error, Invalid) and not _is_of_one_session(error):
            raise
        report.note("not-written", 0, f"{talk.key}: {error}")
    if talk.later is not None:
        for inner in talk.later():
            _write(scope, inner, report, is_dry=is_dry)


def _is_of_one_session(error: SegueError) -> bool:
    from segue.errors import Archived, Busy, Conflict, NotFound

    return isinstance(error, Archived | Busy | Conflict | NotFound)
