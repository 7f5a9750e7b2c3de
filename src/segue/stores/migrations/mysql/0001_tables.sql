-- What is kept. A server of this kind commits each of these statements by itself, so each may be done again.
--
-- A session's history is its own segment (its entries from base + 1 on) and, for a fork, what spans
-- lists of the segments before. Nothing of an entry ever changes, except that its content is erased.
-- Names are binary: compared as bytes, with no twins by case, accent or trailing space. Times are
-- microseconds since 1970. A number of a segment begins with the milliseconds when it was made.

CREATE TABLE IF NOT EXISTS sessions (
    tenant         VARBINARY(255) NOT NULL,
    user_id        VARBINARY(255) NOT NULL,
    id             VARBINARY(255) NOT NULL,
    segment        BIGINT NOT NULL,
    head           BIGINT NOT NULL,
    base           BIGINT NOT NULL,
    fence          BIGINT NOT NULL DEFAULT 0,
    version        BIGINT NOT NULL DEFAULT 1,
    state          TINYINT NOT NULL DEFAULT 0 COMMENT '0 active, 1 completed, 2 archived',
    created_us     BIGINT NOT NULL,
    active_us      BIGINT NOT NULL,
    archived_us    BIGINT NULL,
    erased_us      BIGINT NULL COMMENT 'a tombstone: the content is gone, the id is not given again',
    idle_us        BIGINT NULL,
    expires_us     BIGINT NULL,
    is_pinned      TINYINT NOT NULL,
    is_listed      TINYINT NOT NULL,
    own_key        VARBINARY(255) NULL,
    format         VARBINARY(255) NOT NULL,
    parent         VARBINARY(255) NULL,
    parent_seq     BIGINT NULL,
    parent_link    VARBINARY(255) NULL,
    lease_run      VARBINARY(255) NULL COMMENT 'got the lease with the highest fence, and has not given it back',
    lease_paused   TINYINT NULL,
    lease_until_us BIGINT NULL,
    lease_holder   VARBINARY(1024) NULL,
    tokens         VARBINARY(160) NOT NULL DEFAULT '0,0,0,0,0,0'
        COMMENT 'input, output, cache read, cache write, long cache write, reasoning; of its own entries',
    title          MEDIUMBLOB NOT NULL,
    tags           MEDIUMBLOB NOT NULL COMMENT 'each between commas; a comma in one is %2C, a percent sign %25',
    metadata       LONGBLOB NOT NULL,
    config         LONGBLOB NULL,
    is_gone        TINYINT GENERATED ALWAYS AS (CASE WHEN erased_us IS NULL THEN 0 ELSE 1 END) STORED,
    due_us         BIGINT GENERATED ALWAYS AS (CASE
        WHEN idle_us IS NULL THEN expires_us
        WHEN expires_us IS NULL THEN active_us + idle_us
        ELSE LEAST(active_us + idle_us, expires_us) END) STORED,
    PRIMARY KEY (tenant, user_id, id),
    UNIQUE KEY sessions_segment (segment),
    UNIQUE KEY sessions_key (tenant, user_id, own_key),
    KEY sessions_active (tenant, user_id, is_gone, active_us, id),
    KEY sessions_due (tenant, user_id, due_us, id),
    KEY sessions_archived (tenant, user_id, archived_us, id),
    KEY sessions_parent (tenant, user_id, parent),
    CONSTRAINT sessions_ends CHECK (head >= base AND base >= 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS entries (
    segment     BIGINT NOT NULL,
    seq         BIGINT NOT NULL,
    created_us  BIGINT NOT NULL,
    occurred_us BIGINT NULL,
    id          VARBINARY(255) NOT NULL,
    kind        VARBINARY(255) NOT NULL,
    format      VARBINARY(255) NOT NULL,
    origin      VARBINARY(255) NOT NULL,
    run         VARBINARY(255) NULL,
    refs        LONGBLOB NULL COMMENT 'one a line',
    tokens      VARBINARY(160) NULL,
    digest      VARBINARY(64) NOT NULL COMMENT 'SHA-256 of the body',
    body        LONGBLOB NULL COMMENT 'the very bytes that were appended; NULL: erased for good',
    PRIMARY KEY (segment, seq),
    UNIQUE KEY entries_id (segment, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'the logs';

CREATE TABLE IF NOT EXISTS spans (
    child   BIGINT NOT NULL,
    segment BIGINT NOT NULL,
    low     BIGINT NOT NULL,
    upto    BIGINT NOT NULL,
    PRIMARY KEY (child, low),
    KEY spans_segment (segment, upto),
    CONSTRAINT spans_ends CHECK (low < upto)
) ENGINE = InnoDB COMMENT = 'the fork whose segment is child takes the entries low < seq <= upto of another segment';

CREATE TABLE IF NOT EXISTS refs (
    segment    BIGINT NOT NULL,
    ref        VARBINARY(255) NOT NULL,
    seq        BIGINT NOT NULL,
    created_us BIGINT NOT NULL,
    tenant     VARBINARY(255) NOT NULL,
    user_id    VARBINARY(255) NOT NULL,
    session    VARBINARY(255) NOT NULL,
    PRIMARY KEY (segment, ref, seq),
    KEY refs_time (tenant, user_id, ref, created_us, session, seq)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS tickets (
    segment   BIGINT NOT NULL,
    run       VARBINARY(255) NOT NULL,
    place     BIGINT NOT NULL,
    lapses_us BIGINT NOT NULL,
    PRIMARY KEY (segment, run)
) ENGINE = InnoDB COMMENT = 'runs that wait for a session, lowest place first';
