"""
Bytes through the public door: what ``append`` took comes back as the same bytes, or nothing was written.

Documents that engines change, JSON that Hypothesis makes in every spelling, and bytes that are no JSON.
"""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import segue
import stores
from segue import codec
from segue.stores.memory import MemoryStore
from segue.testing.content import DOCUMENTS, RAW

FULL = stores.FULL
SEED = 7
TOGETHER = 50
JSON_COUNT, BYTES_COUNT = (10_000, 2_000) if FULL else (1_000, 200)

pytestmark = [pytest.mark.timeout(3_000)]

HOSTILE = {
    **DOCUMENTS,
    **RAW,
    "duplicate keys, deep": b'[{"a":{"b":1,"b":2}}]',
    "too deep": b"[" * 100_000 + b"]" * 100_000,
    "number of 5,000 digits": b"1" * 5_000,
    "huge exponent": b'{"a":1e131071}',
    "two documents": b"{}{}",
    "nothing behind a comma": b"[1,]",
    "reversed surrogates": b'["\\ude00\\ud83d"]',
    "overlong UTF-8": b'["\xc0\xaf"]',
    "UTF-16": '{"a":1}'.encode("utf-16"),
}


@pytest.fixture(scope="module", params=["memory", *stores.SHARED])
def db(request, tmp_path_factory):
    with stores.url_of(request.param, tmp_path_factory.mktemp("store")) as url, segue.open(url) as db:
        yield db


@pytest.fixture
def session(db):
    return db.scope("acme", "lin").create()


def put(session, bodies, *, format):
    return session.append(*bodies, kind="app.fact", format=format).seqs


def got(session, seqs):
    """The bodies, through a handle that was not there when they were stored."""
    return [entry.body for entry in session.read(after=seqs[0] - 1, upto=seqs[-1])]


@pytest.mark.parametrize("format", ["json", "raw"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_document_comes_back_as_it_was_or_is_refused_and_leaves_nothing(session, name, format):
    body = HOSTILE[name]
    before = session.refresh().head
    try:
        seqs = put(session, [body], format=format)
    except segue.Invalid:
        assert format == "json"
        assert session.refresh().head == before
    else:
        assert got(session, seqs) == [body]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=5)
    ),
    max_leaves=12,
)
SPELLINGS = st.tuples(st.booleans(), st.sampled_from([None, 0, 3]), st.sampled_from([(",", ":"), (" ,", " : ")]))


def spelled(value, spelling) -> bytes:
    is_ascii, indent, separators = spelling
    return json.dumps(value, ensure_ascii=is_ascii, indent=indent, separators=separators).encode()


def many(count):
    return settings(
        max_examples=max(1, count // TOGETHER), deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def check_json(session, documents) -> int:
    """How many of the documents, sent as bytes and as values, come back changed."""
    bodies = [spelled(*document) for document in documents]
    changed = sum(
        was != now for was, now in zip(bodies, got(session, put(session, bodies, format="json")), strict=True)
    )
    values = [value for value, _ in documents]
    seqs = put(session, values, format="json")
    for was, entry in zip(values, session.read(after=seqs[0] - 1, upto=seqs[-1]), strict=True):
        changed += json.dumps(was) != json.dumps(json.loads(entry.body))  # the order of keys, too
    return changed


@pytest.mark.slow
def test_json_of_any_kind_and_spelling_comes_back_byte_for_byte(session, record_property):
    cases = 0

    @many(JSON_COUNT)
    @given(st.lists(st.tuples(VALUES, SPELLINGS), min_size=TOGETHER, max_size=TOGETHER))
    def check(documents):
        nonlocal cases
        cases += len(documents)
        assert check_json(session, documents) == 0

    check()
    record(record_property, cases=cases, changed=0)
    assert cases >= JSON_COUNT


@pytest.mark.slow
def test_bytes_of_any_kind_come_back(session, record_property):
    chance = random.Random(SEED)
    for _ in range(BYTES_COUNT // TOGETHER):
        bodies = [chance.randbytes(chance.choice((0, 1, 30, 3_000))) for _ in range(TOGETHER)]
        assert got(session, put(session, bodies, format="raw")) == bodies
    record(record_property, cases=BYTES_COUNT, changed=0)


def record(record_property, **figures):
    for name, value in {"seed": SEED, **figures}.items():
        record_property(name, value)


class Reserialising(MemoryStore):
    """The control: a store that keeps JSON as values, as a JSON column does."""

    def commit(self, ops):
        return super().commit([self._spoil(op) for op in ops])

    def _spoil(self, op):
        if not getattr(op, "entries", ()):
            return op
        return replace(op, entries=tuple(self._parsed(entry) for entry in op.entries))

    def _parsed(self, entry):
        body = json.dumps(json.loads(entry.body), sort_keys=True, separators=(",", ":")).encode()
        return entry._replace(body=body, digest=codec.digest(body))


def test_a_store_that_keeps_values_instead_of_bytes_is_noticed(record_property):
    documents = [({"b": 1, "a": 2, "t": "é"}, (True, 3, (" ,", " : "))), ([1.0], (False, None, (",", ":")))]
    with segue.open(Reserialising("reserialising")) as db:
        changed = check_json(db.scope().create(), documents)
    record(record_property, cases=len(documents) * 2, changed=changed)
    assert changed > 0
