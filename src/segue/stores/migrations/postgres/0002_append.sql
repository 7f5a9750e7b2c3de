-- The operations of the store contract, one function each. A function decides and writes under the
-- lock of the session's row; what it refuses, it reports by a code and has written nothing. They are
-- functions because then an operation is one round trip, its plans are kept by the server (a pooler
-- between us takes no prepared statements), and each statement inside sees what the lock waited for.
-- Plans are generic on purpose: they are look-ups by whole keys, which no statistics can better.
--
-- p_shift moves the clock (tests); p_lock_ms limits waiting for a lock where the connection does not;
-- p_from names the sender of a notification, NULL sends none. Entries come as parallel arrays.

CREATE FUNCTION @schema@.now_us(p_shift bigint) RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + p_shift
$$;

-- Told when the transaction commits. A payload has 7,999 bytes; an empty list of names means: any session.
CREATE FUNCTION @schema@.tell(p_from text, p_sessions text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    names text := array_to_string(p_sessions, E'\n');
BEGIN
    IF p_from IS NOT NULL THEN
        PERFORM pg_notify('@channel@', p_from || E'\n' || CASE WHEN octet_length(names) > 7900 THEN '' ELSE names END);
    END IF;
END
$$;

CREATE FUNCTION @schema@.plus(p_one bigint[], p_two bigint[]) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    FOR i IN 1 .. cardinality(p_two) LOOP
        p_one[i] := p_one[i] + p_two[i];
    END LOOP;
    RETURN p_one;
END
$$;

-- Which entries of a batch the session knows already; inherited ones count.
CREATE FUNCTION @schema@.known(p_segment bigint, p_base bigint, e_id text[])
RETURNS TABLE (n bigint, seq bigint, digest bytea)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
        SELECT i.n, e.seq, e.digest FROM unnest(e_id) WITH ORDINALITY AS i(id, n),
            LATERAL (SELECT o.seq, o.digest FROM @schema@.entries o
                     WHERE o.segment = p_segment AND o.id = i.id OFFSET 0) e;
    IF p_base > 0 THEN
        RETURN QUERY
            SELECT i.n, e.seq, e.digest FROM unnest(e_id) WITH ORDINALITY AS i(id, n), @schema@.spans p,
                LATERAL (SELECT o.seq, o.digest FROM @schema@.entries o
                         WHERE o.segment = p.segment AND o.id = i.id OFFSET 0) e
            WHERE p.child = p_segment AND e.seq > p.low AND e.seq <= p.upto;
    END IF;
END
$$;

-- Appends, in the order given. A row for each:
--   done         head, seqs, added
--   not_found, archived
--   id_conflict  name = entry id, one = its seq
--   lease_lost   one = current fence
--   busy         name = run, one = how many wait
--   head_moved   one = head
-- o_size says how many entries of the e_* arrays are each one's. e_refs (joined by newlines), e_occurred
-- and e_usage are NULL where no entry has any.
CREATE FUNCTION @schema@.append(
    p_shift bigint, p_lock_ms bigint, p_from text,
    o_tenant text[], o_user text[], o_session text[], o_run text[], o_fence bigint[], o_expect bigint[],
    o_size bigint[],
    e_id text[], e_digest bytea[], e_kind text[], e_format text[], e_origin text[], e_body bytea[],
    e_refs text[], e_occurred bigint[], e_usage text[]
) RETURNS TABLE (code text, name text, one bigint, head bigint, seqs bigint[], added integer)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
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
                       LATERAL (SELECT FROM @schema@.entries o WHERE o.segment = t.segment AND o.id = i.id OFFSET 0) e
               ) AS is_known
            INTO s FROM @schema@.sessions t
            WHERE t.tenant = o_tenant[op] AND t.user_id = o_user[op] AND t.id = o_session[op]
            FOR NO KEY UPDATE;
        IF NOT FOUND OR s.erased_us IS NOT NULL THEN
            code := 'not_found';
            RETURN NEXT;
            CONTINUE;
        END IF;
        now := @schema@.now_us(p_shift);
        LOOP
            IF s.is_known THEN
                FOR k IN SELECT * FROM @schema@.known(s.segment, s.base, ids) AS k ORDER BY k.n LOOP
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
                    SELECT count(*) INTO one FROM @schema@.tickets t WHERE t.segment = s.segment AND t.lapses_us > now;
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
                    total := @schema@.plus(total, e_usage[i]::bigint[]);
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
            INSERT INTO @schema@.entries
                (segment, seq, created_us, occurred_us, id, kind, format, origin, run, refs, usage, digest, body)
            SELECT s.segment, x.seq, now, x.occurred, x.id, x.kind, x.format, x.origin, o_run[op],
                   string_to_array(x.refs, E'\n'), x.usage::bigint[], x.digest, x.body
            FROM x
        ), r AS (
            INSERT INTO @schema@.refs (segment, seq, created_us, tenant, user_id, ref)
            SELECT DISTINCT s.segment, x.seq, now, o_tenant[op], o_user[op], r.ref
            FROM x, unnest(string_to_array(x.refs, E'\n')) AS r(ref)
            WHERE x.refs IS NOT NULL
        )
        UPDATE @schema@.sessions t
        SET head = append.head, active_us = now, usage = total, state = t.state - wakes::integer,
            version = t.version + wakes::integer
        WHERE t.segment = s.segment;
        changed := changed || o_session[op];
        RETURN NEXT;
    END LOOP;
    IF p_from IS NOT NULL AND cardinality(changed) > 0 THEN
        PERFORM @schema@.tell(p_from, changed);
    END IF;
END
$$;
