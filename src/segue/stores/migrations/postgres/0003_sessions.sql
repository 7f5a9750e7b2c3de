-- The other operations of the contract. See 0002 for what they have in common.

-- Makes a session; with p_source a fork of that one at p_at.
--   done         the session (also when this very operation made it before)
--   id_taken     name = the id, NULL when a tombstone has it
--   key_taken    name = the session that has it
--   no_source    the source is not there
--   no_such_seq  one = the source's head
--   id_conflict  name = entry id, one = its seq
-- p_twice is the place in e_id of an entry that comes again with other content.
CREATE FUNCTION @schema@.create_session(
    p_shift bigint, p_lock_ms bigint, p_from text, p_source text, p_at bigint,
    p_tenant text, p_user text, p_session text, p_key text, p_format text, p_title bytea, p_tags bytea[],
    p_metadata bytea, p_pinned boolean, p_listed boolean, p_config bytea, p_idle_us bigint, p_expires_us bigint,
    p_parent text, p_parent_seq bigint, p_parent_link text,
    e_id text[], e_digest bytea[], e_kind text[], e_format text[], e_origin text[], e_body bytea[],
    e_refs text[], e_occurred bigint[], e_usage text[], p_twice bigint
) RETURNS TABLE (code text, name text, one bigint, now_us bigint, waiting bigint, session @schema@.sessions)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    s @schema@.sessions;
    source @schema@.sessions;
    at bigint := COALESCE(p_at, 0);
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    waiting := 0;
    LOOP
        SELECT * INTO s FROM @schema@.sessions t WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session;
        EXIT WHEN s.id IS NOT NULL;
        IF p_source IS NOT NULL THEN
            -- Shared with appends to the source, which take nothing away; not with its erasure.
            SELECT * INTO source FROM @schema@.sessions t
                WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_source FOR KEY SHARE;
            IF source.id IS NULL OR source.erased_us IS NOT NULL THEN
                code := 'no_source';
            ELSIF p_at NOT BETWEEN 0 AND source.head THEN
                code := 'no_such_seq'; one := source.head;
            END IF;
            EXIT WHEN code IS NOT NULL;
        END IF;
        IF p_key IS NOT NULL THEN
            SELECT t.id INTO name FROM @schema@.sessions t
                WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.key = p_key AND t.erased_us IS NULL;
            IF FOUND THEN
                code := 'key_taken';
                EXIT;
            END IF;
        END IF;
        IF p_twice IS NOT NULL OR at > 0 AND cardinality(e_id) > 0 THEN
            SELECT c.name, c.one INTO name, one
                FROM @schema@.first_conflict(source.segment, source.base, at, e_id, e_digest, p_twice) AS c;
            IF FOUND THEN
                code := 'id_conflict';
                EXIT;
            END IF;
        END IF;
        now_us := @schema@.now_us(p_shift);
        INSERT INTO @schema@.sessions
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
                PERFORM @schema@.share(session.segment, source.segment, source.base, p_at);
            END IF;
            IF cardinality(e_id) > 0 THEN
                PERFORM @schema@.append(
                    p_shift, NULL, NULL, ARRAY[p_tenant], ARRAY[p_user], ARRAY[p_session], ARRAY[NULL::text],
                    ARRAY[NULL::bigint], ARRAY[NULL::bigint], ARRAY[cardinality(e_id)::bigint],
                    e_id, e_digest, e_kind, e_format, e_origin, e_body, e_refs, e_occurred, e_usage);
                SELECT * INTO session FROM @schema@.sessions t WHERE t.segment = session.segment;
            END IF;
            PERFORM @schema@.tell(p_from, ARRAY[p_session]);
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
        now_us := @schema@.now_us(p_shift);
        SELECT count(*) INTO waiting FROM @schema@.tickets t WHERE t.segment = s.segment AND t.lapses_us > now_us;
    END IF;
    RETURN NEXT;
END
$$;

