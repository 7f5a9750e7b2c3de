-- Sessions, their entries, refs and queues. Why it looks like this: docs/decisions/0002-sqlite-schema.md.
-- All names are compared as bytes (BINARY). Times are microseconds; *_us is wall clock since 1970,
-- *_tick_us is since the boot named beside it.

CREATE TABLE migrations (
    no INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    applied_us INTEGER NOT NULL
) STRICT;

CREATE TABLE scopes (
    no INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    UNIQUE (tenant, user)
) STRICT;

-- What an entry is, as one small number: there are a few dozen triples in a database.
CREATE TABLE labels (
    no INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    format TEXT NOT NULL,
    origin TEXT NOT NULL,
    UNIQUE (kind, format, origin)
) STRICT;

-- What an append reads and writes. A row is at the same time the segment of its session's own entries
-- (base < seq <= head). An erased session keeps its row, without content, as a tombstone.
CREATE TABLE sessions (
    no INTEGER PRIMARY KEY,
    scope_no INTEGER NOT NULL REFERENCES scopes (no),
    id TEXT NOT NULL,
    key TEXT,
    state INTEGER NOT NULL,              -- 0 active, 1 completed, 2 archived, 3 erased
    shelf INTEGER,                       -- where it is listed: 0 listed, 1 unlisted, 2 archived, null erased
    is_pinned INTEGER NOT NULL,
    is_listed INTEGER NOT NULL,
    version INTEGER NOT NULL,
    head INTEGER NOT NULL,               -- of a tombstone: the last seq that forks still need
    base INTEGER NOT NULL,
    origin_no INTEGER REFERENCES sessions (no),  -- the session that owns entry number base
    fence INTEGER NOT NULL,
    lease_run TEXT,
    lease_state INTEGER,                 -- 1 running, 2 paused
    lease_boot TEXT,
    lease_tick_us INTEGER,               -- a running lease is judged by this
    lease_until_us INTEGER,              -- a paused one by this
    lease_holder TEXT,
    parent_id TEXT,
    parent_seq INTEGER,
    parent_link TEXT,
    idle_us INTEGER,
    expires_us INTEGER,
    due_us INTEGER,                      -- end of its lifetime; null: endless, pinned, archived or erased
    created_us INTEGER NOT NULL,
    active_us INTEGER NOT NULL,
    archived_us INTEGER,
    erased_us INTEGER,
    usage TEXT                           -- six numbers, comma between; null: all zero
) STRICT;

CREATE UNIQUE INDEX sessions_id ON sessions (scope_no, id);
CREATE UNIQUE INDEX sessions_key ON sessions (scope_no, key) WHERE key IS NOT NULL;
CREATE INDEX sessions_active ON sessions (scope_no, shelf, active_us, id) WHERE shelf IS NOT NULL;
CREATE INDEX sessions_due ON sessions (scope_no, due_us, id) WHERE due_us IS NOT NULL;
CREATE INDEX sessions_archived ON sessions (scope_no, archived_us, id) WHERE archived_us IS NOT NULL;
CREATE INDEX sessions_parent ON sessions (scope_no, parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX sessions_origin ON sessions (origin_no, base) WHERE origin_no IS NOT NULL;

-- What an append leaves alone, so that it is not written again with every one.
CREATE TABLE profiles (
    session_no INTEGER PRIMARY KEY REFERENCES sessions (no),
    format TEXT NOT NULL,
    title TEXT NOT NULL,
    tags TEXT NOT NULL,                  -- a JSON array
    metadata TEXT NOT NULL,              -- a JSON object
    config BLOB,
    seal INTEGER NOT NULL                -- checksum of all this
) STRICT;

CREATE TABLE tags (
    scope_no INTEGER NOT NULL,
    tag TEXT NOT NULL,
    session_no INTEGER NOT NULL REFERENCES sessions (no),
    PRIMARY KEY (scope_no, tag, session_no)
) STRICT, WITHOUT ROWID;

CREATE INDEX tags_session ON tags (session_no);

CREATE TABLE entries (
    pos INTEGER PRIMARY KEY,             -- session_no << 32 | seq
    session_no INTEGER NOT NULL,
    id ANY NOT NULL,                     -- 32 hex digits as 16 bytes, else text
    label INTEGER NOT NULL,
    created_us INTEGER NOT NULL,
    occurred_us INTEGER,
    run ANY,
    refs TEXT,                           -- a line break between them
    usage TEXT,
    seal INTEGER NOT NULL,               -- checksum of all this, and of the digest
    digest BLOB NOT NULL,                -- SHA-256 of the plain body
    codec INTEGER NOT NULL,              -- how the body is packed
    body BLOB                            -- null: hollow
) STRICT;

CREATE UNIQUE INDEX entries_id ON entries (session_no, id);

-- Which entries carry a ref: of a session by seq, of a scope by time.
CREATE TABLE refs (
    session_no INTEGER NOT NULL,
    ref TEXT NOT NULL,
    seq INTEGER NOT NULL,
    scope_no INTEGER NOT NULL,
    created_us INTEGER NOT NULL,
    PRIMARY KEY (session_no, ref, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX refs_scope ON refs (scope_no, ref, created_us, session_no, seq);

CREATE TABLE queue (
    session_no INTEGER NOT NULL REFERENCES sessions (no),
    ticket INTEGER NOT NULL,
    run TEXT NOT NULL,
    boot TEXT NOT NULL,
    lapses_tick_us INTEGER NOT NULL,
    PRIMARY KEY (session_no, ticket)
) STRICT, WITHOUT ROWID;
