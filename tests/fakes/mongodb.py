"""
A strict stand-in for a MongoDB replica set of one member: the wire protocol on loopback, no mongod.

The real driver talks to it. It knows the commands and options that the store uses and refuses all else
loudly (``Server.unheard``): what a mongod does with the rest is not tried here. Transactions have the
server's rules: snapshots, the first writer wins, an error ends a transaction, the one of a client that
vanished stays in the way for a while. ``Server.faults`` are what a test wants to go wrong.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.timestamp import Timestamp

from .mongodb_data import (
    Collection,
    Data,
    Index,
    Refused,
    Transaction,
    Unheard,
    batches,
    matches,
    order,
    projected,
)

OPTIONS: CodecOptions = CodecOptions(document_class=dict, datetime_conversion=DatetimeConversion.DATETIME_MS)
FIRST_BATCH = 101
_OP_REPLY, _OP_QUERY, _OP_MSG = 1, 2004, 2013
_EPOCH = 1_750_000_000  # of the cluster's time, which counts commits


@dataclass
class Fault:
    """
    What goes wrong at the next ``times`` calls of a command, after ``skip`` that go well.

    ``cut`` "before" drops the connection instead of doing it, "after" does it and drops the connection
    instead of answering. ``code`` answers with an error; ``done`` says whether it is done all the same.
    ``run`` is called first, by the connection's thread: it may use another store.
    """

    command: str
    times: int = 1
    skip: int = 0
    cut: str | None = None
    code: int | None = None
    labels: tuple[str, ...] = ()
    done: bool = False
    run: Callable[[], object] | None = None


@dataclass
class _Session:
    number: int = -1
    state: str = "none"  # open, committed, aborted
    transaction: Transaction | None = None
    replies: dict = field(default_factory=dict)  # of retryable writes


class _Cut(Exception):
    pass


class Server:
    """
    A replica set of one member.

    Attributes:
        unheard: Texts of all that it does not know; a test that finds one has found a gap in the stand-in, or a fault.
        commands: Names of all commands that it did, in order, without hello.
        faults: What a test wants to go wrong.
        weather: Asked for a fault at each command that no fault is for.
        idle_seconds: How long an open transaction stays whose client is silent. A mongod ends each, silent or not,
            after ``transactionLifetimeLimitSeconds`` (60); that would make tests depend on the machine's load.
        elections: How many of the next hellos say that it is no primary.
        hello_more: What its hello says besides; None takes a field away.
    """

    def __init__(self, *, idle_seconds: float = 60.0) -> None:
        self.idle_seconds = idle_seconds
        self.unheard: list[str] = []
        self.commands: list[str] = []
        self.faults: list[Fault] = []
        self.weather: Callable[[str], Fault | None] | None = None
        self.elections = 0
        self.hello_more: dict = {}
        self.config: dict = {"writeConcernMajorityJournalDefault": True}
        self.engine: dict = {"name": "wiredTiger", "persistent": True}
        self.data = Data()
        self.shift_ms = 0
        self._sessions: dict[bytes, _Session] = {}
        self._cursors: dict[int, list[list[dict]]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._door = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/segue?replicaSet=rs0"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self.cut_all()

    def cut_all(self) -> None:
        """Drop all connections."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def end_open_transactions(self) -> None:
        """As the server does with those that are too old."""
        with self._lock:
            for session in self._sessions.values():
                if session.transaction is not None:
                    self._end(session, "aborted")

    def documents(self, collection: str) -> list[dict]:
        """What a collection holds now, behind the store's back."""
        found = self.data.collections[f"segue.{collection}"]
        return [document for id in found.versions if (document := found.latest(id)[1]) is not None]

    def plant(self, collection: str, document: dict | None, *, id=None) -> None:
        """Put a document there (None: away), past all checks."""
        found = self.data.collections[f"segue.{collection}"]
        with self._lock:
            self.data.moment += 1
            found.put(document["_id"] if document else id, self.data.moment, document)

    # Connections.

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._door.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        self._connections.add(connection)
        with contextlib.suppress(OSError, _Cut), connection, connection.makefile("rb") as stream:
            while head := stream.read(16):
                length, request, _, opcode = struct.unpack("<iiii", head)
                connection.sendall(self._answer(request, opcode, stream.read(length - 16)))
        self._connections.discard(connection)

    def _answer(self, request: int, opcode: int, body: bytes) -> bytes:
        if opcode == _OP_QUERY:  # a driver's first hello to a server that it does not know
            end = body.index(b"\0", 4)
            command = bson.decode(body[end + 9 :], OPTIONS)
            if next(iter(command)).lower() not in ("ismaster", "hello"):
                raise _Cut
            answer = struct.pack("<iqii", 8, 0, 0, 1) + bson.encode(self._reply(command))
            return struct.pack("<iiii", len(answer) + 16, 0, request, _OP_REPLY) + answer
        if opcode != _OP_MSG:
            self.unheard.append(f"opcode {opcode}")
            raise _Cut
        answer = struct.pack("<iB", 0, 0) + bson.encode(self._reply(_message(body)))
        return struct.pack("<iiii", len(answer) + 16, 0, request, _OP_MSG) + answer

    def _reply(self, command: dict) -> dict:
        name = next(iter(command))
        if name.lower() in ("hello", "ismaster"):
            return self._hello()
        with self._lock:
            fault = self._fault(name)
        if fault and fault.run:
            fault.run()
        with self._lock:
            if fault and fault.cut == "before":
                raise _Cut
            if fault and fault.code and not fault.done:
                self._end_transaction_of(command, keep=name == "commitTransaction")
                return _error(Refused(fault.code, "a fault that the test asked for", *fault.labels))
            reply = self._do(name, command)
            if fault and fault.cut == "after":
                raise _Cut
            if fault and fault.code:
                return _error(Refused(fault.code, "a fault that the test asked for", *fault.labels))
            return reply

    def _fault(self, name: str) -> Fault | None:
        fault = next((each for each in self.faults if each.command == name), None)
        if fault is None:
            return self.weather(name) if self.weather else None
        if fault.skip:
            fault.skip -= 1
            return None
        fault.times -= 1
        if not fault.times:
            self.faults.remove(fault)
        return fault

    def _do(self, name: str, command: dict) -> dict:
        self._end_abandoned()
        try:
            handler = getattr(self, f"_do_{name}", None)
            if handler is None:
                raise Unheard(f"the command {name}")
            self.commands.append(name)
            return {**handler(_Call(self, name, command)), "ok": 1.0, "operationTime": self.time()}
        except Refused as error:
            self._end_transaction_of(command)
            return _error(error)
        except Exception as error:  # a fault of the stand-in's own is one too
            self.unheard.append(f"{name}: {error}" if isinstance(error, Unheard) else traceback.format_exc())
            self._end_transaction_of(command)
            return _error(Refused(99_999, f"the stand-in does not know this: {error}"))

    def time(self, moment: int | None = None) -> Timestamp:
        return Timestamp(_EPOCH, self.data.moment if moment is None else moment)

    def now(self) -> DatetimeMS:
        return DatetimeMS(time.time_ns() // 1_000_000 + self.shift_ms)

    def _hello(self) -> dict:
        is_primary = self.elections < 1
        self.elections -= not is_primary
        me = f"127.0.0.1:{self.port}"
        said = {
            "helloOk": True, "isWritablePrimary": is_primary, "ismaster": is_primary, "secondary": not is_primary,
            "setName": "rs0", "setVersion": 1, "hosts": [me], "primary": me, "me": me, "maxBsonObjectSize": 16_777_216,
            "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000, "localTime": self.now(),
            "logicalSessionTimeoutMinutes": 30, "minWireVersion": 0, "maxWireVersion": 21, "readOnly": False,
            "ok": 1.0, **self.hello_more,
        }  # fmt: skip
        return {name: value for name, value in said.items() if value is not None}

    # Sessions and transactions.

    def session(self, command: dict) -> _Session:
        return self._sessions.setdefault(bytes(command["lsid"]["id"]), _Session())

    def _end_abandoned(self) -> None:
        for session in self._sessions.values():
            open_ = session.transaction
            if open_ is not None and time.monotonic() - open_.used > self.idle_seconds:
                self._end(session, "aborted")

    def _end_transaction_of(self, command: dict, *, keep: bool = False) -> None:
        """Any error ends the transaction."""
        if "autocommit" in command and not keep and self.session(command).state == "open":
            self._end(self.session(command), "aborted")

    def _end(self, session: _Session, state: str) -> None:
        assert session.transaction is not None
        (self.data.commit if state == "committed" else self.data.abort)(session.transaction)
        session.transaction, session.state = None, state

    def _do_commitTransaction(self, call: _Call) -> dict:
        call.takes("writeConcern", "maxTimeMS", "recoveryToken")
        call.demand_durable()
        session = self.session(call.command)
        if session.number != call.command["txnNumber"] or session.state not in ("open", "committed"):
            raise Refused(251, "Transaction has been aborted or is unknown", "TransientTransactionError")
        if session.state == "open":
            self._end(session, "committed")
        return {}

    def _do_abortTransaction(self, call: _Call) -> dict:
        call.takes("writeConcern", "recoveryToken")
        session = self.session(call.command)
        if session.number != call.command["txnNumber"] or session.state != "open":
            raise Refused(251, "Transaction has been aborted or is unknown", "TransientTransactionError")
        self._end(session, "aborted")
        return {}

    def _do_endSessions(self, call: _Call) -> dict:
        call.takes("maxTimeMS")
        return {}

    # Readings.

    def _do_find(self, call: _Call) -> dict:
        call.takes("filter", "sort", "limit", "projection", "batchSize", "singleBatch", "readConcern")
        command = call.command
        with call.seen() as seen:
            sort = list(command.get("sort", {}).items())
            found = self.data.find(seen, call.collection, command["filter"], sort)
            if command.get("limit"):
                found = found[: command["limit"]]
            found = [projected(document, command.get("projection")) for document in found]
            return self._cursor(call, found, seen.moment)

    def _do_aggregate(self, call: _Call) -> dict:
        call.takes("pipeline", "cursor", "readConcern")
        match, *stages = call.command["pipeline"]
        (filter,) = match.values()
        sort = next((list(stage["$sort"].items()) for stage in stages[:1] if "$sort" in stage), [])
        with call.seen() as seen:
            found = self.data.find(seen, call.collection, filter, sort)
            for stage in stages[1 if sort else 0 :]:
                found = self._stage(stage, found)
            return self._cursor(call, found, seen.moment)

    def _stage(self, stage: dict, found: list[dict]) -> list[dict]:
        ((name, what),) = stage.items()
        if name == "$limit" and what > 0:
            return found[:what]
        if name == "$set" and all(value == "$$NOW" for value in what.values()):
            return [{**document, **dict.fromkeys(what, self.now())} for document in found]
        if name == "$group" and what.keys() == {"_id"}:
            groups = [{name: document[path[1:]] for name, path in what["_id"].items()} for document in found]
            distinct = {repr(order(group)): {"_id": group} for group in groups}
            return list(distinct.values())
        if name == "$sort":
            for path, way in reversed(what.items()):
                outer, _, inner = path.partition(".")
                found = sorted(found, key=lambda document: order(document[outer][inner]), reverse=way < 0)
            return found
        raise Unheard(f"the stage {stage}")

    def _cursor(self, call: _Call, found: list[dict], moment: int) -> dict:
        first, *rest = batches(found, call.command.get("batchSize") or FIRST_BATCH)
        number = 0
        if rest and not call.command.get("singleBatch"):
            number = next(self._numbers)
            self._cursors[number] = rest
        cursor: dict = {"id": Int64(number), "ns": f"{call.command['$db']}.{call.collection}", "firstBatch": first}
        if call.is_snapshot:
            cursor["atClusterTime"] = self.time(moment)
        return {"cursor": cursor}

    def _do_getMore(self, call: _Call) -> dict:
        call.takes("collection", "batchSize", "readConcern")  # a snapshot session sends it with everything
        number = call.command["getMore"]
        if number not in self._cursors:
            raise Refused(43, f"cursor id {number} not found")
        batch, *rest = self._cursors.pop(number)
        if rest:
            self._cursors[number] = rest
        namespace = f"{call.command['$db']}.{call.command['collection']}"
        return {"cursor": {"id": Int64(number if rest else 0), "ns": namespace, "nextBatch": batch}}

    def _do_killCursors(self, call: _Call) -> dict:
        call.takes("cursors")
        for number in call.command["cursors"]:
            self._cursors.pop(number, None)
        return {"cursorsKilled": call.command["cursors"]}

    # Writes.

    def _do_insert(self, call: _Call) -> dict:
        call.takes("documents", "ordered", "writeConcern", "readConcern")

        def write(by: Transaction) -> dict:
            for document in call.command["documents"]:
                self.data.insert(by, call.collection, document)
            return {"n": len(call.command["documents"])}

        return call.write(write)

    def _do_update(self, call: _Call) -> dict:
        call.takes("updates", "ordered", "writeConcern", "readConcern")

        def write(by: Transaction) -> dict:
            matched = changed = 0
            for each in call.command["updates"]:
                if each.keys() - {"q", "u", "multi", "upsert"} or each.get("upsert"):
                    raise Unheard(f"an update with {sorted(each)}")
                done = self.data.update(by, call.collection, each["q"], each["u"], multi=each.get("multi", False))
                matched, changed = matched + done[0], changed + done[1]
            return {"n": matched, "nModified": changed}

        return call.write(write)

    def _do_delete(self, call: _Call) -> dict:
        call.takes("deletes", "ordered", "writeConcern", "readConcern")

        def write(by: Transaction) -> dict:
            if any(each.keys() != {"q", "limit"} or each["limit"] for each in call.command["deletes"]):
                raise Unheard(f"the deletes {call.command['deletes']}")
            return {"n": sum(self.data.delete(by, call.collection, each["q"]) for each in call.command["deletes"])}

        return call.write(write)

    # Collections.

    def _do_create(self, call: _Call) -> dict:
        call.takes("writeConcern")
        call.demand_durable()
        if call.collection in self.data.collections:
            raise Refused(48, f"namespace {call.collection} already exists")
        self.data.collections[call.collection] = Collection(call.collection, {})
        return {}

    def _do_createIndexes(self, call: _Call) -> dict:
        call.takes("indexes", "writeConcern")
        call.demand_durable()
        made = [self.data.make_index(call.collection, _index(each)) for each in call.command["indexes"]]
        return {"createdCollectionAutomatically": False, "note": f"{sum(made)} made"}

    def _do_listIndexes(self, call: _Call) -> dict:
        call.takes("cursor")
        found = [
            {**index.spec(), **getattr(index, "more", {})} for index in self.data.collections[call.collection].indexes
        ]
        return self._cursor(call, found, self.data.moment)

    def _do_listCollections(self, call: _Call) -> dict:
        call.takes("cursor", "filter", "nameOnly")
        found = [
            {"name": each.name, "type": "collection", "options": each.options}
            for each in self.data.collections.values()
            if matches({"name": each.name}, call.command.get("filter", {}))
        ]
        return self._cursor(call, found, self.data.moment)

    # What the doctor asks.

    def _do_buildInfo(self, call: _Call) -> dict:
        call.takes()
        return {"version": "7.0.0-stand-in"}

    def _do_replSetGetConfig(self, call: _Call) -> dict:
        call.takes()
        return {"config": {"_id": "rs0", "version": 1, **self.config}}

    def _do_serverStatus(self, call: _Call) -> dict:
        call.takes()
        return {"storageEngine": self.engine}


class _Call:
    """One command: what may be in it, and what it sees."""

    def __init__(self, server: Server, name: str, command: dict) -> None:
        self.server, self.name, self.command = server, name, command
        self.collection = str(command[name])

    def takes(self, *fields: str) -> None:
        always = {self.name, "$db", "lsid", "$clusterTime", "$readPreference"}
        numbers = {"txnNumber", "autocommit", "startTransaction"}
        unknown = self.command.keys() - always - numbers - set(fields)
        if unknown:
            raise Unheard(f"the options {sorted(unknown)}")
        if self.command.get("$readPreference", {}).get("mode", "primary") not in ("primary", "primaryPreferred"):
            raise Unheard(f"the read preference {self.command['$readPreference']}")

    def demand_durable(self) -> None:
        wanted = self.command.get("writeConcern", {})
        if (wanted.get("w"), wanted.get("j")) != ("majority", True):
            raise Unheard(f"the write concern {wanted}, which a failover or a power loss may undo")

    @property
    def is_in_transaction(self) -> bool:
        return "autocommit" in self.command

    @property
    def is_snapshot(self) -> bool:
        return not self.is_in_transaction and self.command.get("readConcern", {}).get("level") == "snapshot"

    @contextlib.contextmanager
    def seen(self) -> Iterator[Transaction]:
        """What a reading sees: its transaction, a snapshot, or all that is committed."""
        if self.is_in_transaction:
            yield self._transaction()
            return
        concern = dict(self.command.get("readConcern", {}))
        level, at = concern.pop("level", None), concern.pop("atClusterTime", None)
        if level not in ("snapshot", "majority") or concern or (at is not None and level != "snapshot"):
            raise Unheard(f"the read concern {self.command.get('readConcern')}")
        seen = self.server.data.begin(None if at is None else at.inc)
        try:
            yield seen
        finally:
            self.server.data.abort(seen)

    def write(self, write: Callable[[Transaction], dict]) -> dict:
        """Do a write: in its transaction, or in one of its own, which is done once however often it is sent."""
        if self.is_in_transaction:
            if "writeConcern" in self.command:
                raise Refused(72, "writeConcern is not allowed within a multi-statement transaction")
            return _failed_write(write, self._transaction(), self.server, self.command)
        self.demand_durable()
        if "readConcern" in self.command:
            raise Refused(72, "a write has no read concern")
        session = self.server.session(self.command)
        number = self.command.get("txnNumber")
        if number is None:
            raise Unheard("a write that cannot be sent again")
        if number in session.replies:
            return session.replies[number]
        by = self.server.data.begin()
        try:
            session.replies[number] = write(by)
        except Refused as error:
            self.server.data.abort(by)
            if error.code != 11000:
                raise
            return {"n": 0, "writeErrors": [{"index": 0, "code": error.code, "errmsg": str(error)}]}
        except Unheard:
            self.server.data.abort(by)
            raise
        self.server.data.commit(by)
        return session.replies[number]

    def _transaction(self) -> Transaction:
        session, number = self.server.session(self.command), self.command["txnNumber"]
        if self.command["autocommit"] is not False:
            raise Unheard("autocommit")
        if self.command.get("startTransaction"):
            if number <= session.number:
                raise Refused(225, "Transaction number is too old")
            concern = self.command.get("readConcern", {})
            if concern.get("level") != "snapshot":
                raise Unheard(f"a transaction with the read concern {concern}")
            if session.state == "open":
                self.server._end(session, "aborted")
            session.number, session.state = number, "open"
            session.transaction = self.server.data.begin()
        elif "readConcern" in self.command:
            raise Refused(72, "a read concern is only for the first command of a transaction")
        if number != session.number or session.transaction is None:
            raise Refused(
                251, "Given transaction number does not match any in-progress transactions", "TransientTransactionError"
            )
        session.transaction.used = time.monotonic()
        return session.transaction


def _failed_write(write, by: Transaction, server: Server, command: dict) -> dict:
    """A duplicate key is told as a failed write, and ends the transaction all the same."""
    try:
        return write(by)
    except Refused as error:
        if error.code != 11000:
            raise
        server._end_transaction_of(command)
        return {"n": 0, "writeErrors": [{"index": 0, "code": error.code, "errmsg": str(error)}]}


def _index(wanted: dict) -> Index:
    if wanted.keys() - {"name", "key", "unique", "partialFilterExpression"}:
        raise Unheard(f"an index with {sorted(wanted)}")
    partial = wanted.get("partialFilterExpression", {})
    if len(partial) > 1 or any(value != {"$exists": True} for value in partial.values()):
        raise Unheard(f"an index with {partial}")
    return Index(wanted["name"], list(wanted["key"].items()), wanted.get("unique", False), next(iter(partial), None))


def _message(body: bytes) -> dict:
    """The command of an OP_MSG: a document, and sequences of documents beside it."""
    (flags,) = struct.unpack_from("<I", body)
    if flags & ~0x10000:  # but exhaustAllowed
        raise _Cut
    command: dict = {}
    sequences: dict = {}
    at = 4
    while at < len(body):
        kind = body[at]
        (size,) = struct.unpack_from("<i", body, at + 1)
        section = body[at + 1 : at + 1 + size]
        if kind == 0:
            command = bson.decode(section, OPTIONS)
        else:
            end = section.index(b"\0", 4)
            sequences[section[4:end].decode()] = bson.decode_all(section[end + 1 :], OPTIONS)
        at += 1 + size
    return {**command, **sequences}


def _error(refused: Refused) -> dict:
    labels = {"errorLabels": list(refused.labels)} if refused.labels else {}
    return {"ok": 0.0, "code": refused.code, "codeName": "Refused", "errmsg": str(refused), **labels}


@contextlib.contextmanager
def replica_set(**options) -> Iterator[Server]:
    """A stand-in, stopped at the end."""
    server = Server(**options)
    try:
        yield server
    finally:
        server.close()
