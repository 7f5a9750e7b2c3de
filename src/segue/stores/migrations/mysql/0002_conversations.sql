-- For people with SQL tools: the conversations, their messages as the text of a JSON array. Times are UTC.
-- messages is NULL where it is longer than group_concat_max_len of the connection that asks, instead of cut off:
-- SET SESSION group_concat_max_len = 1073741824 shows it.

CREATE OR REPLACE SQL SECURITY INVOKER VIEW conversations AS
SELECT
    CONVERT(s.id USING utf8mb4) AS session_id,
    CONVERT(s.user_id USING utf8mb4) AS user_id,
    CONVERT(CONCAT('[', SUBSTRING(CONCAT((
        SELECT CASE
            WHEN COUNT(*) = 0 THEN ''
            WHEN LENGTH(GROUP_CONCAT(e.body ORDER BY e.seq SEPARATOR ',')) = SUM(LENGTH(e.body)) + COUNT(*) - 1
                THEN CONCAT(',', GROUP_CONCAT(e.body ORDER BY e.seq SEPARATOR ','))
        END
        FROM spans p STRAIGHT_JOIN entries e ON e.segment = p.segment AND e.seq > p.low AND e.seq <= p.upto
        WHERE p.child = s.segment AND e.kind = 'message' AND e.format <> 'raw' AND e.body IS NOT NULL
    ), (
        SELECT CASE
            WHEN COUNT(*) = 0 THEN ''
            WHEN LENGTH(GROUP_CONCAT(e.body ORDER BY e.seq SEPARATOR ',')) = SUM(LENGTH(e.body)) + COUNT(*) - 1
                THEN CONCAT(',', GROUP_CONCAT(e.body ORDER BY e.seq SEPARATOR ','))
        END
        FROM entries e
        WHERE e.segment = s.segment AND e.kind = 'message' AND e.format <> 'raw' AND e.body IS NOT NULL
    )), 2), ']') USING utf8mb4) AS messages,
    CAST(SUBSTRING_INDEX(s.tokens, ',', 1) AS UNSIGNED) AS total_input_tokens,
    CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(s.tokens, ',', 2), ',', -1) AS UNSIGNED) AS total_output_tokens,
    s.state + 0 AS status,
    TIMESTAMP('1970-01-01') + INTERVAL s.created_us MICROSECOND AS created_at,
    TIMESTAMP('1970-01-01') + INTERVAL s.active_us MICROSECOND AS updated_at,
    CONVERT(s.tenant USING utf8mb4) AS tenant
FROM sessions s JOIN (SELECT 1 AS one) AS read_only -- a join takes no writes
WHERE s.erased_us IS NULL;
