-- The lease of a session and its queue. See 0002 for what these functions have in common.

-- Takes the lease for a run, or a place in the queue.
--   done         one = fence, two = when it expires
--   queued       name = the run that holds it (NULL: none), one = how many are before
--   busy         name = the run that holds it (NULL: none), one = how many wait
--   not_found, archived
--   id_conflict  name = entry id, one = its seq
CREATE FUNCTION @schema@.take(
    p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text,
    p_run text, p_ttl_us bigint, p_policy text, p_holder text, p_over text, p_dead text, p_ticket_us bigint,
    e_id text[], e_digest bytea[], e_kind text[], e_format text[], e_origin text[], e_body bytea[],
    e_refs text[], e_occurred bigint[], e_usage text[]
) RETURNS TABLE (code text, name text, one bigint, two bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    s @schema@.sessions;
    k record;
    now bigint;
    is_mine boolean;
    before bigint;
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    SELECT * INTO s FROM @schema@.sessions t
        WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session FOR NO KEY UPDATE;
    now := @schema@.now_us(p_shift);
    IF s.id IS NULL OR s.erased_us IS NOT NULL THEN
        code := 'not_found';
    ELSIF s.state = 2 THEN
        code := 'archived';
    ELSIF cardinality(e_id) > 0 THEN
        SELECT n.n, n.seq INTO k FROM @schema@.known(s.segment, s.base, e_id) AS n
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
            before := @schema@.before(s.segment, p_run, now);
            is_mine := p_policy NOT IN ('interrupt', 'rollback') AND name IS NULL AND before = 0;
        END IF;
        IF NOT is_mine THEN
            code := 'busy'; one := before;
            IF p_policy = 'enqueue' THEN
                code := 'queued';
                DELETE FROM @schema@.tickets t WHERE t.segment = s.segment AND t.lapses_us <= now;
                INSERT INTO @schema@.tickets (segment, run, lapses_us) VALUES (s.segment, p_run, now + p_ticket_us)
                    ON CONFLICT (segment, run) DO UPDATE SET lapses_us = excluded.lapses_us;
            END IF;
            RETURN NEXT;
            RETURN;
        END IF;
        s.fence := s.fence + 1;
    END IF;
    code := 'done'; name := NULL; one := s.fence; two := now + p_ttl_us;
    DELETE FROM @schema@.tickets t WHERE t.segment = s.segment AND t.run = p_run;
    UPDATE @schema@.sessions t SET
        fence = s.fence, lease_run = p_run, lease_paused = false, lease_until_us = two, lease_holder = p_holder,
        version = t.version + t.state, state = 0
        WHERE t.segment = s.segment;
    IF cardinality(e_id) > 0 THEN
        PERFORM @schema@.append(
            p_shift, NULL, NULL, ARRAY[p_tenant], ARRAY[p_user], ARRAY[p_session], ARRAY[p_run], ARRAY[s.fence],
            ARRAY[NULL::bigint], ARRAY[cardinality(e_id)::bigint],
            e_id, e_digest, e_kind, e_format, e_origin, e_body, e_refs, e_occurred, e_usage);
    END IF;
    PERFORM @schema@.tell(p_from, ARRAY[p_session]);
    RETURN NEXT;
END
$$;

-- How many runs wait before this one (all, when it has no ticket that holds).
CREATE FUNCTION @schema@.before(p_segment bigint, p_run text, p_now bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM @schema@.tickets t
        WHERE t.segment = p_segment AND t.lapses_us > p_now AND t.place < COALESCE(
            (SELECT m.place FROM @schema@.tickets m
             WHERE m.segment = p_segment AND m.run = p_run AND m.lapses_us > p_now),
            9223372036854775807)
    );
END
$$;

-- Extends a lease, which concerns nobody else: done (one = when it expires), not_found, lease_lost (one = current fence).
CREATE FUNCTION @schema@.renew(
    p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text,
    p_run text, p_fence bigint, p_ttl_us bigint
) RETURNS TABLE (code text, name text, one bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    s @schema@.sessions;
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    SELECT * INTO s FROM @schema@.sessions t
        WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session FOR NO KEY UPDATE;
    IF s.id IS NULL OR s.erased_us IS NOT NULL THEN
        code := 'not_found';
    ELSIF s.fence <> p_fence OR s.lease_run IS DISTINCT FROM p_run OR s.lease_paused THEN
        code := 'lease_lost'; one := s.fence;
    ELSE
        code := 'done'; one := @schema@.now_us(p_shift) + p_ttl_us; name := s.lease_holder;
        UPDATE @schema@.sessions t SET lease_until_us = one WHERE t.segment = s.segment;
    END IF;
    RETURN NEXT;
END
$$;

-- Gives a lease back, pauses it (p_pause_us), or gives up a place in the queue (p_fence NULL):
-- done, not_found, lease_lost (one = current fence).
CREATE FUNCTION @schema@.release(
    p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text,
    p_run text, p_fence bigint, p_pause_us bigint
) RETURNS TABLE (code text, name text, one bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    s @schema@.sessions;
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    SELECT * INTO s FROM @schema@.sessions t
        WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session FOR NO KEY UPDATE;
    code := 'done';
    IF s.id IS NULL OR s.erased_us IS NOT NULL THEN
        code := 'not_found';
    ELSIF p_fence IS NULL THEN
        DELETE FROM @schema@.tickets t WHERE t.segment = s.segment AND t.run = p_run;
    ELSIF s.fence <> p_fence OR s.lease_run IS DISTINCT FROM p_run THEN
        IF p_pause_us IS NOT NULL THEN
            code := 'lease_lost'; one := s.fence;
        END IF;
    ELSIF p_pause_us IS NULL THEN
        UPDATE @schema@.sessions t
            SET lease_run = NULL, lease_paused = NULL, lease_until_us = NULL, lease_holder = NULL
            WHERE t.segment = s.segment;
    ELSE
        UPDATE @schema@.sessions t
            SET lease_paused = true, lease_until_us = @schema@.now_us(p_shift) + p_pause_us
            WHERE t.segment = s.segment;
    END IF;
    IF code = 'done' THEN
        PERFORM @schema@.tell(p_from, ARRAY[p_session]);
    END IF;
    RETURN NEXT;
END
$$;
