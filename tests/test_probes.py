"""Each probe against the real thing: what it sees, what it does not see, and what it refuses to look at."""

from __future__ import annotations

import os
import tempfile
import threading
from datetime import timedelta
from pathlib import Path

import pytest

import servers
import worlds
from segue import probes
from segue.errors import Invalid
from segue.ledger import Denied, Gone, Unanswered, Version
from worlds import BACKFILL, DELETE, UPDATE, run_sql


def read(probe, source="any", *, seen=None, principal="lin"):
    return probe.read(source, principal=principal, seen=seen)


@pytest.fixture
def open_path():
    """A folder that every user of the machine may enter, so that what is closed in it is what a test closed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(params=worlds.WORLDS)
def world(request, open_path):
    with worlds.world_named(request.param, open_path) as made:
        yield made


def only(*names):
    return pytest.mark.parametrize("world", names, indirect=True)


def test_an_unchanged_source_keeps_its_version(world):
    first = read(world.probe, world.source)
    assert isinstance(first, Version)
    assert read(world.probe, world.source, seen=first).matches(first)
    assert read(world.probe, world.source).matches(first)


def test_a_changed_source_has_another_version_of_the_same_kind(world):
    first = read(world.probe, world.source)
    world.change()
    now = read(world.probe, world.source, seen=first)
    assert now.kind == first.kind and now.matches(first) is False


def test_a_removed_source_is_gone(world):
    first = read(world.probe, world.source)
    world.remove()
    assert isinstance(read(world.probe, world.source, seen=first), Gone)


@only(*worlds.DENYING)
def test_what_may_not_be_read_is_denied(world):
    with world.deny():
        assert isinstance(read(world.probe, world.source), Denied)


@only("file", "git", "http")
def test_what_cannot_be_reached_is_not_taken_to_be_gone(world):
    with world.cut_off():
        assert isinstance(read(world.probe, world.source), Unanswered)


@pytest.mark.parametrize("name", [n for n in probes.__all__ if n[0].isupper()])
def test_every_probe_names_its_blind_spots(name):
    assert "Blind spots:" in getattr(probes, name).__doc__


# Files


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "link", "///etc/passwd", "~/x"])
def test_a_file_outside_the_roots_is_not_looked_at(tmp_path, name):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("x")
    (root / "link").symlink_to(tmp_path / "secret")
    answer = probes.File(roots=[root]).read(f"file:{name}")
    assert not isinstance(answer, Version)
    assert isinstance(answer, Unanswered) or name == "~/x"  # a folder named "~", that is not there


def test_a_missing_and_a_present_file_outside_the_roots_look_alike(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "there").write_text("x")
    probe = probes.File(roots=[root])
    assert probe.read("file:../there") == probe.read("file:../not-there")


def test_a_pipe_does_not_hang_the_file_probe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert isinstance(probes.File(roots=[tmp_path]).read("file:pipe"), Unanswered)


def test_an_edit_that_keeps_size_and_mtime_is_seen(tmp_path):
    path = tmp_path / "big"
    path.write_bytes(b"a" * 100)
    os.utime(path, ns=(10**18, 10**18))
    probe = probes.File(roots=[tmp_path], hash_always_bytes=10)
    seen = probe.read("file:big")
    assert seen.hint
    path.write_bytes(b"b" * 100)
    os.utime(path, ns=(10**18, 10**18))
    assert probe.read("file:big", seen=seen).matches(seen) is False


def test_a_large_unchanged_file_is_not_hashed_again(tmp_path):
    path = tmp_path / "big"
    path.write_bytes(b"a" * 100)
    os.utime(path, ns=(10**18, 10**18))
    seen = probes.File(roots=[tmp_path]).read("file:big")
    too_large_to_hash = probes.File(roots=[tmp_path], hash_always_bytes=10, hash_max_bytes=10)
    assert too_large_to_hash.read("file:big", seen=seen) == seen
    assert isinstance(too_large_to_hash.read("file:big"), Unanswered)


def test_a_small_file_is_hashed_although_its_times_look_the_same(tmp_path):
    path = tmp_path / "small"
    path.write_text("x")
    os.utime(path, ns=(10**18, 10**18))
    now = probes.file_version(path)
    forged = Version("sha256", "0" * 64, now.hint)
    assert probes.File(roots=[tmp_path]).read("file:small", seen=forged) == now


def test_a_file_that_was_just_written_gets_no_shortcut(tmp_path):
    path = tmp_path / "new"
    path.write_text("x")
    assert probes.file_version(path).hint == ""


def test_a_touched_but_unchanged_file_is_unchanged(tmp_path):
    path = tmp_path / "a"
    path.write_text("x")
    before = probes.file_version(path)
    os.utime(path, ns=(10**18, 10**18))
    assert probes.file_version(path).matches(before)


def test_a_folder_where_a_name_moves_from_one_file_to_another_is_changed(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    probe = probes.Folder(tmp_path)
    before = read(probe)
    (tmp_path / "a").rename(tmp_path / "x")
    (tmp_path / "b").rename(tmp_path / "a")
    (tmp_path / "x").rename(tmp_path / "b")
    assert read(probe).matches(before) is False


def test_a_folder_without_content_alarms_on_a_touch_and_misses_a_same_size_edit(tmp_path):
    path = tmp_path / "a"
    path.write_text("1")
    os.utime(path, ns=(10**18, 10**18))
    probe = probes.Folder(tmp_path, content=False)
    before = read(probe)
    path.write_text("2")
    os.utime(path, ns=(10**18, 10**18))
    assert read(probe).matches(before)
    os.utime(path, ns=(2 * 10**18, 10**18 + 1))
    assert read(probe).matches(before) is False


def test_a_folder_over_its_limit_is_unverifiable(tmp_path):
    for i in range(5):
        (tmp_path / str(i)).write_text("x")
    assert isinstance(read(probes.Folder(tmp_path, files_max=4)), Unanswered)
    assert isinstance(read(probes.Folder(tmp_path, bytes_max=4)), Unanswered)


def test_a_folder_with_an_unreadable_part_is_not_taken_to_be_emptied(open_path):
    (open_path / "sub").mkdir()
    (open_path / "sub" / "a").write_text("x")
    with worlds.unreadable(open_path / "sub"):
        assert isinstance(read(probes.Folder(open_path)), Denied)


# Git


def test_a_path_in_git_does_not_alarm_on_other_commits(tmp_path):
    repository = tmp_path / "repository"
    worlds.git_world(tmp_path)
    probe = probes.Git(repository, "main", path="a.txt")
    before = read(probe)
    worlds.commit(repository, "other", name="b.txt")
    assert read(probe).matches(before)
    worlds.commit(repository, "changed", name="a.txt")
    assert read(probe).matches(before) is False
    assert isinstance(read(probes.Git(repository, "main", path="no.txt")), Gone)


def test_git_does_not_see_uncommitted_changes(tmp_path):
    world = worlds.git_world(tmp_path)
    before = read(world.probe, world.source)
    (tmp_path / "repository" / "a.txt").write_text("edited, not committed")
    assert read(world.probe, world.source).matches(before)


def test_a_remote_ref_is_asked_from_the_remote(tmp_path):
    worlds.git_world(tmp_path)
    origin, clone = tmp_path / "repository", tmp_path / "clone"
    worlds.git(tmp_path, "clone", "-q", str(origin), str(clone))
    local, remote = probes.Git(clone, "main"), probes.Git(clone, "main", remote="origin")
    before = read(remote)
    worlds.commit(origin, "pushed by another")
    assert read(local).matches(before)
    assert read(remote).matches(before) is False
    assert isinstance(read(probes.Git(clone, "nope", remote="origin")), Gone)


@pytest.mark.parametrize("ref", ["--help", "-q", "", "a b", "main;ls", "x" * 300, "--upload-pack=touch x"])
def test_a_ref_from_untrusted_text_is_no_option(tmp_path, ref):
    world = worlds.git_world(tmp_path)
    assert isinstance(read(world.probe, f"git:{ref}"), Unanswered)


def test_a_folder_that_is_no_repository_is_unverifiable(tmp_path):
    assert isinstance(read(probes.Git(tmp_path)), Unanswered)


# HTTP


@pytest.fixture
def page():
    with worlds.serving() as served:
        yield served


def test_an_unchanged_page_costs_one_conditional_request(page):
    probe = probes.Http(page.url)
    seen = read(probe)
    page.requests.clear()
    assert read(probe, seen=seen) == seen
    ((method, _, headers),) = page.requests
    assert (method, headers["If-None-Match"], headers["Cache-Control"]) == ("HEAD", '"1"', "no-cache")


def test_a_page_is_compared_in_the_kind_that_was_seen(page):
    page.modified = 1_800_000_000
    seen = Version("last-modified", "Fri, 15 Jan 2027 08:00:00 GMT")
    assert read(probes.Http(page.url), seen=seen) == seen
    page.modified += 1
    assert read(probes.Http(page.url), seen=seen).matches(seen) is False


def test_last_modified_does_not_see_two_changes_in_one_second(page):
    page.etag, page.modified = None, 1_800_000_000.1
    seen = read(probes.Http(page.url))
    page.modified, page.body = 1_800_000_000.8, b"two"
    assert read(probes.Http(page.url), seen=seen).matches(seen)


def test_a_page_without_validators_is_hashed(page):
    page.etag = None
    seen = read(probes.Http(page.url))
    assert seen.kind == "sha256"
    assert read(probes.Http(page.url), seen=seen) == seen
    page.body = b"two"
    assert read(probes.Http(page.url), seen=seen).matches(seen) is False
    assert isinstance(read(probes.Http(page.url, body_max_bytes=2), seen=seen), Unanswered)


def test_a_page_read_by_hash_stays_comparable_when_the_server_begins_to_send_etags(page):
    page.etag = None
    seen = read(probes.Http(page.url))
    page.etag = '"new"'
    assert read(probes.Http(page.url), seen=seen) == seen


def test_a_server_without_head_is_asked_by_get(page):
    page.has_head = False
    assert read(probes.Http(page.url)) == Version("etag", '"1"')


def test_a_weak_etag_of_the_same_page_is_the_same_version(page):
    page.etag = 'W/"1"'
    assert read(probes.Http(page.url), seen=Version("etag", '"1"')).matches(Version("etag", '"1"'))


@pytest.mark.parametrize("status", [301, 302, 400, 429, 500, 503])
def test_a_server_in_trouble_or_a_redirect_says_nothing_about_the_page(page, status):
    page.status = status
    assert isinstance(read(probes.Http(page.url)), Unanswered)


def test_headers_are_made_for_the_principal(page):
    read(probes.Http(page.url, headers=lambda who: {"Authorization": f"for {who}"}), principal="lin")
    assert page.requests[0][2]["Authorization"] == "for lin"


@pytest.mark.parametrize(
    "asked",
    [
        "http://evil.example/",
        "http://api.example.com.evil.example/v1/x",
        "http://api.example.com@evil.example/v1/x",
        "http://api.example.com/v1/../admin",
        "http://api.example.com/v1/%2e%2e/admin",
        "http://api.example.com/v10",
        "http://api.example.com:81/v1/x",
        "https://api.example.com/v1/x",
        "file:///etc/passwd",
        "http://api.example.com\\@evil.example/v1/",
        "http://[bad",
        "zip://x::http://api.example.com/v1/x",
        "http://api.example.com/v1/x::file:///etc/passwd",
        "http://user:password@api.example.com/v1/x",
    ],
)
@pytest.mark.parametrize("probe", [probes.Http, probes.Url])
def test_an_address_outside_the_allowed_ones_is_not_asked(probe, asked):
    assert isinstance(read(probe(allow=["http://api.example.com/v1"]), asked), Unanswered)


def test_an_address_needs_to_be_given_or_allowed():
    with pytest.raises(Invalid):
        probes.Http()
    with pytest.raises(Invalid):
        probes.Url(allow=["no-scheme"])


@pytest.mark.parametrize(
    ("headers", "version", "seconds"),
    [
        ({"ETag": '"a"', "Cache-Control": "public, max-age=60", "Age": "20"}, Version("etag", '"a"'), 40),
        ({"last-modified": "Mon", "cache-control": "max-age=5", "age": "9"}, Version("last-modified", "Mon"), 0),
        ({"Cache-Control": "no-cache, max-age=60"}, None, 0),
        ({"Cache-Control": "s-maxage=60"}, None, None),
        ({"ETag": " ", "Age": "x"}, None, None),
    ],
)
def test_headers_tell_version_and_lifetime(headers, version, seconds):
    assert probes.from_headers(headers) == (version, None if seconds is None else timedelta(seconds=seconds))


# Databases


@pytest.fixture(params=["sqlite", "duckdb"])
def connect(request, tmp_path):
    return getattr(worlds, f"{request.param}_orders")(tmp_path)


@pytest.mark.parametrize("change", [DELETE, BACKFILL])
def test_a_watermark_does_not_see_deletes_and_unstamped_edits_but_rows_do(connect, change):
    watermark = probes.Watermark(connect, "orders", "updated_at")
    rows = probes.Rows(connect, "SELECT id, amount FROM orders ORDER BY id")
    before, rows_before = read(watermark), read(rows)
    run_sql(connect, change)
    assert read(watermark).matches(before)
    assert read(rows).matches(rows_before) is False


def test_an_empty_table_has_a_version(connect):
    run_sql(connect, "DELETE FROM orders")
    assert read(probes.Watermark(connect, "orders", "updated_at")) == Version("watermark", "null")


def test_rows_tell_values_of_different_types_apart(connect):
    one = read(probes.Rows(connect, "SELECT 1"))
    assert read(probes.Rows(connect, "SELECT '1'")).matches(one) is False
    assert read(probes.Rows(connect, "SELECT NULL")).matches(read(probes.Rows(connect, "SELECT 'None'"))) is False


def test_a_query_with_several_rows_is_no_version(connect):
    assert isinstance(read(probes.Sql(connect, "SELECT id FROM orders")), Unanswered)


def test_a_row_that_is_not_there_is_gone(connect):
    probe = probes.Sql(connect, "SELECT updated_at FROM orders WHERE id = ?", parameters=[2])
    before = read(probe)
    assert isinstance(before, Version)
    run_sql(connect, DELETE)
    assert isinstance(read(probe), Gone)


def test_too_many_rows_are_unverifiable(connect):
    assert isinstance(read(probes.Rows(connect, "SELECT id FROM orders", rows_max=2)), Unanswered)


def test_a_connection_is_closed_whatever_happens(tmp_path):
    closed = []

    class Broken:
        def cursor(self):
            raise OSError("down")

        def close(self):
            closed.append(True)

    with pytest.raises(OSError):
        read(probes.Sql(Broken, "SELECT 1"))
    assert closed == [True]


def test_a_connection_is_opened_for_the_principal(connect):
    who = []

    def as_user(*, principal):
        who.append(principal)
        return connect()

    read(probes.Watermark(as_user, "orders", "updated_at"), principal="lin")
    assert who == ["lin"]


@pytest.mark.parametrize("name", ['o"; DROP TABLE orders; --', "", "a b", "a.b.c.d", "1x", "a.", None, "a\n", "a;b"])
def test_a_name_that_is_no_plain_identifier_is_refused(name):
    with pytest.raises(Invalid):
        probes.Watermark(dict, name, "updated_at")
    with pytest.raises(Invalid):
        probes.Watermark(dict, "orders", name)


def test_data_version_sees_other_connections_commits_within_one_process(tmp_path):
    connect = worlds.sqlite_orders(tmp_path)
    probe = probes.DataVersion(connect)
    before = read(probe)
    assert read(probe).matches(before)
    run_sql(connect, DELETE)
    assert read(probe).matches(before) is False
    probe.close()


def test_data_version_of_another_process_cannot_be_compared(tmp_path):
    connect = worlds.sqlite_orders(tmp_path)
    first, second = probes.DataVersion(connect), probes.DataVersion(connect)
    assert read(second).matches(read(first)) is None
    first.close()
    second.close()


# PostgreSQL


@pytest.fixture
def postgres():
    import psycopg

    url = servers.shared("postgres")
    name = f"probes_{os.getpid()}_{threading.get_ident()}"

    def connect(principal=None):
        return psycopg.connect(url, autocommit=True, options=f"-c search_path={name}")

    run_sql(connect, f"CREATE SCHEMA {name}")
    connection = connect()
    worlds.fill(connection)
    connection.close()
    yield connect
    run_sql(connect, f"DROP SCHEMA {name} CASCADE", f"DROP ROLE IF EXISTS reader_{name}")


@pytest.mark.server
def test_xmin_sees_what_a_watermark_does_not(postgres):
    xmin, watermark = probes.Xmin(postgres, "orders"), probes.Watermark(postgres, "orders", "updated_at")
    seen, marked = read(xmin), read(watermark)
    assert read(xmin).matches(seen)
    for change in (BACKFILL, DELETE):
        before = read(xmin)
        run_sql(postgres, change)
        assert read(xmin).matches(before) is False
        assert read(watermark).matches(marked)
    run_sql(postgres, UPDATE.replace("id = 2", "id = 3"))
    assert read(watermark).matches(marked) is False


@pytest.mark.server
def test_lsn_moves_with_a_write_to_any_table(postgres):
    run_sql(postgres, "CREATE TABLE other (id INTEGER)")
    before = read(probes.Lsn(postgres))
    assert before.kind == "lsn"
    run_sql(postgres, "INSERT INTO other VALUES (1)")
    assert read(probes.Lsn(postgres)).matches(before) is False


@pytest.mark.server
def test_a_dropped_table_of_postgres_is_gone(postgres):
    run_sql(postgres, "DROP TABLE orders")
    assert isinstance(read(probes.Watermark(postgres, "orders", "updated_at")), Gone)


@pytest.mark.server
def test_a_table_that_the_role_may_not_read_is_denied(postgres):
    role = f"reader_{os.getpid()}"

    def as_reader():
        connection = postgres()
        connection.execute(f"SET ROLE {role}")
        return connection

    run_sql(postgres, f"CREATE ROLE {role}", f"GRANT USAGE ON SCHEMA {_schema(postgres)} TO {role}")
    try:
        assert isinstance(read(probes.Watermark(as_reader, "orders", "updated_at")), Denied)
    finally:
        run_sql(postgres, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def _schema(connect):
    connection = connect()
    try:
        return connection.execute("SELECT current_schema()").fetchone()[0]
    finally:
        connection.close()


# Storages and callables


def test_an_object_in_memory_is_told_by_time_and_size():
    import fsspec

    storage = fsspec.filesystem("memory")
    storage.pipe("/bucket/a", b"one")
    probe = probes.Url("memory://bucket/a")
    before = read(probe)
    assert read(probe).matches(before)
    storage.pipe("/bucket/a", b"three")
    assert read(probe).matches(before) is False
    storage.rm("/bucket/a")
    assert isinstance(read(probe), Gone)


@pytest.mark.parametrize(
    ("info", "version"),
    [
        ({"ETag": '"abc"', "VersionId": "v1"}, Version("version-id", "v1")),
        ({"ETag": '"abc"', "VersionId": "null"}, Version("etag", '"abc"')),
        ({"etag": "abc", "md5Hash": "x"}, Version("etag", "abc")),
        ({"generation": 17}, Version("version-id", "17")),
        ({"md5Hash": "x"}, Version("checksum", "x")),
    ],
)
def test_a_storage_is_told_by_the_surest_mark_that_it_has(info, version, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    storage = type(fsspec.filesystem("memory"))
    monkeypatch.setattr(storage, "info", lambda self, path, **k: info)
    assert read(probes.Url("memory://bucket/a")) == version


def test_a_storage_is_compared_in_the_kind_that_was_seen(monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    storage = type(fsspec.filesystem("memory"))
    monkeypatch.setattr(storage, "info", lambda self, path, **k: {"ETag": "abc", "VersionId": "v1"})
    seen = Version("etag", "abc")
    assert read(probes.Url("memory://bucket/a"), seen=seen) == seen


def test_a_storages_cached_listing_does_not_stand_for_the_storage():
    import fsspec

    class Caching(fsspec.AbstractFileSystem):
        protocol = "caching"
        content = "1"

        def info(self, path, **options):
            return self.dircache.setdefault(path, {"ETag": Caching.content})

        def invalidate_cache(self, path=None):
            pass  # some storages forget to

    fsspec.register_implementation("caching", Caching, clobber=True)
    before = read(probes.Url("caching://a"))
    Caching.content = "2"
    assert read(probes.Url("caching://a")).matches(before) is False


def test_time_and_size_do_not_see_an_edit_that_keeps_both(tmp_path):
    world = worlds.url_world(tmp_path)
    path = tmp_path / "bucket" / "object"
    os.utime(path, ns=(10**18, 10**18))
    before = read(world.probe, world.source)
    path.write_text("two")
    os.utime(path, ns=(10**18, 10**18))
    assert read(world.probe, world.source).matches(before)


def test_a_callable_takes_what_it_names():
    seen = Version("value", "1")
    assert read(probes.Call(lambda source, seen: f"{source} {seen.value}"), "a", seen=seen) == Version("value", "a 1")
    assert read(probes.Call(lambda **all: sorted(all))) == Version("value", '["principal","seen","source"]')
    assert read(probes.Call(dict)) == Version("value", "{}")


@pytest.mark.parametrize("raised", [FileNotFoundError, PermissionError])
def test_an_exception_of_a_callable_says_nothing_about_the_source(raised):
    def look():
        raise raised

    with pytest.raises(raised):
        read(probes.Call(look))


def test_a_callable_that_returns_none_does_not_know():
    assert isinstance(read(probes.Call(lambda: None)), Unanswered)


@pytest.mark.parametrize("path", sorted((Path(probes.__file__).parent).glob("*.py")), ids=lambda p: p.name)
def test_probes_import_no_driver_before_they_run(path):
    drivers = ("httpx", "fsspec", "psycopg", "duckdb", "sqlite3")
    lines = [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]
    assert not [line for line in lines if any(driver in line for driver in drivers)]
