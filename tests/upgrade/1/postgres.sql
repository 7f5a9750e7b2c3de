SELECT pg_catalog.set_config('search_path', '', false);
CREATE SCHEMA segue;
CREATE FUNCTION segue.append(p_shift bigint, p_lock_ms bigint, p_from text, o_tenant text[], o_user text[], o_session text[], o_run text[], o_fence bigint[], o_expect bigint[], o_size bigint[], e_id text[], e_digest bytea[], e_kind text[], e_format text[], e_origin text[], e_body bytea[], e_refs text[], e_occurred bigint[], e_usage text[]) RETURNS TABLE(code text, name text, one bigint, head bigint, seqs bigint[], added integer)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    s record;
    k record;
    now bigint;
    first integer;
    last integer := 0;
    has_message boolean;
    ids text[];
    total bigint[];
    wakes boolean;
    changed text[] := '{}';
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    FOR op IN 1 .. cardinality(o_size) LOOP
        first := last + 1;
        last := last + o_size[op];
        code := 'done'; name := NULL; one := NULL; head := NULL; seqs := NULL; added := o_size[op];
        ids := e_id[first:last];
        -- Nearly always nothing is known, which is seen at once. (What another commits while this waits
        -- for the row is not seen here; then the unique index refuses, and the caller comes again.)
        SELECT t.segment, t.base, t.head, t.state, t.fence, t.usage, t.lease_run, t.lease_paused, t.lease_until_us,
               t.erased_us, t.base > 0 OR EXISTS (
                   SELECT FROM unnest(ids) AS i(id),
                       LATERAL (SELECT FROM "segue".entries o WHERE o.segment = t.segment AND o.id = i.id OFFSET 0) e
               ) AS is_known
            INTO s FROM "segue".sessions t
            WHERE t.tenant = o_tenant[op] AND t.user_id = o_user[op] AND t.id = o_session[op]
            FOR NO KEY UPDATE;
        IF NOT FOUND OR s.erased_us IS NOT NULL THEN
            code := 'not_found';
            RETURN NEXT;
            CONTINUE;
        END IF;
        now := "segue".now_us(p_shift);
        LOOP
            IF s.is_known THEN
                FOR k IN SELECT * FROM "segue".known(s.segment, s.base, ids) AS k ORDER BY k.n LOOP
                    IF k.digest <> e_digest[first + k.n - 1] THEN
                        code := 'id_conflict'; name := ids[k.n]; one := k.seq;
                        EXIT;
                    END IF;
                    seqs[k.n] := k.seq;
                    added := added - 1;
                END LOOP;
            END IF;
            IF code = 'done' AND added > 0 THEN
                IF added = o_size[op] THEN
                    has_message := 'message' = ANY (e_kind[first:last]);
                    seqs := ARRAY(SELECT generate_series(s.head + 1, s.head + added));
                    head := s.head + added;
                ELSE
                    has_message := false;
                    head := s.head;
                    FOR i IN 1 .. o_size[op] LOOP
                        IF seqs[i] IS NULL THEN
                            head := head + 1;
                            seqs[i] := head;
                            has_message := has_message OR e_kind[first + i - 1] = 'message';
                        END IF;
                    END LOOP;
                END IF;
                IF s.state = 2 THEN
                    code := 'archived';
                ELSIF o_fence[op] IS NOT NULL THEN
                    IF s.lease_run IS NULL OR s.fence <> o_fence[op] OR s.lease_run IS DISTINCT FROM o_run[op]
                       OR s.lease_paused THEN
                        code := 'lease_lost'; one := s.fence;
                    END IF;
                ELSIF has_message AND s.lease_run IS NOT NULL AND NOT s.lease_paused AND s.lease_until_us > now THEN
                    code := 'busy'; name := s.lease_run;
                    SELECT count(*) INTO one FROM "segue".tickets t WHERE t.segment = s.segment AND t.lapses_us > now;
                END IF;
                IF code = 'done' AND o_expect[op] <> s.head THEN
                    code := 'head_moved'; one := s.head;
                END IF;
            END IF;
            EXIT WHEN code = 'done' OR s.is_known;
            -- Refused. But while this waited for the row another may have stored these very entries: look now.
            s.is_known := true;
            code := 'done'; name := NULL; one := NULL; seqs := NULL; added := o_size[op];
        END LOOP;
        IF code <> 'done' OR added = 0 THEN
            head := s.head;
            RETURN NEXT;
            CONTINUE;
        END IF;
        total := s.usage;
        IF e_usage IS NOT NULL THEN
            FOR i IN first .. last LOOP
                IF e_usage[i] IS NOT NULL AND seqs[i - first + 1] > s.head THEN
                    total := "segue".plus(total, e_usage[i]::bigint[]);
                END IF;
            END LOOP;
        END IF;
        wakes := has_message AND s.state = 1;
        WITH x AS MATERIALIZED (
            SELECT * FROM unnest(
                seqs, e_occurred[first:last], ids, e_kind[first:last], e_format[first:last], e_origin[first:last],
                e_refs[first:last], e_usage[first:last], e_digest[first:last], e_body[first:last]
            ) AS x(seq, occurred, id, kind, format, origin, refs, usage, digest, body)
            WHERE x.seq > s.head
        ), e AS (
            INSERT INTO "segue".entries
                (segment, seq, created_us, occurred_us, id, kind, format, origin, run, refs, usage, digest, body)
            SELECT s.segment, x.seq, now, x.occurred, x.id, x.kind, x.format, x.origin, o_run[op],
                   string_to_array(x.refs, E'\n'), x.usage::bigint[], x.digest, x.body
            FROM x
        ), r AS (
            INSERT INTO "segue".refs (segment, seq, created_us, tenant, user_id, ref)
            SELECT DISTINCT s.segment, x.seq, now, o_tenant[op], o_user[op], r.ref
            FROM x, unnest(string_to_array(x.refs, E'\n')) AS r(ref)
            WHERE x.refs IS NOT NULL
        )
        UPDATE "segue".sessions t
        SET head = append.head, active_us = now, usage = total, state = t.state - wakes::integer,
            version = t.version + wakes::integer
        WHERE t.segment = s.segment;
        changed := changed || o_session[op];
        RETURN NEXT;
    END LOOP;
    IF p_from IS NOT NULL AND cardinality(changed) > 0 THEN
        PERFORM "segue".tell(p_from, changed);
    END IF;
END
$$;
CREATE FUNCTION segue.before(p_segment bigint, p_run text, p_now bigint) RETURNS bigint
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM "segue".tickets t
        WHERE t.segment = p_segment AND t.lapses_us > p_now AND t.place < COALESCE(
            (SELECT m.place FROM "segue".tickets m
             WHERE m.segment = p_segment AND m.run = p_run AND m.lapses_us > p_now),
            9223372036854775807)
    );
