-- Readings. Each sees one moment. See 0002 for why they are functions.

-- The session's row, by id or by key; no row when it is not there.
CREATE FUNCTION @schema@.info(p_shift bigint, p_tenant text, p_user text, p_session text, p_key text)
RETURNS TABLE (now_us bigint, waiting bigint, session @schema@.sessions)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    IF p_session IS NOT NULL THEN
        SELECT * INTO session FROM @schema@.sessions t
            WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session;
    ELSE
        SELECT * INTO session FROM @schema@.sessions t
            WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.key = p_key AND t.erased_us IS NULL;
    END IF;
    IF session.id IS NOT NULL AND session.erased_us IS NULL THEN
        now_us := @schema@.now_us(p_shift);
        SELECT count(*) INTO waiting FROM @schema@.tickets t
            WHERE t.segment = session.segment AND t.lapses_us > now_us;
        RETURN NEXT;
    END IF;
END
$$;

-- Of which segments a session's log is made: low < seq <= upto of each. No row: no such session.
CREATE FUNCTION @schema@.parts(p_tenant text, p_user text, p_session text)
RETURNS TABLE (segment bigint, low bigint, upto bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    s record;
BEGIN
    SELECT t.segment, t.base, t.head, t.erased_us INTO s FROM @schema@.sessions t
        WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session;
    IF NOT FOUND OR s.erased_us IS NOT NULL THEN
        RETURN;
    END IF;
    IF s.base > 0 THEN
        RETURN QUERY SELECT a.segment, a.low, a.upto FROM @schema@.spans a WHERE a.child = s.segment ORDER BY a.low;
    END IF;
    segment := s.segment; low := s.base; upto := s.head;
    RETURN NEXT;
END
$$;

-- Entries of one segment. The settings make sure that they come by the index, already in order (and that
-- what a plan cannot avoid, such as sorting a few spans, is not taken for so dear that it is compiled).
CREATE FUNCTION @schema@.entries_of(
    p_segment bigint, p_after bigint, p_upto bigint, p_kinds text[], p_reverse boolean, p_limit bigint
) RETURNS SETOF @schema@.entries
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
BEGIN
    IF p_reverse THEN
        RETURN QUERY SELECT * FROM @schema@.entries e
            WHERE e.segment = p_segment AND e.seq > p_after AND e.seq <= p_upto
                AND (p_kinds IS NULL OR e.kind = ANY (p_kinds))
            ORDER BY e.seq DESC LIMIT p_limit;
    ELSE
        RETURN QUERY SELECT * FROM @schema@.entries e
            WHERE e.segment = p_segment AND e.seq > p_after AND e.seq <= p_upto
                AND (p_kinds IS NULL OR e.kind = ANY (p_kinds))
            ORDER BY e.seq LIMIT p_limit;
    END IF;
END
$$;

-- A session's log. No row: no such session. The first row is none of its entries: its seq is the head.
CREATE FUNCTION @schema@.read(
    p_tenant text, p_user text, p_session text, p_after bigint, p_upto bigint, p_kinds text[],
    p_reverse boolean, p_limit bigint
) RETURNS SETOF @schema@.entries
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    s record;
    p record;
    n bigint;
    header @schema@.entries;
    still bigint := p_limit;
BEGIN
    SELECT t.segment, t.base, t.head, t.erased_us INTO s FROM @schema@.sessions t
        WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session;
    IF NOT FOUND OR s.erased_us IS NOT NULL THEN
        RETURN;
    END IF;
    header.seq := s.head;
    RETURN NEXT header;
    -- Its own entries are asked for here, since most sessions are no forks.
    IF p_reverse THEN
        RETURN QUERY SELECT * FROM @schema@.entries e
            WHERE e.segment = s.segment AND e.seq > p_after AND e.seq <= p_upto
                AND (p_kinds IS NULL OR e.kind = ANY (p_kinds))
            ORDER BY e.seq DESC LIMIT still;
        GET DIAGNOSTICS n = ROW_COUNT;
        still := still - n;
    END IF;
    IF s.base > p_after AND still > 0 THEN
        FOR p IN
            SELECT a.segment, a.low, a.upto FROM @schema@.spans a
            WHERE a.child = s.segment AND a.upto > p_after AND a.low < p_upto
            ORDER BY CASE WHEN p_reverse THEN -a.low ELSE a.low END
        LOOP
            RETURN QUERY SELECT * FROM @schema@.entries_of(
                p.segment, GREATEST(p_after, p.low), LEAST(p_upto, p.upto), p_kinds, p_reverse, still);
            GET DIAGNOSTICS n = ROW_COUNT;
            still := still - n;
            EXIT WHEN still <= 0;
        END LOOP;
    END IF;
    IF NOT p_reverse THEN
        RETURN QUERY SELECT * FROM @schema@.entries e
            WHERE e.segment = s.segment AND e.seq > p_after AND e.seq <= p_upto
                AND (p_kinds IS NULL OR e.kind = ANY (p_kinds))
            ORDER BY e.seq LIMIT still;
    END IF;
END
$$;

-- Seqs of a segment's entries that carry a ref.
CREATE FUNCTION @schema@.refs_of(
    p_segment bigint, p_ref text, p_after bigint, p_upto bigint, p_since_us bigint, p_reverse boolean, p_limit bigint
) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
BEGIN
    IF p_reverse THEN
        RETURN QUERY SELECT r.seq FROM @schema@.refs r
            WHERE r.segment = p_segment AND r.ref = p_ref AND r.seq > p_after AND r.seq <= p_upto
                AND (p_since_us IS NULL OR r.created_us >= p_since_us)
            ORDER BY r.seq DESC LIMIT p_limit;
    ELSE
        RETURN QUERY SELECT r.seq FROM @schema@.refs r
            WHERE r.segment = p_segment AND r.ref = p_ref AND r.seq > p_after AND r.seq <= p_upto
                AND (p_since_us IS NULL OR r.created_us >= p_since_us)
            ORDER BY r.seq LIMIT p_limit;
    END IF;
END
$$;

-- Entries of a session's log that carry a ref, each with the session that owns it. The first row is
-- no entry: it says that the session is there. A row without digest is an entry that is missing.
CREATE FUNCTION @schema@.by_ref_of(
    p_tenant text, p_user text, p_session text, p_ref text, p_after bigint, p_upto bigint, p_since_us bigint,
    p_reverse boolean, p_limit bigint
) RETURNS TABLE (owner text, seq bigint, entry @schema@.entries)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    p record;
    hit bigint;
    still bigint := p_limit;
BEGIN
    FOR p IN
        SELECT a.segment, a.low, a.upto, (SELECT t.id FROM @schema@.sessions t WHERE t.segment = a.segment) AS owner
        FROM @schema@.parts(p_tenant, p_user, p_session) AS a
        ORDER BY CASE WHEN p_reverse THEN -a.low ELSE a.low END
    LOOP
        IF owner IS NULL THEN
            owner := p_session;
            RETURN NEXT;
        END IF;
        owner := p.owner;
        FOR hit IN SELECT h FROM @schema@.refs_of(
            p.segment, p_ref, GREATEST(p_after, p.low), LEAST(p_upto, p.upto), p_since_us, p_reverse, still) AS h
        LOOP
            seq := hit;
            SELECT * INTO entry FROM @schema@.entries e WHERE e.segment = p.segment AND e.seq = hit;
            still := still - 1;
            RETURN NEXT;
        END LOOP;
        EXIT WHEN still <= 0;
    END LOOP;
END
$$;

-- The same of all living sessions of a scope, by time.
CREATE FUNCTION @schema@.by_ref_in(
    p_tenant text, p_user text, p_ref text, p_after bigint, p_upto bigint, p_since_us bigint,
    p_reverse boolean, p_limit bigint
) RETURNS TABLE (owner text, seq bigint, entry @schema@.entries)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    -- Two statements, so that each comes by the index and stops at its limit.
    IF p_reverse THEN
        RETURN QUERY
            SELECT h.id, h.seq, e FROM (
                SELECT r.created_us, t.id, r.seq, r.segment
                FROM @schema@.refs r JOIN @schema@.sessions t ON t.segment = r.segment
                WHERE r.tenant = p_tenant AND r.user_id = p_user AND r.ref = p_ref AND t.erased_us IS NULL
                    AND r.created_us >= COALESCE(p_since_us, 0) AND r.seq > p_after AND r.seq <= p_upto
                ORDER BY r.created_us DESC, t.id DESC, r.seq DESC LIMIT p_limit
            ) h LEFT JOIN @schema@.entries e ON e.segment = h.segment AND e.seq = h.seq
            ORDER BY h.created_us DESC, h.id DESC, h.seq DESC;
    ELSE
        RETURN QUERY
            SELECT h.id, h.seq, e FROM (
                SELECT r.created_us, t.id, r.seq, r.segment
                FROM @schema@.refs r JOIN @schema@.sessions t ON t.segment = r.segment
                WHERE r.tenant = p_tenant AND r.user_id = p_user AND r.ref = p_ref AND t.erased_us IS NULL
                    AND r.created_us >= COALESCE(p_since_us, 0) AND r.seq > p_after AND r.seq <= p_upto
                ORDER BY r.created_us, t.id, r.seq LIMIT p_limit
            ) h LEFT JOIN @schema@.entries e ON e.segment = h.segment AND e.seq = h.seq
            ORDER BY h.created_us, h.id, h.seq;
    END IF;
END
$$;

-- For people with SQL tools: the conversations, their messages as a JSON array. Nothing can be written here.
CREATE VIEW @schema@.conversations AS
SELECT
    s.id AS session_id,
    s.user_id,
    m.messages,
    s.usage[1] AS total_input_tokens,
    s.usage[2] AS total_output_tokens,
    s.state AS status,
    to_timestamp(s.created_us / 1000000.0) AS created_at,
    to_timestamp(s.active_us / 1000000.0) AS updated_at,
    s.tenant
FROM @schema@.sessions s
CROSS JOIN LATERAL (
    SELECT '[' || COALESCE(string_agg(convert_from(e.body, 'UTF8'), ',' ORDER BY e.seq), '') || ']' AS messages
    FROM (
        SELECT s.segment, s.base AS low, s.head AS upto
        UNION ALL
        SELECT a.segment, a.low, a.upto FROM @schema@.spans a WHERE s.base > 0 AND a.child = s.segment
    ) p
    JOIN @schema@.entries e ON e.segment = p.segment AND e.seq > p.low AND e.seq <= p.upto
    WHERE e.kind = 'message' AND e.format <> 'raw' AND e.body IS NOT NULL
) m
WHERE s.erased_us IS NULL;

COMMENT ON VIEW @schema@.conversations IS
    'status: 0 active, 1 completed, 2 archived. messages: the bodies of the session''s messages, forks'' shared ones '
    'included; what is erased is left out.';

-- From version 15 on a view asks with the rights of who reads it, so that row-level security holds.
DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        ALTER VIEW @schema@.conversations SET (security_invoker = true);
    END IF;
END
$$;
