"""The way to the server: a client of the driver, what it is told to demand, and what it has to find."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import pymongo
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import MongoClient, ReadPreference
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import ConfigurationError, InvalidURI, PyMongoError, ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from segue.errors import Closed, Invalid, ReadOnly, Unavailable

from ._mongodb_errors import STANDALONE, translate
from ._mongodb_rows import Document

Session: TypeAlias = ClientSession

WIRE_VERSION_MIN = 13
"""MongoDB 5.0, the first with snapshot reads outside of transactions."""

_CLOSE_SECONDS = 1.0
_DEFAULT_DATABASE = "segue"
_NAME = re.compile(r"""[^/\\. "$*<>:|?\x00]{1,63}""")
_MAJORITY = ReadConcern("majority")
_OPTIONS: CodecOptions[Document] = CodecOptions(document_class=dict, datetime_conversion=DatetimeConversion.DATETIME_MS)


class Link:
    """
    Where the sessions are. Knows the password and never shows it.

    Whatever the URL asks for, writes are acknowledged by the majority from its journals, and readings
    come from the primary and show what the majority has.

    Attributes:
        where: Hosts and database, for messages.
        prefix: What the names of the collections begin with.
    """

    def __init__(
        self,
        url: str,
        *,
        database: str | None,
        prefix: str,
        pool_size: int,
        connect_timeout: timedelta,
        timeout: timedelta,
    ) -> None:
        self._url = url
        self._name, self._seeds, self.where = _parse(url, database)
        self.prefix = prefix
        self._durable = WriteConcern("majority", wtimeout=_ms(timeout), j=True)
        self._settings: dict[str, Any] = {
            "serverSelectionTimeoutMS": _ms(connect_timeout),
            "connectTimeoutMS": _ms(connect_timeout),
            "waitQueueTimeoutMS": _ms(connect_timeout),
            "socketTimeoutMS": _ms(timeout),
            "maxPoolSize": pool_size,
            "retryReads": True,
            "retryWrites": True,
            "appname": "segue",
        }
        self._making = threading.Lock()
        self._clients: dict[int, MongoClient[Document]] = {}  # by process: what a fork inherits is never used
        self._is_closed = False
        self._commit_ms = _ms(timeout)

    @property
    def client(self) -> MongoClient[Document]:
        """This process's client."""
        if self._is_closed:
            raise Closed("this handle on the store was closed; open another")
        client = self._clients.get(os.getpid())
        if client is None:
            with self._making:
                client = self._clients.get(os.getpid()) or self._connect()
                self._clients[os.getpid()] = client
        return client

    def begin_in_child(self) -> None:
        """After a fork: the lock may have been held by a thread that is not here."""
        self._making = threading.Lock()

    def _connect(self) -> MongoClient[Document]:
        try:
            return MongoClient(self._url, **self._settings)
        except (PyMongoError, ValueError, TypeError) as error:
            raise Invalid(f"the driver does not take this URL: {type(error).__name__}", where="url") from None

    @property
    def database(self) -> Database[Document]:
        """The database, with what is demanded of every call."""
        return self.client.get_database(
            self._name,
            codec_options=_OPTIONS,
            read_preference=ReadPreference.PRIMARY,
            read_concern=_MAJORITY,
            write_concern=self._durable,
        )

    @property
    def sessions(self) -> Collection[Document]:
        """One document a session; a tombstone stays of an erased one."""
        return self.database[f"{self.prefix}.sessions"]

    @property
    def entries(self) -> Collection[Document]:
        """One document an entry."""
        return self.database[f"{self.prefix}.entries"]

    @property
    def marks(self) -> Collection[Document]:
        """One document that says by which format all this was written."""
        return self.database[f"{self.prefix}.format"]

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A transaction, which is aborted unless it was committed."""
        with self.client.start_session() as session:
            session.start_transaction(
                read_concern=ReadConcern("snapshot"),
                write_concern=self._durable,
                read_preference=ReadPreference.PRIMARY,
                max_commit_time_ms=self._commit_ms,
            )
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """Readings that all see one moment, of what the majority has."""
        with self.client.start_session(snapshot=True) as session:
            yield session

    def hello(self) -> Document:
        """
        What the server says of itself.

        Raises:
            Unavailable: There is none, or it is a standalone or too old; the message says which.
            ReadOnly: The URL leads to a secondary alone.
        """
        try:
            said = self.client.admin.command("hello")
        except ServerSelectionTimeoutError as error:
            self._look_for_standalone()
            raise translate(error, self.where) from error
        except PyMongoError as error:
            raise translate(error, self.where) from error
        if not _is_cluster(said):
            raise Unavailable(f"MongoDB at {self.where}: {STANDALONE}")
        if said.get("maxWireVersion", 0) < WIRE_VERSION_MIN:
            raise Unavailable(f"MongoDB at {self.where}: the server is older than 5.0; upgrade it")
        if not said.get("isWritablePrimary"):
            raise ReadOnly(
                f"MongoDB at {self.where}: this member takes no writes (directConnection=true to a secondary?); "
                "name the replica set in the URL: mongodb://host/?replicaSet=rs0"
            )
        return said

    def _look_for_standalone(self) -> None:
        """The driver leaves a standalone out of a replica set without a word; so ask the servers themselves."""
        for host, port in self._seeds:
            settings = {**self._settings, "directConnection": True, "replicaSet": None}
            settings = {name: value for name, value in settings.items() if value is not None}
            try:
                with MongoClient[Document](host, port, **settings) as client:
                    said = client.admin.command("hello")
            except PyMongoError:
                continue
            if not _is_cluster(said):
                raise Unavailable(f"MongoDB at {self.where}: {STANDALONE}")

    def close(self) -> None:
        """Release the connections. Idempotent."""
        self._is_closed = True
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            with pymongo.timeout(_CLOSE_SECONDS):  # the driver says good-bye to the server, which may be gone
                client.close()


def _is_cluster(said: Document) -> bool:
    return "setName" in said or said.get("msg") == "isdbgrid"


def _ms(limit: timedelta) -> int:
    return max(1, limit // timedelta(milliseconds=1))


def _parse(url: str, database: str | None) -> tuple[str, list[tuple[str, int]], str]:
    """Database, seeds, and what messages call them. Nothing of a URL that cannot be read is repeated."""
    try:
        parsed = parse_uri(url, validate=True, warn=False)
        name = database or parsed["database"] or _DEFAULT_DATABASE
        seeds = [(host, port or 27017) for host, port in parsed["nodelist"]]
        is_name = _NAME.fullmatch(name) is not None
    except (InvalidURI, ConfigurationError, ValueError, TypeError):
        if url.startswith("mongodb+srv://"):
            raise Unavailable(
                "the hosts of this mongodb+srv:// URL cannot be looked up; is its name right, and does the name server "
                "answer? mongodb:// with the hosts themselves needs none"
            ) from None
        is_name = False
    if not is_name:
        raise Invalid(
            "this is no URL of MongoDB; it should be mongodb://user:password@host:27017/database?replicaSet=rs0, "
            "with special characters in the password percent-encoded (@ is %40)",
            where="url",
        )
    return name, seeds, ",".join(f"{host}:{port}" for host, port in seeds) + f"/{name}"