END
$$;
CREATE TABLE segue.entries (
    segment bigint NOT NULL,
    seq bigint NOT NULL,
    created_us bigint NOT NULL,
    occurred_us bigint,
    id text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    format text NOT NULL COLLATE pg_catalog."C",
    origin text NOT NULL COLLATE pg_catalog."C",
    run text COLLATE pg_catalog."C",
    refs text[] COLLATE pg_catalog."C",
    usage bigint[],
    digest bytea NOT NULL,
    body bytea
);
COMMENT ON TABLE segue.entries IS 'The logs. Bodies are the very bytes that were appended; NULL: erased for good.';
CREATE FUNCTION segue.by_ref_in(p_tenant text, p_user text, p_ref text, p_after bigint, p_upto bigint, p_since_us bigint, p_reverse boolean, p_limit bigint) RETURNS TABLE(owner text, seq bigint, entry segue.entries)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
#variable_conflict use_column
BEGIN
    -- Two statements, so that each comes by the index and stops at its limit.
    IF p_reverse THEN
        RETURN QUERY
            SELECT h.id, h.seq, e FROM (
                SELECT r.created_us, t.id, r.seq, r.segment
                FROM "segue".refs r JOIN "segue".sessions t ON t.segment = r.segment
                WHERE r.tenant = p_tenant AND r.user_id = p_user AND r.ref = p_ref AND t.erased_us IS NULL
                    AND r.created_us >= COALESCE(p_since_us, 0) AND r.seq > p_after AND r.seq <= p_upto
                ORDER BY r.created_us DESC, t.id DESC, r.seq DESC LIMIT p_limit
            ) h LEFT JOIN "segue".entries e ON e.segment = h.segment AND e.seq = h.seq
            ORDER BY h.created_us DESC, h.id DESC, h.seq DESC;
    ELSE
        RETURN QUERY
            SELECT h.id, h.seq, e FROM (
                SELECT r.created_us, t.id, r.seq, r.segment
                FROM "segue".refs r JOIN "segue".sessions t ON t.segment = r.segment
                WHERE r.tenant = p_tenant AND r.user_id = p_user AND r.ref = p_ref AND t.erased_us IS NULL
                    AND r.created_us >= COALESCE(p_since_us, 0) AND r.seq > p_after AND r.seq <= p_upto
                ORDER BY r.created_us, t.id, r.seq LIMIT p_limit
            ) h LEFT JOIN "segue".entries e ON e.segment = h.segment AND e.seq = h.seq
            ORDER BY h.created_us, h.id, h.seq;
    END IF;
END
$$;
CREATE FUNCTION segue.by_ref_of(p_tenant text, p_user text, p_session text, p_ref text, p_after bigint, p_upto bigint, p_since_us bigint, p_reverse boolean, p_limit bigint) RETURNS TABLE(owner text, seq bigint, entry segue.entries)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    p record;
    hit bigint;
    still bigint := p_limit;
BEGIN
    FOR p IN
        SELECT a.segment, a.low, a.upto, (SELECT t.id FROM "segue".sessions t WHERE t.segment = a.segment) AS owner
        FROM "segue".parts(p_tenant, p_user, p_session) AS a
        ORDER BY CASE WHEN p_reverse THEN -a.low ELSE a.low END
    LOOP
        IF owner IS NULL THEN
            owner := p_session;
            RETURN NEXT;
        END IF;
        owner := p.owner;
        FOR hit IN SELECT h FROM "segue".refs_of(
            p.segment, p_ref, GREATEST(p_after, p.low), LEAST(p_upto, p.upto), p_since_us, p_reverse, still) AS h
        LOOP
            seq := hit;
            SELECT * INTO entry FROM "segue".entries e WHERE e.segment = p.segment AND e.seq = hit;
            still := still - 1;
            RETURN NEXT;
        END LOOP;
        EXIT WHEN still <= 0;
    END LOOP;
END
$$;
CREATE TABLE segue.sessions (
    segment bigint NOT NULL,
    head bigint NOT NULL,
    base bigint NOT NULL,
    fence bigint DEFAULT 0 NOT NULL,
    version bigint DEFAULT 1 NOT NULL,
    created_us bigint NOT NULL,
    active_us bigint NOT NULL,
    archived_us bigint,
    erased_us bigint,
    idle_us bigint,
    expires_us bigint,
    lease_until_us bigint,
    parent_seq bigint,
    state smallint DEFAULT 0 NOT NULL,
    is_pinned boolean NOT NULL,
    is_listed boolean NOT NULL,
    lease_paused boolean,
    tenant text NOT NULL COLLATE pg_catalog."C",
    user_id text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    format text NOT NULL COLLATE pg_catalog."C",
    parent text COLLATE pg_catalog."C",
    parent_link text COLLATE pg_catalog."C",
    lease_run text COLLATE pg_catalog."C",
    lease_holder text COLLATE pg_catalog."C",
    title bytea NOT NULL,
    metadata bytea NOT NULL,
    config bytea,
    tags bytea[] NOT NULL,
    usage bigint[] DEFAULT '{0,0,0,0,0,0}'::bigint[] NOT NULL,
    due_us bigint GENERATED ALWAYS AS (LEAST((active_us + idle_us), expires_us)) STORED,
    CONSTRAINT sessions_check CHECK (((head >= base) AND (base >= 0))),
    CONSTRAINT sessions_state_check CHECK (((state >= 0) AND (state <= 2)))
);
COMMENT ON TABLE segue.sessions IS 'One row a session. A row with erased_us is a tombstone: its content is gone, its id is not given again.';
COMMENT ON COLUMN segue.sessions.state IS '0 active, 1 completed, 2 archived';
COMMENT ON COLUMN segue.sessions.lease_run IS 'The run that got the lease with the highest fence, if not given back';
COMMENT ON COLUMN segue.sessions.usage IS 'Tokens: input, output, cache read, cache write, long cache write, reasoning; of the session''s own entries';
CREATE FUNCTION segue.create_session(p_shift bigint, p_lock_ms bigint, p_from text, p_source text, p_at bigint, p_tenant text, p_user text, p_session text, p_key text, p_format text, p_title bytea, p_tags bytea[], p_metadata bytea, p_pinned boolean, p_listed boolean, p_config bytea, p_idle_us bigint, p_expires_us bigint, p_parent text, p_parent_seq bigint, p_parent_link text, e_id text[], e_digest bytea[], e_kind text[], e_format text[], e_origin text[], e_body bytea[], e_refs text[], e_occurred bigint[], e_usage text[], p_twice bigint) RETURNS TABLE(code text, name text, one bigint, now_us bigint, waiting bigint, session segue.sessions)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    s "segue".sessions;
    source "segue".sessions;
    at bigint := COALESCE(p_at, 0);
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    waiting := 0;
    LOOP
        SELECT * INTO s FROM "segue".sessions t WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session;
        EXIT WHEN s.id IS NOT NULL;
        IF p_source IS NOT NULL THEN
            -- Shared with appends to the source, which take nothing away; not with its erasure.
            SELECT * INTO source FROM "segue".sessions t
                WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_source FOR KEY SHARE;
            IF source.id IS NULL OR source.erased_us IS NOT NULL THEN
                code := 'no_source';
            ELSIF p_at NOT BETWEEN 0 AND source.head THEN
                code := 'no_such_seq'; one := source.head;
            END IF;
            EXIT WHEN code IS NOT NULL;
        END IF;
        IF p_key IS NOT NULL THEN
            SELECT t.id INTO name FROM "segue".sessions t
                WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.key = p_key AND t.erased_us IS NULL;
            IF FOUND THEN
                code := 'key_taken';
                EXIT;
            END IF;
        END IF;
        IF p_twice IS NOT NULL OR at > 0 AND cardinality(e_id) > 0 THEN
            SELECT c.name, c.one INTO name, one
                FROM "segue".first_conflict(source.segment, source.base, at, e_id, e_digest, p_twice) AS c;
            IF FOUND THEN
                code := 'id_conflict';
                EXIT;
            END IF;
        END IF;
        now_us := "segue".now_us(p_shift);
        INSERT INTO "segue".sessions
            (tenant, user_id, id, key, format, title, tags, metadata, is_pinned, is_listed, config, idle_us, expires_us,
             parent, parent_seq, parent_link, head, base, created_us, active_us)
        VALUES
            (p_tenant, p_user, p_session, p_key, p_format, p_title, p_tags, p_metadata, p_pinned, p_listed, p_config,
             p_idle_us, p_expires_us, p_parent, p_parent_seq, p_parent_link, at, at, now_us, now_us)
        ON CONFLICT DO NOTHING
        RETURNING * INTO session;
        IF FOUND THEN
            code := 'done';
            IF p_source IS NOT NULL THEN
                PERFORM "segue".share(session.segment, source.segment, source.base, p_at);
            END IF;
            IF cardinality(e_id) > 0 THEN
                PERFORM "segue".append(
                    p_shift, NULL, NULL, ARRAY[p_tenant], ARRAY[p_user], ARRAY[p_session], ARRAY[NULL::text],
                    ARRAY[NULL::bigint], ARRAY[NULL::bigint], ARRAY[cardinality(e_id)::bigint],
                    e_id, e_digest, e_kind, e_format, e_origin, e_body, e_refs, e_occurred, e_usage);
                SELECT * INTO session FROM "segue".sessions t WHERE t.segment = session.segment;
            END IF;
            PERFORM "segue".tell(p_from, ARRAY[p_session]);
            EXIT;
        END IF;
        -- Another was faster with this id or key: look again.
    END LOOP;
    IF code IS NULL AND s.erased_us IS NOT NULL THEN
        code := 'id_taken';
    ELSIF code IS NULL AND (s.key, s.parent, s.parent_seq, s.parent_link)
          IS DISTINCT FROM (p_key, p_parent, p_parent_seq, p_parent_link) THEN
        code := 'id_taken'; name := s.id;
    ELSIF code IS NULL THEN
        code := 'done';
        session := s;
        now_us := "segue".now_us(p_shift);
        SELECT count(*) INTO waiting FROM "segue".tickets t WHERE t.segment = s.segment AND t.lapses_us > now_us;
    END IF;
    RETURN NEXT;
