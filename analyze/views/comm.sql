-- meaning: One row per communication round and rank: when it sent, when it received, and who was late. Times of two
--   ranks are compared as they stand: what is less than their clocks differ says nothing.
-- reads: events, workers, task_classes, derivation
-- calls: utc, covered
-- coverage: rows
-- column: comm BIGINT: comm generation, alike on every rank
-- column: rank SMALLINT: device
-- column: step BIGINT: iteration of the engine
-- column: class VARCHAR: class of the task that sends, or receives where that is not known
-- column: sent BIGINT [ns]: this rank's data and signal had been issued
-- column: bytes BIGINT [bytes]: that it sent
-- column: wait_begin BIGINT [ns]: this rank began to wait for its peers
-- column: received BIGINT [ns]: this rank had the peers' data
-- column: wait_ns BIGINT [ns]: received - wait_begin
-- column: senders BIGINT [ranks]: peers whose send is in the trace
-- column: peers BIGINT [ranks]: peers there are
-- column: last_sender SMALLINT: the peer that sent last; null where not every peer's send is in the trace
-- column: last_sent BIGINT [ns]: when that was
-- column: late_sender_ns BIGINT [ns]: how long this rank had been waiting when that peer sent; 0: it had not
-- column: late_receiver_ns BIGINT [ns]: how long everything had been sent when this rank began to wait; 0: it had not
-- column: time TIMESTAMP_NS [UTC]: `received`, else `sent`, by the host's clock
-- column: selection VARCHAR: what the counted events stand for: all, sampled(1/n) or escalated(program)
-- column: covered DOUBLE: share of all eligible events between the first and the last of its times in the trace
--
WITH sends AS (
    SELECT
        comm, rank, min(step) AS step, max(t) AS sent, sum(aux)::BIGINT AS bytes,
        min(CASE WHEN task_class >= 0 THEN getvariable('class_names')[task_class::BIGINT + 1] END) AS class
    FROM stored_events WHERE hook = 8 AND comm <> 0 GROUP BY comm, rank
),
receives AS (
    SELECT
        comm, rank, min(step) AS step, max(t) AS received, min(t - since_ns) AS wait_begin,
        min(CASE WHEN task_class >= 0 THEN getvariable('class_names')[task_class::BIGINT + 1] END) AS class
    FROM stored_events WHERE hook = 9 AND comm <> 0 GROUP BY comm, rank
),
rounds AS (
    SELECT
        comm, rank, coalesce(s.step, r.step) AS step, coalesce(s.class, r.class) AS class, s.sent, s.bytes,
        r.wait_begin, r.received
    FROM sends AS s FULL JOIN receives AS r USING (comm, rank)
),
others AS (
    SELECT
        r.comm, r.rank, count(*) AS senders, max(s.sent) AS last_sent, arg_max(s.rank, s.sent) AS last_sender
    FROM rounds AS r JOIN sends AS s ON r.comm = s.comm AND r.rank <> s.rank
    GROUP BY r.comm, r.rank
),
ranks AS (SELECT count(DISTINCT rank) - 1 AS peers FROM stored_workers)
SELECT
    r.comm,
    r.rank,
    r.step,
    r.class,
    r.sent,
    r.bytes,
    r.wait_begin,
    r.received,
    r.received - r.wait_begin AS wait_ns,
    coalesce(o.senders, 0) AS senders,
    k.peers,
    CASE WHEN o.senders = k.peers THEN o.last_sender END AS last_sender,
    CASE WHEN o.senders = k.peers THEN o.last_sent END AS last_sent,
    CASE WHEN o.senders = k.peers AND r.wait_begin IS NOT NULL
        THEN greatest(least(o.last_sent, r.received) - r.wait_begin, 0) END AS late_sender_ns,
    CASE WHEN o.senders = k.peers AND r.wait_begin IS NOT NULL
        THEN greatest(r.wait_begin - o.last_sent, 0) END AS late_receiver_ns,
    utc(coalesce(r.received, r.sent)) AS time,
    getvariable('derived_selection') AS selection,
    covered(least(r.sent, r.wait_begin, o.last_sent, r.received), greatest(r.sent, r.received, o.last_sent)) AS covered
FROM ranks AS k, rounds AS r LEFT JOIN others AS o ON r.comm = o.comm AND r.rank = o.rank
