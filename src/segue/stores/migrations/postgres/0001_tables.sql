-- What is kept. @schema@ stands for the schema's quoted name.
--
-- A session's history is its own segment (its entries from base + 1 on) and, for a fork, what spans
-- lists of the segments before. Nothing of an entry ever changes, except that its content is erased.
-- Names are compared as bytes (COLLATE "C"); what may hold any character at all is bytea.

CREATE TABLE @schema@.sessions (
    segment        bigint GENERATED ALWAYS AS IDENTITY,
    head           bigint NOT NULL,
    base           bigint NOT NULL,
    fence          bigint NOT NULL DEFAULT 0,
    version        bigint NOT NULL DEFAULT 1,
    created_us     bigint NOT NULL,
    active_us      bigint NOT NULL,
    archived_us    bigint,
    erased_us      bigint,
    idle_us        bigint,
    expires_us     bigint,
    lease_until_us bigint,
    parent_seq     bigint,
    state          smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 2),
    is_pinned      boolean NOT NULL,
    is_listed      boolean NOT NULL,
    lease_paused   boolean,
    tenant         text COLLATE "C" NOT NULL,
    user_id        text COLLATE "C" NOT NULL,
    id             text COLLATE "C" NOT NULL,
    key            text COLLATE "C",
    format         text COLLATE "C" NOT NULL,
    parent         text COLLATE "C",
    parent_link    text COLLATE "C",
    lease_run      text COLLATE "C",
    lease_holder   text COLLATE "C",
    title          bytea NOT NULL,
    metadata       bytea NOT NULL,
    config         bytea,
    tags           bytea[] NOT NULL,
    usage          bigint[] NOT NULL DEFAULT '{0,0,0,0,0,0}',
    due_us         bigint GENERATED ALWAYS AS (LEAST(active_us + idle_us, expires_us)) STORED,
    PRIMARY KEY (tenant, user_id, id),
    CHECK (head >= base AND base >= 0)
);

COMMENT ON TABLE @schema@.sessions IS
    'One row a session. A row with erased_us is a tombstone: its content is gone, its id is not given again.';
COMMENT ON COLUMN @schema@.sessions.state IS '0 active, 1 completed, 2 archived';
COMMENT ON COLUMN @schema@.sessions.usage IS
    'Tokens: input, output, cache read, cache write, long cache write, reasoning; of the session''s own entries';
COMMENT ON COLUMN @schema@.sessions.lease_run IS 'The run that got the lease with the highest fence, if not given back';

CREATE UNIQUE INDEX sessions_segment ON @schema@.sessions (segment);
CREATE UNIQUE INDEX sessions_key ON @schema@.sessions (tenant, user_id, key)
    WHERE key IS NOT NULL AND erased_us IS NULL;
CREATE INDEX sessions_active ON @schema@.sessions (tenant, user_id, active_us DESC, id DESC) WHERE erased_us IS NULL;
CREATE INDEX sessions_due ON @schema@.sessions (tenant, user_id, due_us, id)
    WHERE due_us IS NOT NULL AND erased_us IS NULL;
CREATE INDEX sessions_parent ON @schema@.sessions (tenant, user_id, parent)
    WHERE parent IS NOT NULL AND erased_us IS NULL;

CREATE TABLE @schema@.entries (
    segment     bigint NOT NULL,
    seq         bigint NOT NULL,
    created_us  bigint NOT NULL,
    occurred_us bigint,
    id          text COLLATE "C" NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    format      text COLLATE "C" NOT NULL,
    origin      text COLLATE "C" NOT NULL,
    run         text COLLATE "C",
    refs        text[] COLLATE "C",
    usage       bigint[],
    digest      bytea NOT NULL,
    body        bytea,
    PRIMARY KEY (segment, seq)
);

COMMENT ON TABLE @schema@.entries IS 'The logs. Bodies are the very bytes that were appended; NULL: erased for good.';

CREATE UNIQUE INDEX entries_id ON @schema@.entries (segment, id);

CREATE TABLE @schema@.spans (
    child   bigint NOT NULL,
    segment bigint NOT NULL,
    low     bigint NOT NULL,
    upto    bigint NOT NULL,
    PRIMARY KEY (child, low),
    CHECK (low < upto)
);

COMMENT ON TABLE @schema@.spans IS 'The fork whose segment is child takes the entries low < seq <= upto of another segment.';

CREATE INDEX spans_segment ON @schema@.spans (segment, upto);

CREATE TABLE @schema@.refs (
    segment    bigint NOT NULL,
    seq        bigint NOT NULL,
    created_us bigint NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    user_id    text COLLATE "C" NOT NULL,
    ref        text COLLATE "C" NOT NULL,
    PRIMARY KEY (segment, ref, seq)
);

CREATE INDEX refs_time ON @schema@.refs (tenant, user_id, ref, created_us, segment, seq);

CREATE TABLE @schema@.tickets (
    segment   bigint NOT NULL,
    place     bigint GENERATED ALWAYS AS IDENTITY,
    lapses_us bigint NOT NULL,
    run       text COLLATE "C" NOT NULL,
    PRIMARY KEY (segment, run)
);

COMMENT ON TABLE @schema@.tickets IS 'Runs that wait for a session, first come first served.';

-- Row-level security, where it is switched on (row_security=True): a second net, under the conditions
-- in every statement. The settings hold for one transaction; without them no row is to be seen.
-- segue.upkeep lets maintenance (scopes, verify) see, never change, all rows.


CREATE POLICY mine ON @schema@.sessions USING (
    tenant = (SELECT current_setting('segue.tenant', true)) AND user_id = (SELECT current_setting('segue.user', true))
);
CREATE POLICY mine ON @schema@.refs USING (
    tenant = (SELECT current_setting('segue.tenant', true)) AND user_id = (SELECT current_setting('segue.user', true))
);
CREATE POLICY mine ON @schema@.entries USING (
    EXISTS (SELECT FROM @schema@.sessions s WHERE s.segment = entries.segment)
);
CREATE POLICY mine ON @schema@.tickets USING (
    EXISTS (SELECT FROM @schema@.sessions s WHERE s.segment = tickets.segment)
);
CREATE POLICY mine ON @schema@.spans USING (
    EXISTS (SELECT FROM @schema@.sessions s WHERE s.segment = spans.child)
);
CREATE POLICY upkeep ON @schema@.sessions FOR SELECT
    USING ((SELECT current_setting('segue.upkeep', true)) = 'on');
CREATE POLICY upkeep ON @schema@.refs FOR SELECT
    USING ((SELECT current_setting('segue.upkeep', true)) = 'on');
