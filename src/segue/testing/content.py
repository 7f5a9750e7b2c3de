"""Bytes come back as they came, whatever is in them."""

from __future__ import annotations

import random

import pytest

from .case import StoreCase, difference, draft

DOCUMENTS: dict[str, bytes] = {
    "key order": b'{"zebra":1,"apple":2,"10":3,"9":4,"apples":5}',
    "key order, nested": b'{"b":{"d":1,"c":2},"a":[{"z":0,"y":0}]}',
    "white space": b' {\t"a" :\r\n  [ 1 ,2 ]\n}\n ',
    "exponent": b"[1e2,1E2,1e+2,1.0e2,100.0,100]",
    "minus zero": b"[-0.0,-0,0.0,0]",
    "many digits": b"[0.1000000000000000055511151231257827,3.14159265358979323846264338327950288]",
    "trailing zeros": b"[1.0,1.10,1.00000]",
    "2^53+1": b"[9007199254740993]",
    "2^63 and 2^64": b"[9223372036854775808,18446744073709551616]",
    "40 digits": b"[1234567890123456789012345678901234567890]",
    "smallest and largest double": b"[5e-324,1.7976931348623157e308]",
    "escaped slash": b'["\\/"]',
    "escapes that need not be": b'["\\u0041\\u00e9\\u4e2d"]',
    "upper and lower case escapes": b'["\\u00E9\\u00e9"]',
    "NUL escape": b'["x\\u0000y"]',
    "control escapes": b'["\\b\\f\\n\\r\\t\\u001f\\u007f"]',
    "surrogate pair as escapes": b'["\\ud83d\\ude00"]',
    "emoji": '["\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f"]'.encode(),
    "NFC and NFD": '["\u00e9","e\u0301","\u1112\u1161\u11ab"]'.encode(),
    "line separators": '["\u2028\u2029\u0085"]'.encode(),
    "right to left": '["\u202eabc\u202c","\u05e9\u05dc\u05d5\u05dd"]'.encode(),
    "byte order mark inside": '["\ufeffx"]'.encode(),
    "private and last characters": '["\ue000\ufffd\uffff\U0010ffff"]'.encode(),
    "empty keys and strings": b'{"":{"":""}}',
    "operator keys": b'{"$set":{"a.b":1},"$where":"1","__proto__":{},"constructor":null}',
    "looks like an extended type": b'{"$oid":"000000000000000000000000","$date":{"$numberLong":"1"}}',
    "looks like SQL": b'["\'); DROP TABLE entries; --","%s","%(x)s",":x","?","$1"]',
    "looks like a date": b'["2024-02-30T25:61:61Z","1","true","null"]',
    "scalars: null": b"null",
    "scalars: false": b"false",
    "scalars: zero": b"0",
    "scalars: empty string": b'""',
    "empty array": b"[]",
    "empty object": b"{}",
    "deep": b"[" * 128 + b"]" * 128,
    "wide": b"[" + b",".join(b"%d" % n for n in range(5_000)) + b"]",
    "well compressible": b'["' + b"a" * 300_000 + b'"]',
}
"""JSON that engines change, refuse, or read differently."""

RAW: dict[str, bytes] = {
    "empty": b"",
    "all bytes": bytes(range(256)),
    "NUL bytes": b"\x00\x00x\x00",
    "invalid UTF-8": b'{"a":"\xff\xfe\xc0\x80\xed\xa0\x80"}',
    "torn line": b'{"type":"user","text":"half of a li',
    "byte order mark": b'\xef\xbb\xbf{"a":1}',
    "line breaks": b"a\nb\r\nc\rd\n\n",
    "duplicate keys": b'{"a":1,"a":2}',
    "not a number": b"[NaN,Infinity,-Infinity,1e400]",
    "lone surrogate": b'["\\ud800"]',
    "looks compressed: zstd": b"\x28\xb5\x2f\xfd\x24\x00\x01\x00\x00",
    "looks compressed: gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
    "looks like a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x01x\x94.",
    "noise": random.Random(7).randbytes(100_000),  # noqa: S311 - the same noise each time,
}
"""What is not JSON and is kept with format ``raw``."""

TEXTS = (
    "",
    "x" * 500,
    "\U0001f600" * 125,
    "a\u0301\u00e1",
    'O\'Brien "quoted" \\',
    "%s %(x)s ? :x $1",
    " \u2028\u202e ",
)
"""Titles that some engine trims, normalises or executes."""


class ContentTests(StoreCase):
    @pytest.mark.parametrize("name", DOCUMENTS)
    def test_a_document_comes_back_byte_for_byte(self, name: str) -> None:
        self._check_comes_back(DOCUMENTS[name], "anthropic")

    @pytest.mark.parametrize("name", RAW)
    def test_raw_bytes_come_back(self, name: str) -> None:
        self._check_comes_back(RAW[name], "raw")

    def _check_comes_back(self, body: bytes, format: str) -> None:
        session = self.create(draft(body=body, format=format))
        fork = self.fork(session, 1)
        self.reopen()
        assert type(self.log(session)[0].body) is bytes
        assert difference(self.log(session)[0].body, body) == ""
        assert difference(self.log(fork)[0].body, body) == ""

    def test_all_documents_of_one_batch_come_back(self) -> None:
        bodies = [*DOCUMENTS.values(), *RAW.values()]
        session = self.create(*(draft(body=body, format="raw") for body in bodies))
        for entry, body in zip(self.log(session), bodies, strict=True):
            assert difference(entry.body, body) == ""

    def test_the_same_body_twice_is_two_entries(self) -> None:
        session = self.create(draft(body=b"[]"), draft(body=b"[]"))
        self.hollow(session, 1)
        assert [entry.body for entry in self.log(session)] == [None, b"[]"]

    def test_an_empty_body_is_not_hollow(self) -> None:
        session = self.create(draft(body=b"", format="raw"))
        assert not self.log(session)[0].is_hollow

    @pytest.mark.parametrize("title", TEXTS)
    def test_a_title_comes_back_as_it_came(self, title: str) -> None:
        session = self.create(title=title)
        assert self.info(session).title == title

    @pytest.mark.parametrize("config", [b"{}", DOCUMENTS["white space"], DOCUMENTS["key order"], DOCUMENTS["exponent"]])
    def test_a_configuration_comes_back_byte_for_byte(self, config: bytes) -> None:
        session = self.create(config=config)
        assert self.info(session).config == config

    def test_metadata_of_16_kib_comes_back_with_its_key_order(self) -> None:
        metadata = {f"key {n}": "值" * 30 for n in range(150, 0, -1)}
        session = self.create(metadata=metadata)
        assert list(self.info(session).metadata.items()) == list(metadata.items())
