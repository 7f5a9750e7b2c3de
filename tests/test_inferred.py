"""Readings without a declaration: what a response, a file, rows and an MCP resource say of themselves."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from types import SimpleNamespace

import httpx
import pytest

import segue
import worlds
from segue import inferred
from segue.errors import Invalid
from segue.guard import calling, using
from segue.ledger import Observation
from segue.probes import File, Http, Rows
from segue.world import Sources, check


@pytest.fixture
def page():
    with worlds.serving() as served:
        yield served


@pytest.fixture
def session():
    with segue.open("memory:") as db:
        yield db.scope(user="lin").create()


def outcome(observation, probe):
    sources = Sources()
    sources.register(observation.source, probe)
    (finding,) = check([observation], sources)
    return finding.outcome


# HTTP


@pytest.mark.parametrize("validator", ["etag", "last-modified", "body"])
def test_a_page_is_compared_by_the_validator_that_its_response_had(page, validator):
    page.etag = '"1"' if validator == "etag" else None
    page.modified = 1_790_000_000 if validator == "last-modified" else None
    response = httpx.get(page.url)
    seen = inferred.from_response(response, body=response.content)
    probe = Http(allow=[page.url])
    assert seen.source == page.url and outcome(seen, probe) == "current"
    page.etag, page.body = page.etag and '"2"', b"two"
    page.modified = page.modified and page.modified + 60
    assert outcome(seen, probe) == "changed"


def test_a_page_may_be_relied_on_for_as_long_as_its_server_says(page):
    page.control = "max-age=60"
    assert inferred.from_response(httpx.get(page.url)).max_age == timedelta(seconds=60)


def test_without_validator_and_body_there_is_no_version(page):
    page.etag = None
    assert inferred.from_response(httpx.get(page.url)).version is None


@pytest.mark.parametrize("status", [206, 301, 304, 404, 500])
def test_what_is_no_success_is_no_reading(status):
    response = httpx.Response(status, request=httpx.Request("GET", "https://a.example/"))
    with pytest.raises(Invalid, match=str(status)):
        inferred.from_response(response)


def test_a_password_in_an_address_is_not_kept():
    response = httpx.Response(200, request=httpx.Request("GET", "https://lin:secret@a.example/x?y=1#z"))
    assert inferred.from_response(response).source == "https://a.example/x?y=1"


def test_a_client_with_the_hook_records_what_it_reads_and_not_what_it_writes(page, session):
    with httpx.Client(event_hooks={"response": [inferred.on_response]}) as client:
        client.get(page.url)  # outside of a run
        with session.run() as run, using(run), calling("c1"):
            assert client.get(page.url).text == "one"
            client.put(page.url, content="two", headers={"If-Match": '"1"'})
            page.status = 404
            client.get(page.url)
    (entry,) = session.read(kinds=("observation",))
    seen = Observation.from_entry(entry)
    assert (seen.source, str(seen.version), seen.call) == (page.url, 'etag "1"', "c1")


def test_an_async_client_with_the_hook_records_too(page, session):
    async def main(run):
        async with httpx.AsyncClient(event_hooks={"response": [inferred.on_response_async]}) as client:
            with using(run):
                await client.get(page.url)

    with session.run() as run:
        asyncio.run(main(run))
    assert len(session.read(kinds=("observation",))) == 1


def test_an_address_that_is_no_name_of_a_source_is_passed_over_by_the_hook(page, session):
    with httpx.Client(event_hooks={"response": [inferred.on_response]}) as client:
        with session.run() as run, using(run):
            client.get(page.url, params={"q": "x" * 3_000})
    assert session.read(kinds=("observation",)) == []


# Files


@pytest.mark.parametrize("text", ["one\r\ntwo\n", "", "八月"])
def test_a_file_is_compared_with_what_was_really_read(tmp_path, text):
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    seen = inferred.from_file(path, text, root=tmp_path)
    probe = File(roots=[tmp_path])
    assert seen.source == "file:a.txt" and outcome(seen, probe) == "current"
    path.write_bytes(b"other")
    assert outcome(seen, probe) == "changed"
    assert outcome(inferred.from_file(path, b"other"), probe) == "current"


# Rows


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_rows_are_compared_with_the_same_query_now(tmp_path, kind):
    connect = getattr(worlds, f"{kind}_orders")(tmp_path)
    query = "SELECT id, amount, updated_at FROM orders ORDER BY id"
    with contextlib.closing(connect()) as connection:
        seen = inferred.from_rows("warehouse:orders", connection.cursor().execute(query).fetchall())
    probe = Rows(connect, query)
    assert seen.collection and outcome(seen, probe) == "current"
    worlds.run_sql(connect, worlds.BACKFILL)
    assert outcome(seen, probe) == "changed"


# MCP


def resource(**more):
    return {"contents": [{"uri": "crm://customers/7", "text": "Lin"}], **more}


@pytest.mark.parametrize(
    ("more", "lifetime"),
    [
        ({}, None),
        ({"ttlMs": 60_000, "cacheScope": "private"}, timedelta(minutes=1)),
        ({"ttlMs": 0}, timedelta()),
        ({"ttlMs": -5}, timedelta()),
        ({"ttlMs": "soon"}, timedelta()),
        ({"ttlMs": 10**30}, timedelta()),
    ],
)
def test_a_resource_holds_for_as_long_as_its_server_says(more, lifetime):
    seen = inferred.from_mcp(resource(**more))
    assert (seen.source, seen.version, seen.max_age) == ("crm://customers/7", None, lifetime)


def test_an_object_of_an_sdk_is_read_like_its_json():
    content = SimpleNamespace(uri="crm://customers/7", text="Lin", blob=None)
    as_object = inferred.from_mcp(SimpleNamespace(contents=[content], ttl_ms=5_000))
    as_json = inferred.from_mcp(resource(ttlMs=5_000))
    assert (as_object.source, as_object.digest, as_object.max_age) == (as_json.source, as_json.digest, as_json.max_age)


def test_a_resource_within_its_lifetime_is_current_then_expired_and_without_one_unverifiable():
    def found(result, age):
        seen = inferred.from_mcp(result)
        (finding,) = check([seen], Sources(), now=seen.observed_at + age)
        return finding.outcome

    assert found(resource(ttlMs=60_000), timedelta(seconds=59)) == "current"
    assert found(resource(ttlMs=60_000), timedelta(seconds=61)) == "expired"
    assert found(resource(), timedelta(seconds=1)) == "unverifiable"


def test_an_answer_without_contents_is_no_reading():
    with pytest.raises(Invalid, match="contents"):
        inferred.from_mcp({"contents": []})


def test_an_inferred_reading_is_recorded_by_hand(session):
    with session.run() as run:
        run.observe(inferred.from_mcp(resource(ttlMs=1)), tool="read_resource", call="c1")
    (entry,) = session.read(kinds=("observation",))
    seen = Observation.from_entry(entry)
    assert (seen.tool, seen.call, seen.version) == ("read_resource", "c1", None)