END
$$;
CREATE FUNCTION segue.cut(p_segment bigint, p_but bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
    needed bigint;
    gone bigint;
BEGIN
    SELECT COALESCE(max(a.upto), 0) INTO needed FROM "segue".spans a
        WHERE a.segment = p_segment AND a.child IS DISTINCT FROM p_but;
    DELETE FROM "segue".entries e WHERE e.segment = p_segment AND e.seq > needed;
    GET DIAGNOSTICS gone = ROW_COUNT;
    DELETE FROM "segue".refs r WHERE r.segment = p_segment AND r.seq > needed;
    RETURN gone;
END
$$;
CREATE FUNCTION segue.entries_of(p_segment bigint, p_after bigint, p_upto bigint, p_kinds text[], p_reverse boolean, p_limit bigint) RETURNS SETOF segue.entries
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
    IF p_reverse THEN
        RETURN QUERY SELECT * FROM "segue".entries e
            WHERE e.segment = p_segment AND e.seq > p_after AND e.seq <= p_upto
                AND (p_kinds IS NULL OR e.kind = ANY (p_kinds))
            ORDER BY e.seq DESC LIMIT p_limit;
    ELSE
        RETURN QUERY SELECT * FROM "segue".entries e
            WHERE e.segment = p_segment AND e.seq > p_after AND e.seq <= p_upto
                AND (p_kinds IS NULL OR e.kind = ANY (p_kinds))
            ORDER BY e.seq LIMIT p_limit;
    END IF;
END
$$;
CREATE FUNCTION segue.erase(p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text, p_expect bigint) RETURNS TABLE(code text, name text, one bigint, two bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    s "segue".sessions;
    p record;
    gone bigint;
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    SELECT * INTO s FROM "segue".sessions t WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session;
    -- The session and all whose entries it shares: of two forks erased at once, one must come after the other.
    PERFORM FROM "segue".sessions t
        WHERE t.segment = s.segment
            OR t.segment IN (SELECT a.segment FROM "segue".spans a WHERE a.child = s.segment)
        ORDER BY t.tenant, t.user_id, t.id FOR UPDATE;
    SELECT * INTO s FROM "segue".sessions t WHERE t.segment = s.segment;
    code := 'done'; one := 0; two := 0;
    IF s.id IS NULL THEN
        code := 'not_found';
    ELSIF s.erased_us IS NULL AND p_expect <> s.version THEN
        code := 'version_moved'; one := s.version;
    END IF;
    IF code <> 'done' OR s.erased_us IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    one := "segue".cut(s.segment, NULL);
    SELECT count(*) INTO two FROM "segue".entries e WHERE e.segment = s.segment;
    -- What erased ancestors had kept for this session alone goes with it.
    FOR p IN
        SELECT a.segment FROM "segue".spans a JOIN "segue".sessions t ON t.segment = a.segment
        WHERE a.child = s.segment AND t.erased_us IS NOT NULL
    LOOP
        one := one + "segue".cut(p.segment, s.segment);
    END LOOP;
    DELETE FROM "segue".spans a WHERE a.child = s.segment;
    DELETE FROM "segue".tickets t WHERE t.segment = s.segment;
    UPDATE "segue".sessions t SET
        erased_us = "segue".now_us(p_shift), key = NULL, title = '', tags = '{}', metadata = '', config = NULL,
        idle_us = NULL, expires_us = NULL, lease_run = NULL, lease_paused = NULL, lease_until_us = NULL,
        lease_holder = NULL, parent = NULL, parent_seq = NULL, parent_link = NULL
        WHERE t.segment = s.segment;
    PERFORM "segue".tell(p_from, ARRAY[p_session]);
    RETURN NEXT;
END
$$;
CREATE FUNCTION segue.first_conflict(p_segment bigint, p_base bigint, p_at bigint, e_id text[], e_digest bytea[], p_twice bigint) RETURNS TABLE(name text, one bigint)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    k record;
    fresh bigint := p_twice;
    twice_seq bigint;
BEGIN
    FOR k IN SELECT * FROM "segue".known(p_segment, p_base, e_id) AS k WHERE k.seq <= p_at ORDER BY k.n LOOP
        IF k.digest <> e_digest[k.n] THEN
            name := e_id[k.n]; one := k.seq;
            RETURN NEXT;
            RETURN;
        END IF;
        IF k.n = p_twice THEN
            twice_seq := k.seq;
        ELSIF k.n < p_twice THEN
            fresh := fresh - 1;
        END IF;
    END LOOP;
    IF p_twice IS NOT NULL THEN
        name := e_id[p_twice]; one := COALESCE(twice_seq, p_at + fresh);
        RETURN NEXT;
    END IF;
END
$$;
CREATE FUNCTION segue.hollow(p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text, p_seqs bigint[]) RETURNS TABLE(code text, name text, one bigint, two bigint, three bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    s "segue".sessions;
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    SELECT * INTO s FROM "segue".sessions t
        WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session FOR NO KEY UPDATE;
    IF s.id IS NULL OR s.erased_us IS NOT NULL THEN
        code := 'not_found';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT i.seq INTO one FROM unnest(p_seqs) WITH ORDINALITY AS i(seq, n)
        WHERE i.seq <= s.base OR i.seq > s.head ORDER BY i.n LIMIT 1;
    IF FOUND THEN
        code := 'not_own'; two := s.base; three := s.head;
        RETURN NEXT;
        RETURN;
    END IF;
    UPDATE "segue".entries e SET body = NULL, refs = NULL
        WHERE e.segment = s.segment AND e.seq = ANY (p_seqs) AND e.body IS NOT NULL;
    GET DIAGNOSTICS one = ROW_COUNT;
    DELETE FROM "segue".refs r WHERE r.segment = s.segment AND r.seq = ANY (p_seqs);
    code := 'done';
    PERFORM "segue".tell(p_from, ARRAY[p_session]);
    RETURN NEXT;
END
$$;
CREATE FUNCTION segue.info(p_shift bigint, p_tenant text, p_user text, p_session text, p_key text) RETURNS TABLE(now_us bigint, waiting bigint, session segue.sessions)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
BEGIN
    IF p_session IS NOT NULL THEN
        SELECT * INTO session FROM "segue".sessions t
            WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session;
    ELSE
        SELECT * INTO session FROM "segue".sessions t
            WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.key = p_key AND t.erased_us IS NULL;
    END IF;
    IF session.id IS NOT NULL AND session.erased_us IS NULL THEN
        now_us := "segue".now_us(p_shift);
        SELECT count(*) INTO waiting FROM "segue".tickets t
            WHERE t.segment = session.segment AND t.lapses_us > now_us;
        RETURN NEXT;
    END IF;
END
$$;
CREATE FUNCTION segue.known(p_segment bigint, p_base bigint, e_id text[]) RETURNS TABLE(n bigint, seq bigint, digest bytea)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
BEGIN
    RETURN QUERY
        SELECT i.n, e.seq, e.digest FROM unnest(e_id) WITH ORDINALITY AS i(id, n),
            LATERAL (SELECT o.seq, o.digest FROM "segue".entries o
                     WHERE o.segment = p_segment AND o.id = i.id OFFSET 0) e;
    IF p_base > 0 THEN
        RETURN QUERY
            SELECT i.n, e.seq, e.digest FROM unnest(e_id) WITH ORDINALITY AS i(id, n), "segue".spans p,
                LATERAL (SELECT o.seq, o.digest FROM "segue".entries o
                         WHERE o.segment = p.segment AND o.id = i.id OFFSET 0) e
            WHERE p.child = p_segment AND e.seq > p.low AND e.seq <= p.upto;
    END IF;
END
$$;
CREATE FUNCTION segue.now_us(p_shift bigint) RETURNS bigint
    LANGUAGE sql PARALLEL SAFE
    AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + p_shift
$$;
CREATE FUNCTION segue.parts(p_tenant text, p_user text, p_session text) RETURNS TABLE(segment bigint, low bigint, upto bigint)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    s record;
BEGIN
    SELECT t.segment, t.base, t.head, t.erased_us INTO s FROM "segue".sessions t
        WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session;
    IF NOT FOUND OR s.erased_us IS NOT NULL THEN
        RETURN;
    END IF;
    IF s.base > 0 THEN
        RETURN QUERY SELECT a.segment, a.low, a.upto FROM "segue".spans a WHERE a.child = s.segment ORDER BY a.low;
    END IF;
    segment := s.segment; low := s.base; upto := s.head;
    RETURN NEXT;
END
$$;
CREATE FUNCTION segue.plus(p_one bigint[], p_two bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
BEGIN
    FOR i IN 1 .. cardinality(p_two) LOOP
        p_one[i] := p_one[i] + p_two[i];
    END LOOP;
    RETURN p_one;
END
$$;
CREATE FUNCTION segue.read(p_tenant text, p_user text, p_session text, p_after bigint, p_upto bigint, p_kinds text[], p_reverse boolean, p_limit bigint) RETURNS SETOF segue.entries
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    s record;
    p record;
    n bigint;
    header "segue".entries;
    still bigint := p_limit;
BEGIN
    SELECT t.segment, t.base, t.head, t.erased_us INTO s FROM "segue".sessions t
        WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session;
    IF NOT FOUND OR s.erased_us IS NOT NULL THEN
        RETURN;
    END IF;
    header.seq := s.head;
    RETURN NEXT header;
    -- Its own entries are asked for here, since most sessions are no forks.
    IF p_reverse THEN
        RETURN QUERY SELECT * FROM "segue".entries e
            WHERE e.segment = s.segment AND e.seq > p_after AND e.seq <= p_upto
                AND (p_kinds IS NULL OR e.kind = ANY (p_kinds))
            ORDER BY e.seq DESC LIMIT still;
        GET DIAGNOSTICS n = ROW_COUNT;
        still := still - n;
    END IF;
    IF s.base > p_after AND still > 0 THEN
        FOR p IN
            SELECT a.segment, a.low, a.upto FROM "segue".spans a
            WHERE a.child = s.segment AND a.upto > p_after AND a.low < p_upto
            ORDER BY CASE WHEN p_reverse THEN -a.low ELSE a.low END
        LOOP
            RETURN QUERY SELECT * FROM "segue".entries_of(
                p.segment, GREATEST(p_after, p.low), LEAST(p_upto, p.upto), p_kinds, p_reverse, still);
            GET DIAGNOSTICS n = ROW_COUNT;
            still := still - n;
            EXIT WHEN still <= 0;
        END LOOP;
    END IF;
    IF NOT p_reverse THEN
        RETURN QUERY SELECT * FROM "segue".entries e
            WHERE e.segment = s.segment AND e.seq > p_after AND e.seq <= p_upto
                AND (p_kinds IS NULL OR e.kind = ANY (p_kinds))
            ORDER BY e.seq LIMIT still;
    END IF;
END
$$;
CREATE FUNCTION segue.refs_of(p_segment bigint, p_ref text, p_after bigint, p_upto bigint, p_since_us bigint, p_reverse boolean, p_limit bigint) RETURNS SETOF bigint
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
    IF p_reverse THEN
        RETURN QUERY SELECT r.seq FROM "segue".refs r
            WHERE r.segment = p_segment AND r.ref = p_ref AND r.seq > p_after AND r.seq <= p_upto
                AND (p_since_us IS NULL OR r.created_us >= p_since_us)
            ORDER BY r.seq DESC LIMIT p_limit;
    ELSE
        RETURN QUERY SELECT r.seq FROM "segue".refs r
            WHERE r.segment = p_segment AND r.ref = p_ref AND r.seq > p_after AND r.seq <= p_upto
                AND (p_since_us IS NULL OR r.created_us >= p_since_us)
            ORDER BY r.seq LIMIT p_limit;
    END IF;
END
$$;
CREATE FUNCTION segue.refuse_twice(p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text, p_is_take boolean, e_id text[], e_digest bytea[], p_twice bigint) RETURNS TABLE(code text, name text, one bigint)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    s "segue".sessions;
BEGIN
    SELECT * INTO s FROM "segue".sessions t WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session;
    IF s.id IS NULL OR s.erased_us IS NOT NULL THEN
        code := 'not_found';
    ELSIF p_is_take AND s.state = 2 THEN
        code := 'archived';
    ELSE
        code := 'id_conflict';
        SELECT c.name, c.one INTO name, one
            FROM "segue".first_conflict(s.segment, s.base, s.head, e_id, e_digest, p_twice) AS c;
    END IF;
    RETURN NEXT;
END
$$;
CREATE FUNCTION segue.release(p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text, p_run text, p_fence bigint, p_pause_us bigint) RETURNS TABLE(code text, name text, one bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    s "segue".sessions;
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    SELECT * INTO s FROM "segue".sessions t
        WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session FOR NO KEY UPDATE;
    code := 'done';
    IF s.id IS NULL OR s.erased_us IS NOT NULL THEN
        code := 'not_found';
    ELSIF p_fence IS NULL THEN
        DELETE FROM "segue".tickets t WHERE t.segment = s.segment AND t.run = p_run;
    ELSIF s.fence <> p_fence OR s.lease_run IS DISTINCT FROM p_run THEN
        IF p_pause_us IS NOT NULL THEN
            code := 'lease_lost'; one := s.fence;
        END IF;
    ELSIF p_pause_us IS NULL THEN
        UPDATE "segue".sessions t
            SET lease_run = NULL, lease_paused = NULL, lease_until_us = NULL, lease_holder = NULL
            WHERE t.segment = s.segment;
    ELSE
        UPDATE "segue".sessions t
            SET lease_paused = true, lease_until_us = "segue".now_us(p_shift) + p_pause_us
            WHERE t.segment = s.segment;
    END IF;
    IF code = 'done' THEN
        PERFORM "segue".tell(p_from, ARRAY[p_session]);
    END IF;
    RETURN NEXT;
END
$$;
CREATE FUNCTION segue.renew(p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text, p_run text, p_fence bigint, p_ttl_us bigint) RETURNS TABLE(code text, name text, one bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    s "segue".sessions;
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    SELECT * INTO s FROM "segue".sessions t
        WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session FOR NO KEY UPDATE;
    IF s.id IS NULL OR s.erased_us IS NOT NULL THEN
        code := 'not_found';
    ELSIF s.fence <> p_fence OR s.lease_run IS DISTINCT FROM p_run OR s.lease_paused THEN
        code := 'lease_lost'; one := s.fence;
    ELSE
        code := 'done'; one := "segue".now_us(p_shift) + p_ttl_us; name := s.lease_holder;
        UPDATE "segue".sessions t SET lease_until_us = one WHERE t.segment = s.segment;
    END IF;
    RETURN NEXT;
END
$$;
CREATE FUNCTION segue.share(p_child bigint, p_source bigint, p_base bigint, p_at bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
BEGIN
    INSERT INTO "segue".spans (child, segment, low, upto)
        SELECT p_child, p.segment, p.low, LEAST(p.upto, p_at)
        FROM "segue".spans p WHERE p.child = p_source AND p.low < p_at;
    IF p_at > p_base THEN
        INSERT INTO "segue".spans (child, segment, low, upto) VALUES (p_child, p_source, p_base, p_at);
    END IF;
END
$$;
CREATE FUNCTION segue.take(p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text, p_run text, p_ttl_us bigint, p_policy text, p_holder text, p_over text, p_dead text, p_ticket_us bigint, e_id text[], e_digest bytea[], e_kind text[], e_format text[], e_origin text[], e_body bytea[], e_refs text[], e_occurred bigint[], e_usage text[]) RETURNS TABLE(code text, name text, one bigint, two bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    s "segue".sessions;
    k record;
    now bigint;
    is_mine boolean;
    before bigint;
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    SELECT * INTO s FROM "segue".sessions t
        WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session FOR NO KEY UPDATE;
    now := "segue".now_us(p_shift);
    IF s.id IS NULL OR s.erased_us IS NOT NULL THEN
        code := 'not_found';
    ELSIF s.state = 2 THEN
        code := 'archived';
    ELSIF cardinality(e_id) > 0 THEN
        SELECT n.n, n.seq INTO k FROM "segue".known(s.segment, s.base, e_id) AS n
            WHERE n.digest <> e_digest[n.n] ORDER BY n.n LIMIT 1;
        IF FOUND THEN
            code := 'id_conflict'; name := e_id[k.n]; one := k.seq;
        END IF;
    END IF;
    IF code IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    is_mine := s.lease_run = p_run AND NOT s.lease_paused;
    IF NOT COALESCE(is_mine, false) THEN
        is_mine := false;
        name := CASE WHEN NOT s.lease_paused AND s.lease_until_us > now AND s.lease_holder IS DISTINCT FROM p_dead
                     THEN s.lease_run END;
        IF p_policy IN ('interrupt', 'rollback') THEN
            before := 0;
            is_mine := name IS NULL OR name IS NOT DISTINCT FROM p_over;
        END IF;
        IF NOT is_mine THEN
            before := "segue".before(s.segment, p_run, now);
            is_mine := p_policy NOT IN ('interrupt', 'rollback') AND name IS NULL AND before = 0;
        END IF;
        IF NOT is_mine THEN
            code := 'busy'; one := before;
            IF p_policy = 'enqueue' THEN
                code := 'queued';
                DELETE FROM "segue".tickets t WHERE t.segment = s.segment AND t.lapses_us <= now;
                INSERT INTO "segue".tickets (segment, run, lapses_us) VALUES (s.segment, p_run, now + p_ticket_us)
                    ON CONFLICT (segment, run) DO UPDATE SET lapses_us = excluded.lapses_us;
            END IF;
            RETURN NEXT;
            RETURN;
        END IF;
        s.fence := s.fence + 1;
    END IF;
    code := 'done'; name := NULL; one := s.fence; two := now + p_ttl_us;
    DELETE FROM "segue".tickets t WHERE t.segment = s.segment AND t.run = p_run;
    UPDATE "segue".sessions t SET
        fence = s.fence, lease_run = p_run, lease_paused = false, lease_until_us = two, lease_holder = p_holder,
        version = t.version + t.state, state = 0
        WHERE t.segment = s.segment;
    IF cardinality(e_id) > 0 THEN
        PERFORM "segue".append(
            p_shift, NULL, NULL, ARRAY[p_tenant], ARRAY[p_user], ARRAY[p_session], ARRAY[p_run], ARRAY[s.fence],
            ARRAY[NULL::bigint], ARRAY[cardinality(e_id)::bigint],
            e_id, e_digest, e_kind, e_format, e_origin, e_body, e_refs, e_occurred, e_usage);
    END IF;
    PERFORM "segue".tell(p_from, ARRAY[p_session]);
    RETURN NEXT;
END
$$;
CREATE FUNCTION segue.tell(p_from text, p_sessions text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
    names text := array_to_string(p_sessions, E'\n');
BEGIN
    IF p_from IS NOT NULL THEN
        PERFORM pg_notify('segue', p_from || E'\n' || CASE WHEN octet_length(names) > 7900 THEN '' ELSE names END);
    END IF;
END
$$;
CREATE FUNCTION segue.update_session(p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text, p_expect bigint, p_if_due_us bigint, p_names text[], p_key text, p_title bytea, p_tags bytea[], p_metadata bytea, p_pinned boolean, p_listed boolean, p_state bigint, p_config bytea, p_idle_us bigint, p_expires_us bigint) RETURNS TABLE(code text, name text, one bigint, now_us bigint, waiting bigint, session segue.sessions)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    s "segue".sessions;
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    SELECT * INTO s FROM "segue".sessions t
        WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session FOR NO KEY UPDATE;
    now_us := "segue".now_us(p_shift);
    code := 'done';
    IF s.id IS NULL OR s.erased_us IS NOT NULL THEN
        code := 'not_found';
    ELSIF p_expect <> s.version OR p_if_due_us IS NOT NULL
          AND (s.is_pinned OR s.due_us IS NULL OR s.due_us > p_if_due_us) THEN
        code := 'version_moved'; one := s.version;
    ELSIF 'state' = ANY (p_names) AND p_state = 2 AND s.state <> 2
          AND s.lease_run IS NOT NULL AND NOT s.lease_paused AND s.lease_until_us > now_us THEN
        code := 'busy'; name := s.lease_run;
    ELSIF 'key' = ANY (p_names) AND p_key IS DISTINCT FROM s.key THEN
        SELECT t.id INTO name FROM "segue".sessions t
            WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.key = p_key AND t.erased_us IS NULL;
        code := CASE WHEN name IS NULL THEN 'done' ELSE 'key_taken' END;
    END IF;
    IF code = 'done' THEN
        UPDATE "segue".sessions t SET
            version = t.version + 1,
            key = CASE WHEN 'key' = ANY (p_names) THEN p_key ELSE t.key END,
            title = CASE WHEN 'title' = ANY (p_names) THEN p_title ELSE t.title END,
            tags = CASE WHEN 'tags' = ANY (p_names) THEN p_tags ELSE t.tags END,
            metadata = CASE WHEN 'metadata' = ANY (p_names) THEN p_metadata ELSE t.metadata END,
            is_pinned = CASE WHEN 'is_pinned' = ANY (p_names) THEN p_pinned ELSE t.is_pinned END,
            is_listed = CASE WHEN 'is_listed' = ANY (p_names) THEN p_listed ELSE t.is_listed END,
            config = CASE WHEN 'config' = ANY (p_names) THEN p_config ELSE t.config END,
            idle_us = CASE WHEN 'idle_us' = ANY (p_names) THEN p_idle_us ELSE t.idle_us END,
            expires_us = CASE WHEN 'expires_us' = ANY (p_names) THEN p_expires_us ELSE t.expires_us END,
            state = CASE WHEN 'state' = ANY (p_names) THEN p_state ELSE t.state END,
            archived_us = CASE
                WHEN NOT 'state' = ANY (p_names) OR p_state = t.state THEN t.archived_us
                WHEN p_state = 2 THEN now_us
            END
        WHERE t.segment = s.segment
        RETURNING * INTO session;
        SELECT count(*) INTO waiting FROM "segue".tickets t WHERE t.segment = s.segment AND t.lapses_us > now_us;
        PERFORM "segue".tell(p_from, ARRAY[p_session]);
    END IF;
    RETURN NEXT;
END
$$;
CREATE TABLE segue.spans (
    child bigint NOT NULL,
    segment bigint NOT NULL,
    low bigint NOT NULL,
    upto bigint NOT NULL,
    CONSTRAINT spans_check CHECK ((low < upto))
);
COMMENT ON TABLE segue.spans IS 'The fork whose segment is child takes the entries low < seq <= upto of another segment.';
CREATE VIEW segue.conversations WITH (security_invoker='true') AS
 SELECT s.id AS session_id,
    s.user_id,
    m.messages,
    s.usage[1] AS total_input_tokens,
    s.usage[2] AS total_output_tokens,
    s.state AS status,
    to_timestamp((((s.created_us)::numeric / 1000000.0))::double precision) AS created_at,
    to_timestamp((((s.active_us)::numeric / 1000000.0))::double precision) AS updated_at,
    s.tenant
   FROM (segue.sessions s
     CROSS JOIN LATERAL ( SELECT (('['::text || COALESCE(string_agg(convert_from(e.body, 'UTF8'::name), ','::text ORDER BY e.seq), ''::text)) || ']'::text) AS messages
           FROM (( SELECT s.segment,
                    s.base AS low,
                    s.head AS upto
                UNION ALL
                 SELECT a.segment,
                    a.low,
                    a.upto
                   FROM segue.spans a
                  WHERE ((s.base > 0) AND (a.child = s.segment))) p
             JOIN segue.entries e ON (((e.segment = p.segment) AND (e.seq > p.low) AND (e.seq <= p.upto))))
          WHERE ((e.kind = 'message'::text) AND (e.format <> 'raw'::text) AND (e.body IS NOT NULL))) m)
  WHERE (s.erased_us IS NULL);
COMMENT ON VIEW segue.conversations IS 'status: 0 active, 1 completed, 2 archived. messages: the bodies of the session''s messages, forks'' shared ones included; what is erased is left out.';
CREATE TABLE segue.migrations (
    version integer NOT NULL,
    name text NOT NULL,
    digest text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE segue.refs (
    segment bigint NOT NULL,
    seq bigint NOT NULL,
    created_us bigint NOT NULL,
    tenant text NOT NULL COLLATE pg_catalog."C",
    user_id text NOT NULL COLLATE pg_catalog."C",
    ref text NOT NULL COLLATE pg_catalog."C"
);
ALTER TABLE segue.sessions ALTER COLUMN segment ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME segue.sessions_segment_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE segue.tickets (
    segment bigint NOT NULL,
    place bigint NOT NULL,
    lapses_us bigint NOT NULL,
    run text NOT NULL COLLATE pg_catalog."C"
);
COMMENT ON TABLE segue.tickets IS 'Runs that wait for a session, first come first served.';
ALTER TABLE segue.tickets ALTER COLUMN place ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME segue.tickets_place_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
INSERT INTO segue.entries VALUES (1, 1, 1795989538204472, 1767323045678901, 'one', 'message', 'anthropic', 'user', 'run-1', NULL, '{5,7,0,0,0,0}', '\x54389fc7e9f061be8303bcf4b8dd5ef091cc68e38643ced952145cdeace38208', '\x7b22726f6c65223a2275736572222c22636f6e74656e74223a22e68ea5e79d80e698a8e5a4a9e982a3e4b8aa227d');
INSERT INTO segue.entries VALUES (1, 2, 1795989538204472, 1767323045678901, 'two', 'message', 'anthropic', 'model', 'run-1', '{call:t1}', '{5,7,0,0,0,0}', '\x8c62eb05a42de0802548374c4d5b8b9736630127e70d261c4bc437d9ad3efa30', '\x7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274797065223a22746f6f6c5f757365222c226964223a227431222c226e616d65223a2266222c22696e707574223a7b7d7d5d7d');
INSERT INTO segue.entries VALUES (1, 3, 1795989538209229, NULL, '01a2295185a0f5023b063edb568f2fef', 'message', 'anthropic', 'tool', 'run-1', '{call:t1}', NULL, '\x40d42b8588f16890e940697f702aa64a888ed3bedbfbd0eb09dbc4c4d995ac22', '\x7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274797065223a22746f6f6c5f726573756c74222c22746f6f6c5f7573655f6964223a227431222c22636f6e74656e74223a226f6b227d5d7d');
INSERT INTO segue.entries VALUES (1, 4, 1795989538216169, NULL, '01a2295185a55fbecd59db7a1122dfc2', 'app.fact', 'json', 'system', NULL, '{source:x}', NULL, '\x4b39ca46908dbd4be2d63f18fade26f97ba7ac9f7d11a88b259c419903a05a61', '\x7b20227370656c6c6564223a203165322c09226173223a20225c753030653922207d');
INSERT INTO segue.entries VALUES (1, 5, 1795989538220628, NULL, '01a2295185ace02084cf8c11ad98bd38', 'app.raw', 'raw', 'system', NULL, NULL, NULL, '\x08bde5dd345cbc1ba158f23ff811df72cb0afabe94a8612a10bb397c67ad1849', NULL);
INSERT INTO segue.entries VALUES (2, 3, 1795989538232689, NULL, '01a2295185b82c3bc1ca5f41ba884452', 'message', 'anthropic', 'user', NULL, NULL, NULL, '\xdda45fcbd6c23c2194cb8e0c9efbc6c738fceabf5c59482d30951423a486de9a', '\x7b22726f6c65223a2275736572222c22636f6e74656e74223a227878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878227d');
INSERT INTO segue.entries VALUES (7, 1, 1795989538280226, 1767323045678901, 'one', 'message', 'anthropic', 'user', 'run-1', NULL, '{5,7,0,0,0,0}', '\x54389fc7e9f061be8303bcf4b8dd5ef091cc68e38643ced952145cdeace38208', '\x7b22726f6c65223a2275736572222c22636f6e74656e74223a22e68ea5e79d80e698a8e5a4a9e982a3e4b8aa227d');
INSERT INTO segue.entries VALUES (7, 2, 1795989538280226, 1767323045678901, 'two', 'message', 'anthropic', 'model', 'run-1', '{call:t1}', '{5,7,0,0,0,0}', '\x8c62eb05a42de0802548374c4d5b8b9736630127e70d261c4bc437d9ad3efa30', '\x7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274797065223a22746f6f6c5f757365222c226964223a227431222c226e616d65223a2266222c22696e707574223a7b7d7d5d7d');
INSERT INTO segue.entries VALUES (7, 3, 1795989538281593, NULL, '01a2295185e9f3c5223a723cc57a42a7', 'message', 'anthropic', 'tool', 'run-1', '{call:t1}', NULL, '\x40d42b8588f16890e940697f702aa64a888ed3bedbfbd0eb09dbc4c4d995ac22', '\x7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274797065223a22746f6f6c5f726573756c74222c22746f6f6c5f7573655f6964223a227431222c22636f6e74656e74223a226f6b227d5d7d');
INSERT INTO segue.entries VALUES (7, 4, 1795989538283492, NULL, '01a2295185eb36cc753f5af82f3a7b44', 'app.fact', 'json', 'system', NULL, '{source:x}', NULL, '\x4b39ca46908dbd4be2d63f18fade26f97ba7ac9f7d11a88b259c419903a05a61', '\x7b20227370656c6c6564223a203165322c09226173223a20225c753030653922207d');
INSERT INTO segue.entries VALUES (7, 5, 1795989538285945, NULL, '01a2295185edd028452942b0ff6c266e', 'app.raw', 'raw', 'system', NULL, NULL, NULL, '\x08bde5dd345cbc1ba158f23ff811df72cb0afabe94a8612a10bb397c67ad1849', NULL);
INSERT INTO segue.entries VALUES (8, 3, 1795989538294045, NULL, '01a2295185f5915ebc3fe7d858670a36', 'message', 'anthropic', 'user', NULL, NULL, NULL, '\xdda45fcbd6c23c2194cb8e0c9efbc6c738fceabf5c59482d30951423a486de9a', '\x7b22726f6c65223a2275736572222c22636f6e74656e74223a227878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878227d');
INSERT INTO segue.entries VALUES (13, 1, 1795989538336948, 1767323045678901, 'one', 'message', 'anthropic', 'user', 'run-1', NULL, '{5,7,0,0,0,0}', '\x54389fc7e9f061be8303bcf4b8dd5ef091cc68e38643ced952145cdeace38208', '\x7b22726f6c65223a2275736572222c22636f6e74656e74223a22e68ea5e79d80e698a8e5a4a9e982a3e4b8aa227d');
INSERT INTO segue.entries VALUES (13, 2, 1795989538336948, 1767323045678901, 'two', 'message', 'anthropic', 'model', 'run-1', '{call:t1}', '{5,7,0,0,0,0}', '\x8c62eb05a42de0802548374c4d5b8b9736630127e70d261c4bc437d9ad3efa30', '\x7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274797065223a22746f6f6c5f757365222c226964223a227431222c226e616d65223a2266222c22696e707574223a7b7d7d5d7d');
INSERT INTO segue.entries VALUES (13, 3, 1795989538340577, NULL, '01a229518624baa9d53984f4eb079af0', 'message', 'anthropic', 'tool', 'run-1', '{call:t1}', NULL, '\x40d42b8588f16890e940697f702aa64a888ed3bedbfbd0eb09dbc4c4d995ac22', '\x7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274797065223a22746f6f6c5f726573756c74222c22746f6f6c5f7573655f6964223a227431222c22636f6e74656e74223a226f6b227d5d7d');
INSERT INTO segue.entries VALUES (13, 4, 1795989538344904, NULL, '01a229518628809e705bb10f29d7f530', 'app.fact', 'json', 'system', NULL, '{source:x}', NULL, '\x4b39ca46908dbd4be2d63f18fade26f97ba7ac9f7d11a88b259c419903a05a61', '\x7b20227370656c6c6564223a203165322c09226173223a20225c753030653922207d');
INSERT INTO segue.entries VALUES (13, 5, 1795989538347749, NULL, '01a22951862bfa572bf07e6a08053408', 'app.raw', 'raw', 'system', NULL, NULL, NULL, '\x08bde5dd345cbc1ba158f23ff811df72cb0afabe94a8612a10bb397c67ad1849', NULL);
INSERT INTO segue.entries VALUES (14, 3, 1795989538360695, NULL, '01a2295186382a65dcf4cf06176831b3', 'message', 'anthropic', 'user', NULL, NULL, NULL, '\xdda45fcbd6c23c2194cb8e0c9efbc6c738fceabf5c59482d30951423a486de9a', '\x7b22726f6c65223a2275736572222c22636f6e74656e74223a227878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878227d');
INSERT INTO segue.migrations VALUES (1, 'tables', '05c892863ef564a866eeea1456aa4d551e2e8a760685e12f626a631b48388e16', '2026-11-29 21:58:58.003253+00');
INSERT INTO segue.migrations VALUES (2, 'append', '4125cd9a54b97eec7aae1a80bf535bd417b61441826c3e771a709283d7d4de63', '2026-11-29 21:58:58.11334+00');
INSERT INTO segue.migrations VALUES (3, 'sessions', 'c08689451f1192a4160934c51a56c20f48aa2908c24cf6c388ee354532e05c6f', '2026-11-29 21:58:58.118489+00');
INSERT INTO segue.migrations VALUES (4, 'leases', 'e061cfb3f110af2f3a40a5cdc097bd1597dfa0dc2eab213ca8be20278002c8f9', '2026-11-29 21:58:58.136654+00');
INSERT INTO segue.migrations VALUES (5, 'reading', '83dcbf4481bab0d7e29709b9c1a2f156a382f3403baad13f09a8035da17f9a89', '2026-11-29 21:58:58.144466+00');
INSERT INTO segue.refs VALUES (1, 2, 1795989538204472, 'acme', 'lin', 'call:t1');
INSERT INTO segue.refs VALUES (1, 3, 1795989538209229, 'acme', 'lin', 'call:t1');
INSERT INTO segue.refs VALUES (1, 4, 1795989538216169, 'acme', 'lin', 'source:x');
INSERT INTO segue.refs VALUES (7, 2, 1795989538280226, 'acme', '王', 'call:t1');
INSERT INTO segue.refs VALUES (7, 3, 1795989538281593, 'acme', '王', 'call:t1');
INSERT INTO segue.refs VALUES (7, 4, 1795989538283492, 'acme', '王', 'source:x');
INSERT INTO segue.refs VALUES (13, 2, 1795989538336948, 'Ünder', 'lin', 'call:t1');
INSERT INTO segue.refs VALUES (13, 3, 1795989538340577, 'Ünder', 'lin', 'call:t1');
INSERT INTO segue.refs VALUES (13, 4, 1795989538344904, 'Ünder', 'lin', 'source:x');
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (8, 3, 2, 0, 1, 1795989538292623, 1795989538294045, NULL, NULL, NULL, NULL, NULL, 2, 0, false, true, NULL, 'acme', '王', 'fork', NULL, 'anthropic', 'first', 'fork', NULL, NULL, '\x616e6f7468657220776179', '\x7b2262223a5b312c6e756c6c5d2c2261223a2278227d', NULL, '{"\\x61","\\xc3bc"}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (1, 5, 0, 1, 1, 1795989538184701, 1795989538220628, NULL, NULL, NULL, NULL, NULL, NULL, 0, false, true, NULL, 'acme', 'lin', 'first', 'k/1', 'anthropic', NULL, NULL, NULL, NULL, '\xe585abe69c88', '\x7b2262223a5b312c6e756c6c5d2c2261223a2278227d', NULL, '{"\\x61","\\xc3bc"}', '{10,14,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (2, 3, 2, 0, 1, 1795989538228486, 1795989538232689, NULL, NULL, NULL, NULL, NULL, 2, 0, false, true, NULL, 'acme', 'lin', 'fork', NULL, 'anthropic', 'first', 'fork', NULL, NULL, '\x616e6f7468657220776179', '\x7b2262223a5b312c6e756c6c5d2c2261223a2278227d', NULL, '{"\\x61","\\xc3bc"}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (3, 0, 0, 0, 1, 1795989538236592, 1795989538236592, NULL, 1795989538241567, NULL, NULL, NULL, NULL, 0, false, true, NULL, 'acme', 'lin', 'gone', NULL, 'anthropic', NULL, NULL, NULL, NULL, '\x', '\x', NULL, '{}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (4, 0, 0, 0, 2, 1795989538244766, 1795989538244766, 1795989538249074, NULL, 259200000000, NULL, NULL, NULL, 2, false, true, NULL, 'acme', 'lin', 'archived', NULL, 'anthropic', NULL, NULL, NULL, NULL, '\x', '\x7b7d', NULL, '{}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (5, 0, 0, 0, 1, 1795989538252648, 1795989538252648, NULL, NULL, NULL, NULL, NULL, NULL, 0, true, false, NULL, 'acme', 'lin', 'pinned', NULL, 'anthropic', NULL, NULL, NULL, NULL, '\x', '\x7b7d', NULL, '{}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (9, 0, 0, 0, 1, 1795989538296488, 1795989538296488, NULL, 1795989538299858, NULL, NULL, NULL, NULL, 0, false, true, NULL, 'acme', '王', 'gone', NULL, 'anthropic', NULL, NULL, NULL, NULL, '\x', '\x', NULL, '{}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (6, 0, 0, 1, 1, 1795989538260720, 1795989538260720, NULL, NULL, NULL, NULL, 2659989538269770, NULL, 0, false, true, true, 'acme', 'lin', 'paused', NULL, 'anthropic', NULL, NULL, 'run-2', '{"host":"vm","boot":"89aa6b5b-5130-4307-9022-e775535bdd0d","space":"pid:[4026531836]","pid":22602,"start":"82690"}', '\x', '\x7b7d', NULL, '{}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (10, 0, 0, 0, 2, 1795989538304572, 1795989538304572, 1795989538308643, NULL, 259200000000, NULL, NULL, NULL, 2, false, true, NULL, 'acme', '王', 'archived', NULL, 'anthropic', NULL, NULL, NULL, NULL, '\x', '\x7b7d', NULL, '{}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (7, 5, 0, 1, 1, 1795989538272491, 1795989538285945, NULL, NULL, NULL, NULL, NULL, NULL, 0, false, true, NULL, 'acme', '王', 'first', 'k/1', 'anthropic', NULL, NULL, NULL, NULL, '\xe585abe69c88', '\x7b2262223a5b312c6e756c6c5d2c2261223a2278227d', NULL, '{"\\x61","\\xc3bc"}', '{10,14,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (11, 0, 0, 0, 1, 1795989538312444, 1795989538312444, NULL, NULL, NULL, NULL, NULL, NULL, 0, true, false, NULL, 'acme', '王', 'pinned', NULL, 'anthropic', NULL, NULL, NULL, NULL, '\x', '\x7b7d', NULL, '{}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (15, 0, 0, 0, 1, 1795989538364425, 1795989538364425, NULL, 1795989538368777, NULL, NULL, NULL, NULL, 0, false, true, NULL, 'Ünder', 'lin', 'gone', NULL, 'anthropic', NULL, NULL, NULL, NULL, '\x', '\x', NULL, '{}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (12, 0, 0, 1, 1, 1795989538316422, 1795989538316422, NULL, NULL, NULL, NULL, 2659989538322960, NULL, 0, false, true, true, 'acme', '王', 'paused', NULL, 'anthropic', NULL, NULL, 'run-2', '{"host":"vm","boot":"89aa6b5b-5130-4307-9022-e775535bdd0d","space":"pid:[4026531836]","pid":22602,"start":"82690"}', '\x', '\x7b7d', NULL, '{}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (16, 0, 0, 0, 2, 1795989538372532, 1795989538372532, 1795989538380285, NULL, 259200000000, NULL, NULL, NULL, 2, false, true, NULL, 'Ünder', 'lin', 'archived', NULL, 'anthropic', NULL, NULL, NULL, NULL, '\x', '\x7b7d', NULL, '{}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (13, 5, 0, 1, 1, 1795989538324454, 1795989538347749, NULL, NULL, NULL, NULL, NULL, NULL, 0, false, true, NULL, 'Ünder', 'lin', 'first', 'k/1', 'anthropic', NULL, NULL, NULL, NULL, '\xe585abe69c88', '\x7b2262223a5b312c6e756c6c5d2c2261223a2278227d', NULL, '{"\\x61","\\xc3bc"}', '{10,14,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (14, 3, 2, 0, 1, 1795989538356861, 1795989538360695, NULL, NULL, NULL, NULL, NULL, 2, 0, false, true, NULL, 'Ünder', 'lin', 'fork', NULL, 'anthropic', 'first', 'fork', NULL, NULL, '\x616e6f7468657220776179', '\x7b2262223a5b312c6e756c6c5d2c2261223a2278227d', NULL, '{"\\x61","\\xc3bc"}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (17, 0, 0, 0, 1, 1795989538383673, 1795989538383673, NULL, NULL, NULL, NULL, NULL, NULL, 0, true, false, NULL, 'Ünder', 'lin', 'pinned', NULL, 'anthropic', NULL, NULL, NULL, NULL, '\x', '\x7b7d', NULL, '{}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.sessions OVERRIDING SYSTEM VALUE VALUES (18, 0, 0, 1, 1, 1795989538388534, 1795989538388534, NULL, NULL, NULL, NULL, 2659989538397426, NULL, 0, false, true, true, 'Ünder', 'lin', 'paused', NULL, 'anthropic', NULL, NULL, 'run-2', '{"host":"vm","boot":"89aa6b5b-5130-4307-9022-e775535bdd0d","space":"pid:[4026531836]","pid":22602,"start":"82690"}', '\x', '\x7b7d', NULL, '{}', '{0,0,0,0,0,0}', DEFAULT);
INSERT INTO segue.spans VALUES (2, 1, 0, 2);
INSERT INTO segue.spans VALUES (8, 7, 0, 2);
INSERT INTO segue.spans VALUES (14, 13, 0, 2);
SELECT pg_catalog.setval('segue.sessions_segment_seq', 18, true);
SELECT pg_catalog.setval('segue.tickets_place_seq', 1, false);
ALTER TABLE ONLY segue.entries
    ADD CONSTRAINT entries_pkey PRIMARY KEY (segment, seq);
ALTER TABLE ONLY segue.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY segue.refs
    ADD CONSTRAINT refs_pkey PRIMARY KEY (segment, ref, seq);
ALTER TABLE ONLY segue.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (tenant, user_id, id);
ALTER TABLE ONLY segue.spans
    ADD CONSTRAINT spans_pkey PRIMARY KEY (child, low);
ALTER TABLE ONLY segue.tickets
    ADD CONSTRAINT tickets_pkey PRIMARY KEY (segment, run);
CREATE UNIQUE INDEX entries_id ON segue.entries USING btree (segment, id);
CREATE INDEX refs_time ON segue.refs USING btree (tenant, user_id, ref, created_us, segment, seq);
CREATE INDEX sessions_active ON segue.sessions USING btree (tenant, user_id, active_us DESC, id DESC) WHERE (erased_us IS NULL);
CREATE INDEX sessions_due ON segue.sessions USING btree (tenant, user_id, due_us, id) WHERE ((due_us IS NOT NULL) AND (erased_us IS NULL));
CREATE UNIQUE INDEX sessions_key ON segue.sessions USING btree (tenant, user_id, key) WHERE ((key IS NOT NULL) AND (erased_us IS NULL));
CREATE INDEX sessions_parent ON segue.sessions USING btree (tenant, user_id, parent) WHERE ((parent IS NOT NULL) AND (erased_us IS NULL));
CREATE UNIQUE INDEX sessions_segment ON segue.sessions USING btree (segment);
CREATE INDEX spans_segment ON segue.spans USING btree (segment, upto);
CREATE POLICY mine ON segue.entries USING ((EXISTS ( SELECT
   FROM segue.sessions s
  WHERE (s.segment = entries.segment))));
CREATE POLICY mine ON segue.refs USING (((tenant = ( SELECT current_setting('segue.tenant'::text, true) AS current_setting)) AND (user_id = ( SELECT current_setting('segue.user'::text, true) AS current_setting))));
CREATE POLICY mine ON segue.sessions USING (((tenant = ( SELECT current_setting('segue.tenant'::text, true) AS current_setting)) AND (user_id = ( SELECT current_setting('segue.user'::text, true) AS current_setting))));
CREATE POLICY mine ON segue.spans USING ((EXISTS ( SELECT
   FROM segue.sessions s
  WHERE (s.segment = spans.child))));
CREATE POLICY mine ON segue.tickets USING ((EXISTS ( SELECT
   FROM segue.sessions s
  WHERE (s.segment = tickets.segment))));
CREATE POLICY upkeep ON segue.refs FOR SELECT USING ((( SELECT current_setting('segue.upkeep'::text, true) AS current_setting) = 'on'::text));
CREATE POLICY upkeep ON segue.sessions FOR SELECT USING ((( SELECT current_setting('segue.upkeep'::text, true) AS current_setting) = 'on'::text));