-- The first entry of a batch that a fork of p_segment at p_at would know with other content, if any.
CREATE FUNCTION @schema@.first_conflict(
    p_segment bigint, p_base bigint, p_at bigint, e_id text[], e_digest bytea[], p_twice bigint
) RETURNS TABLE (name text, one bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    k record;
    fresh bigint := p_twice;
    twice_seq bigint;
BEGIN
    FOR k IN SELECT * FROM @schema@.known(p_segment, p_base, e_id) AS k WHERE k.seq <= p_at ORDER BY k.n LOOP
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

-- Why a batch is refused that holds an id twice with different content.
--   id_conflict  name = entry id, one = its seq
--   not_found
--   archived     where p_is_take
CREATE FUNCTION @schema@.refuse_twice(
    p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text, p_is_take boolean,
    e_id text[], e_digest bytea[], p_twice bigint
) RETURNS TABLE (code text, name text, one bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    s @schema@.sessions;
BEGIN
    SELECT * INTO s FROM @schema@.sessions t WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session;
    IF s.id IS NULL OR s.erased_us IS NOT NULL THEN
        code := 'not_found';
    ELSIF p_is_take AND s.state = 2 THEN
        code := 'archived';
    ELSE
        code := 'id_conflict';
        SELECT c.name, c.one INTO name, one
            FROM @schema@.first_conflict(s.segment, s.base, s.head, e_id, e_digest, p_twice) AS c;
    END IF;
    RETURN NEXT;
END
$$;

-- Lets a new fork take what its source holds up to a seq. Copies no entry.
CREATE FUNCTION @schema@.share(p_child bigint, p_source bigint, p_base bigint, p_at bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    INSERT INTO @schema@.spans (child, segment, low, upto)
        SELECT p_child, p.segment, p.low, LEAST(p.upto, p_at)
        FROM @schema@.spans p WHERE p.child = p_source AND p.low < p_at;
    IF p_at > p_base THEN
        INSERT INTO @schema@.spans (child, segment, low, upto) VALUES (p_child, p_source, p_base, p_at);
    END IF;
END
$$;

-- Changes what p_names lists.
--   done, not_found
--   version_moved  one = the version
--   busy           name = the run
--   key_taken      name = the session that has it
CREATE FUNCTION @schema@.update_session(
    p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text,
    p_expect bigint, p_if_due_us bigint, p_names text[],
    p_key text, p_title bytea, p_tags bytea[], p_metadata bytea, p_pinned boolean, p_listed boolean,
    p_state bigint, p_config bytea, p_idle_us bigint, p_expires_us bigint
) RETURNS TABLE (code text, name text, one bigint, now_us bigint, waiting bigint, session @schema@.sessions)
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
    now_us := @schema@.now_us(p_shift);
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
        SELECT t.id INTO name FROM @schema@.sessions t
            WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.key = p_key AND t.erased_us IS NULL;
        code := CASE WHEN name IS NULL THEN 'done' ELSE 'key_taken' END;
    END IF;
    IF code = 'done' THEN
        UPDATE @schema@.sessions t SET
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
        SELECT count(*) INTO waiting FROM @schema@.tickets t WHERE t.segment = s.segment AND t.lapses_us > now_us;
        PERFORM @schema@.tell(p_from, ARRAY[p_session]);
    END IF;
    RETURN NEXT;
END
$$;

-- Erases the content of entries.
--   done     one = how many were full
--   not_found
--   not_own  one = the first seq that is not the session's own, two = its base, three = its head
CREATE FUNCTION @schema@.hollow(
    p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text, p_seqs bigint[]
) RETURNS TABLE (code text, name text, one bigint, two bigint, three bigint)
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
    UPDATE @schema@.entries e SET body = NULL, refs = NULL
        WHERE e.segment = s.segment AND e.seq = ANY (p_seqs) AND e.body IS NOT NULL;
    GET DIAGNOSTICS one = ROW_COUNT;
    DELETE FROM @schema@.refs r WHERE r.segment = s.segment AND r.seq = ANY (p_seqs);
    code := 'done';
    PERFORM @schema@.tell(p_from, ARRAY[p_session]);
    RETURN NEXT;
END
$$;

-- Erases a session and leaves a tombstone.
--   done           one = entries erased, two = how many of its own stay for forks (0, 0: it was erased before)
--   not_found
--   version_moved  one = the version
CREATE FUNCTION @schema@.erase(
    p_shift bigint, p_lock_ms bigint, p_from text, p_tenant text, p_user text, p_session text, p_expect bigint
) RETURNS TABLE (code text, name text, one bigint, two bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    s @schema@.sessions;
    p record;
    gone bigint;
BEGIN
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    SELECT * INTO s FROM @schema@.sessions t WHERE t.tenant = p_tenant AND t.user_id = p_user AND t.id = p_session;
    -- The session and all whose entries it shares: of two forks erased at once, one must come after the other.
    PERFORM FROM @schema@.sessions t
        WHERE t.segment = s.segment
            OR t.segment IN (SELECT a.segment FROM @schema@.spans a WHERE a.child = s.segment)
        ORDER BY t.tenant, t.user_id, t.id FOR UPDATE;
    SELECT * INTO s FROM @schema@.sessions t WHERE t.segment = s.segment;
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
    one := @schema@.cut(s.segment, NULL);
    SELECT count(*) INTO two FROM @schema@.entries e WHERE e.segment = s.segment;
    -- What erased ancestors had kept for this session alone goes with it.
    FOR p IN
        SELECT a.segment FROM @schema@.spans a JOIN @schema@.sessions t ON t.segment = a.segment
        WHERE a.child = s.segment AND t.erased_us IS NOT NULL
    LOOP
        one := one + @schema@.cut(p.segment, s.segment);
    END LOOP;
    DELETE FROM @schema@.spans a WHERE a.child = s.segment;
    DELETE FROM @schema@.tickets t WHERE t.segment = s.segment;
    UPDATE @schema@.sessions t SET
        erased_us = @schema@.now_us(p_shift), key = NULL, title = '', tags = '{}', metadata = '', config = NULL,
        idle_us = NULL, expires_us = NULL, lease_run = NULL, lease_paused = NULL, lease_until_us = NULL,
        lease_holder = NULL, parent = NULL, parent_seq = NULL, parent_link = NULL
        WHERE t.segment = s.segment;
    PERFORM @schema@.tell(p_from, ARRAY[p_session]);
    RETURN NEXT;
END
$$;

-- Deletes the entries of a segment that no living fork (but p_but) takes; how many they were.
CREATE FUNCTION @schema@.cut(p_segment bigint, p_but bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    needed bigint;
    gone bigint;
BEGIN
    SELECT COALESCE(max(a.upto), 0) INTO needed FROM @schema@.spans a
        WHERE a.segment = p_segment AND a.child IS DISTINCT FROM p_but;
    DELETE FROM @schema@.entries e WHERE e.segment = p_segment AND e.seq > needed;
    GET DIAGNOSTICS gone = ROW_COUNT;
    DELETE FROM @schema@.refs r WHERE r.segment = p_segment AND r.seq > needed;
    RETURN gone;
END
$$;
