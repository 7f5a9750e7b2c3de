"""
Writing to the folder: each write is durable when it returns, or has left nothing behind.

Called with the folder's lock held. When the disk refuses in the middle, what was written is cut off
again. When a sync fails, nobody knows what the disk holds: the outcome is unknown, and the handle
writes no more.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from segue.errors import OutcomeUnknown, ReadOnly, Unavailable
from segue.model import ScopeKey, from_us

from ._jsonl_disk import Disk, Folder, Place, mapped, typed, write_all
from ._jsonl_names import file_of, session_file, torn_file
from ._jsonl_shelf import Shelf
from ._jsonl_table import Table

SYNCS_ALONE = 3
"""From how many files on they are synced at the same time."""

THREADS_MAX = 8
"""Most syncs at a time."""


@dataclass(slots=True)
class Write:
    """
    Something to be added to a file, in one write.

    Attributes:
        scope: Whose file it is.
        file: Its name.
        data: Whole lines.
        end: How long the file is now; None makes it.
        session: The session whose table it changes, or None.
    """

    scope: ScopeKey
    file: str
    data: bytes
    end: int | None
    session: str | None = None
    place: Place = field(init=False)
    opened: int = field(init=False)


class Writer:
    """
    The hand that writes.

    Attributes:
        refuses: Why it writes no more, or empty.
    """

    def __init__(self, folder: Folder, disk: Disk, shelf: Shelf) -> None:
        self._folder = folder
        self._disk = disk
        self._shelf = shelf
        self.refuses = ""
        self._threads: ThreadPoolExecutor | None = None
        self._proven: set[ScopeKey] = set()  # scopes whose directories are known to be durable

    def check_may_write(self) -> None:
        """``ReadOnly`` after an error that left the outcome of a write unknown."""
        if self.refuses:
            raise ReadOnly(f"{self.refuses}; look to the disk, then open the store again")

    # What others wrote.

    def prove(self, tables: Sequence[tuple[ScopeKey, Table]]) -> None:
        """
        Make files durable that this handle did not write.

        A process that was killed may have left lines that nobody synced. They are read like any other, so
        what rests on them must not be acknowledged before they are on the disk.
        """
        for scope, table in tables:
            if table.proven != table.end:
                file = session_file(table.summary.session)
                with self._folder.scope(scope) as place, place.reading(file) as opened:
                    self._prove(scope, place, opened)
                table.proven = table.end

    def _prove(self, scope: ScopeKey, place: Place, opened: int | None) -> None:
        try:
            if opened is not None:
                self._disk.sync(opened)
                place.sync()
            if scope not in self._proven:
                with self._folder.top.enter(file_of(scope.tenant)) as tenant:
                    tenant.sync()
                self._folder.top.sync()
                self._proven.add(scope)
        except OSError as error:
            raise self._unknown(error, place.path) from error

    # Adding lines.

    def append(self, writes: Sequence[Write]) -> None:
        """
        Add to several files; all of it is durable on return.

        Raises:
            Unavailable: The disk refused; nothing is left of any of them.
            OutcomeUnknown: The disk failed; each may have been written.
        """
        if not writes:
            return
        with ExitStack() as stack:
            done: list[Write] = []
            is_durable = False
            try:
                self._write(stack, writes, done)
                self._sync(done)
                is_durable = True
            finally:
                self._publish(writes, is_durable=is_durable)

    def _write(self, stack: ExitStack, writes: Sequence[Write], done: list[Write]) -> None:
        try:
            for write in writes:
                write.place = stack.enter_context(self._folder.scope(write.scope, make=True))
                write.opened = write.place.opened_to_append(write.file, make=write.end is None)
                stack.callback(os.close, write.opened)
                self._announce(write)
                done.append(write)
                write_all(self._disk, write.opened, write.data)
                self._prove(write.scope, write.place, None)
        except OSError as error:
            self._revert(done)
            if error.errno == errno.EIO:
                raise self._unknown(error, write.file) from error
            raise typed(error, f"{self._folder.path}: {write.file}") from error
        except BaseException:
            self._revert(done)
            raise

    def _announce(self, write: Write) -> None:
        """Readers of this handle see nothing behind the old end until it is durable."""
        size = os.fstat(write.opened).st_size
        if size != (write.end or 0):
            raise Unavailable(
                f"{write.place.shown(write.file)} grew while it was locked: another program writes to it; stop that one"
            )
        if write.session is not None:
            with self._shelf.lock:
                self._shelf.in_flight[write.scope, write.session] = size

    def _sync(self, done: Sequence[Write]) -> None:
        try:
            self._sync_files([write.opened for write in done])
            for place in {write.place.path: write.place for write in done if write.end is None}.values():
                place.sync()
        except OSError as error:
            # The pages that were not written count as clean now; no later sync would write them. Cut off,
            # they cannot be taken for stored by anyone.
            with suppress(OSError):
                for write in done:
                    self._disk.truncate(write.opened, write.end or 0)
            raise self._unknown(error, ", ".join(write.file for write in done[:3])) from error

    def _sync_files(self, files: Sequence[int]) -> None:
        if len(files) < SYNCS_ALONE:
            for file in files:
                self._disk.sync(file)
            return
        # The system puts syncs that wait at the same time into one write of its journal: many cost hardly more
        # than one.
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="segue-sync")
        syncs = [self._threads.submit(self._disk.sync, file) for file in files]
        wait(syncs)
        for sync in syncs:
            sync.result()

    def close(self) -> None:
        """Let go of the threads. Idempotent."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def begin_anew(self) -> None:
        """In a forked child: the parent's threads are not there."""
        self._threads = None

    def _revert(self, done: Sequence[Write]) -> None:
        try:
            for write in done:
                if write.end is None:
                    write.place.remove(write.file)
                    write.place.sync()
                else:
                    self._disk.truncate(write.opened, write.end)
                    self._disk.sync(write.opened)
        except OSError as error:
            raise self._unknown(error, write.file) from error

    def _publish(self, writes: Sequence[Write], *, is_durable: bool) -> None:
        """Let readers of this handle see what is durable now, as any other reads it: from the file."""
        for write in writes:
            if write.session is None:
                continue
            with self._shelf.lock:
                self._shelf.in_flight.pop((write.scope, write.session), None)
                self._shelf.known(write.scope).changed += 1
                with suppress(OSError), self._folder.scope(write.scope) as place:
                    table = self._shelf.table(place, write.scope, write.session)
                    if table is not None and is_durable:
                        self._check_is_read_back(write, table)

    def _check_is_read_back(self, write: Write, table: Table) -> None:
        end = (write.end or 0) + len(write.data)
        if table.end < end:
            self.refuses = f"{write.file} was written up to byte {end}, and is read up to byte {table.end}"
            raise OutcomeUnknown(f"{self.refuses}: open the store again and call with the same ids")
        table.proven = table.end

    def _unknown(self, error: OSError, what: str) -> OutcomeUnknown:
        self.refuses = f"{self._folder.path}: {what}: {os.strerror(error.errno or 0)}"
        return OutcomeUnknown(
            f"{self.refuses}; it may or may not be stored: open the store again and call with the same ids"
        )

    # Writing anew.

    @contextmanager
    def rewriting(self, place: Place) -> Iterator[None]:
        """
        For replacing and removing files of a directory: durable at the end.

        Raises:
            Unavailable: The disk refused the new content; the old one stands.
            OutcomeUnknown: The disk failed.
        """
        try:
            yield
        except OSError as error:
            if error.errno == errno.EIO:
                raise self._unknown(error, place.path) from error
            raise typed(error, place.path) from error
        try:
            place.sync()
        except OSError as error:
            raise self._unknown(error, place.path) from error

    def replace(self, place: Place, file: str, pieces: Iterable[bytes]) -> None:
        """A new content for a file, durable."""
        with self.rewriting(place):
            place.replace(file, pieces)

    # What a write of another process left.

    def mend(self, place: Place, table: Table, now: int) -> bool:
        """
        Set aside what a write left torn at the end of a session's file, so that the next one begins on a line.

        Returns:
            Whether anything was done: the table is to be read again.
        """
        file = session_file(table.summary.session)
        if table.missing_feed is not None:
            with mapped(place.shown(file)):
                self._mend_feed(place, file, table.missing_feed)
            return True
        if table.torn:
            self.set_aside(place, table, now)
            return True
        return False

    def set_aside(self, place: Place, table: Table, now: int) -> None:
        """Move what is torn, or a file that holds no session, out of the way and keep it."""
        file = session_file(table.summary.session)
        with mapped(place.shown(file)):
            self._set_aside(place, file, table, now)

    def _mend_feed(self, place: Place, file: str, at: int) -> None:
        opened = self._disk.open(file, os.O_WRONLY, place.fd)
        try:
            self._disk.overwrite(opened, b"\n", at)
            self._disk.truncate(opened, at + 1)
            self._disk.sync(opened)
        finally:
            os.close(opened)

    def _set_aside(self, place: Place, file: str, table: Table, now: int) -> None:
        aside = torn_file(file, from_us(now))
        if not table.is_there:
            self._disk.rename(file, aside, place.fd)
            place.sync()
            return
        with place.reading(file) as opened:
            torn = os.pread(opened, table.torn, table.end)
        place.replace(aside, [torn])
        place.sync()
        opened = self._disk.open(file, os.O_WRONLY, place.fd)
        try:
            self._disk.truncate(opened, table.end)
            self._disk.sync(opened)
        finally:
            os.close(opened)
