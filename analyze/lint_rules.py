"""What an integration must keep to, one rule each: a query whose rows are the places where it does not.

Every query gives `place` (text: where), `t` (device time of the first case, null if it has none) and `n` (cases), one
row a place. Rules marked `whole` hold only where no event is missing; they are left out where some were lost, because
there a lost half looks like a fault of the integration.
"""

from __future__ import annotations

from dataclasses import dataclass

_REAL = "(request <> 0 AND request <> 4294967295)"


@dataclass(frozen=True)
class Rule:
    """`breaks`: what goes wrong downstream where the rule is not kept."""

    name: str
    meaning: str
    breaks: str
    sql: str
    severity: str = "error"
    whole: bool = False


def _undeclared(column: str, table: str, key: str, where: str = "TRUE") -> str:
    return (
        f"SELECT '{column} ' || {column} AS place, min(t) AS t, count(*) AS n FROM events "
        f"WHERE {where} AND {column} NOT IN (SELECT {key} FROM {table}) GROUP BY {column}"
    )


RULES = (
    Rule(
        "undeclared_hook",
        "every event's hook is among those that the engine exports",
        "attach refuses such hooks, and coverage does not count them",
        "SELECT 'hook ' || hook AS place, min(t) AS t, count(*) AS n FROM events "
        "WHERE hook NOT IN (SELECT hook FROM hooks WHERE exported) GROUP BY hook",
    ),
    Rule(
        "silent_hook",
        "every exported hook fires",
        "programs attached to it see nothing, and nobody is told",
        "SELECT name AS place, NULL AS t, 1 AS n FROM hooks WHERE exported AND name NOT IN ('pressure', 'epoch') "
        "AND hook NOT IN (SELECT hook FROM events) AND EXISTS (SELECT 1 FROM events)",
        severity="warning",
    ),
    Rule(
        "undeclared_class",
        "every task class is in task_classes",
        "answers by class name leave these events out",
        _undeclared("task_class", "task_classes", "id", "task_class <> 0"),
    ),
    Rule(
        "undeclared_worker",
        "every worker is in the table workers",
        "the timeline has no lane for it, and its coverage no place",
        _undeclared("worker", "workers", "worker"),
    ),
    Rule(
        "undeclared_dependency",
        "every dependency is in the table dependencies",
        "a wait for it cannot be traced to its producer",
        _undeclared("dep", "dependencies", "id", "dep <> 0"),
    ),
    Rule(
        "undeclared_task",
        "every task index is in static_tasks, where that table is given",
        "its dependencies and its place in the graph are not known",
        "SELECT 'task index ' || (task & 4294967295) AS place, min(t) AS t, count(*) AS n FROM events "
        "WHERE task <> 0 AND EXISTS (SELECT 1 FROM static_tasks) "
        "AND (task & 4294967295) NOT IN (SELECT index FROM static_tasks) GROUP BY task & 4294967295",
    ),
    Rule(
        "class_disagrees",
        "a task's class is what static_tasks says",
        "the same task is counted under two classes",
        "SELECT 'task index ' || s.index AS place, min(e.t) AS t, count(*) AS n FROM events e "
        "JOIN static_tasks s ON s.index = (e.task & 4294967295) AND e.task <> 0 AND e.hook IN (3, 4) "
        "WHERE s.task_class <> e.task_class GROUP BY s.index",
    ),
    Rule(
        "tile_disagrees",
        "a task's tile is what static_tasks says",
        "answers by coordinate (head, expert, row) are wrong",
        "SELECT 'task index ' || s.index AS place, min(e.t) AS t, count(*) AS n FROM events e "
        "JOIN static_tasks s ON s.index = (e.task & 4294967295) AND e.task <> 0 AND e.hook IN (3, 4) "
        "WHERE s.tile <> e.tile AND (e.flags & 128) = 0 GROUP BY s.index",
    ),
    Rule(
        "worker_of_two_ranks",
        "a worker's events carry its own rank",
        "its sequence numbers are counted in two places",
        "SELECT 'worker ' || e.worker AS place, min(e.t) AS t, count(*) AS n FROM events e "
        "JOIN workers w USING (worker) WHERE w.rank <> e.rank GROUP BY e.worker",
    ),
    Rule(
        "time_goes_back",
        "a worker's time never goes back",
        "durations are negative, and parts of the trace cannot be pruned by time",
        "SELECT 'worker ' || worker AS place, min(t) AS t, count(*) AS n FROM (SELECT worker, t, t - lag(t) OVER "
        "(PARTITION BY rank, worker ORDER BY seq) AS step FROM events) WHERE step < 0 GROUP BY worker",
    ),
    Rule(
        "repeated_sequence_number",
        "a worker gives each sequence number once",
        "coverage counts an event twice",
        "SELECT 'worker ' || worker AS place, min(t) AS t, count(*) - count(DISTINCT seq) AS n FROM events "
        "GROUP BY rank, worker HAVING count(*) > count(DISTINCT seq)",
    ),
    Rule(
        "since_in_the_future",
        "the time that a hook carries is not after the event",
        "the duration is negative",
        "SELECT hook_name || ' on worker ' || worker AS place, min(t) AS t, count(*) AS n FROM events "
        "WHERE since_ns < 0 GROUP BY hook_name, worker",
    ),
    Rule(
        "start_twice",
        "a task generation starts once",
        "pairing takes one of the two and the other's time is lost",
        "SELECT coalesce(any_value(class), 'task') || ' ' || task AS place, min(t) AS t, count(*) AS n FROM events "
        "WHERE hook = 3 AND task <> 0 GROUP BY rank, task HAVING count(*) > 1",
    ),
    Rule(
        "complete_twice",
        "a task generation completes once",
        "it is counted as two tasks",
        "SELECT coalesce(any_value(class), 'task') || ' ' || task AS place, min(t) AS t, count(*) AS n FROM events "
        "WHERE hook = 4 AND task <> 0 GROUP BY rank, task HAVING count(*) > 1",
    ),
    Rule(
        "start_without_complete",
        "a task that started completes, unless the recording ends first",
        "it stays open: no duration, and its worker looks busy until the end",
        "SELECT coalesce(any_value(class), 'task') || ' on worker ' || worker AS place, min(t) AS t, count(*) AS n "
        "FROM (SELECT *, lead(hook) OVER w AS next FROM (SELECT * FROM events WHERE hook IN (3, 4)) "
        "WINDOW w AS (PARTITION BY rank, worker ORDER BY seq)) "
        "WHERE hook = 3 AND next = 3 GROUP BY worker, task_class",
        whole=True,
    ),
    Rule(
        "complete_without_start",
        "a task that completes has started, on the same worker",
        "its duration is only what complete carries, and its lane has a hole",
        "SELECT coalesce(any_value(class), 'task') || ' on worker ' || worker AS place, min(t) AS t, count(*) AS n "
        "FROM (SELECT *, lag(hook) OVER w AS before, lag(task) OVER w AS same FROM "
        "(SELECT * FROM events WHERE hook IN (3, 4)) WINDOW w AS (PARTITION BY rank, worker ORDER BY seq)) "
        "WHERE hook = 4 AND before IS NOT NULL AND (before <> 3 OR same <> task) GROUP BY worker, task_class",
        whole=True,
    ),
    Rule(
        "resume_without_wait",
        "a resume follows the same worker's wait",
        "waiting time cannot be booked to a dependency",
        "SELECT 'worker ' || worker AS place, min(t) AS t, count(*) AS n FROM (SELECT *, lag(hook) OVER w AS before "
        "FROM (SELECT * FROM events WHERE hook IN (5, 6)) WINDOW w AS (PARTITION BY rank, worker ORDER BY seq)) "
        "WHERE hook = 6 AND before IS NOT NULL AND before <> 5 GROUP BY worker",
        whole=True,
    ),
    Rule(
        "wait_within_wait",
        "a worker resumes before it waits again; wait fires once, not per poll",
        "one stall is counted many times",
        "SELECT 'worker ' || worker AS place, min(t) AS t, count(*) AS n FROM (SELECT *, lag(hook) OVER w AS before "
        "FROM (SELECT * FROM events WHERE hook IN (5, 6)) WINDOW w AS (PARTITION BY rank, worker ORDER BY seq)) "
        "WHERE hook = 5 AND before = 5 GROUP BY worker",
        whole=True,
    ),
    Rule(
        "released_too_often",
        "a dependency is released as often as wanted, counted from 0 in every iteration",
        "waits for it end early, and a counter that is not relative looks satisfied",
        "SELECT 'dependency ' || dep AS place, min(t) AS t, count(*) AS n FROM events "
        "WHERE hook = 7 AND (aux >> 32) > (aux & 4294967295) GROUP BY dep",
    ),
    Rule(
        "wanted_disagrees",
        "wait and release want what dependencies says",
        "a satisfied dependency looks open, or the other way round",
        "SELECT 'dependency ' || e.dep AS place, min(e.t) AS t, count(*) AS n FROM events e "
        "JOIN dependencies d ON d.id = e.dep WHERE e.hook IN (5, 7) AND (e.aux & 4294967295) <> d.wanted GROUP "
        "BY e.dep",
    ),
    Rule(
        "counter_goes_back",
        "within an iteration a dependency's counter only grows, by one a release",
        "the order of releases, and so the late one, cannot be told",
        "SELECT 'dependency ' || dep AS place, min(t) AS t, count(*) AS n FROM (SELECT dep, step, aux >> 32 AS "
        "counter, "
        "min(t) AS t, count(*) AS times FROM events WHERE hook = 7 GROUP BY rank, dep, step, aux >> 32) "
        "WHERE times > 1 GROUP BY dep",
    ),
    Rule(
        "wait_for_nothing",
        "a wait says that something is wanted still: the counter it saw is below what it wants",
        "waits of no length drown the real ones, or the wait is for something else than it says",
        "SELECT 'dependency ' || dep AS place, min(t) AS t, count(*) AS n FROM events "
        "WHERE hook = 5 AND dep <> 0 AND (aux >> 32) >= (aux & 4294967295) GROUP BY dep",
        severity="warning",
    ),
    Rule(
        "unknown_request",
        "a request generation is in the table requests",
        "its work has no tenant, model or arrival",
        "SELECT 'request ' || request AS place, min(t) AS t, count(*) AS n FROM events "
        f"WHERE {_REAL} AND request < 2147483648 AND request NOT IN (SELECT request FROM requests) GROUP BY request",
    ),
    Rule(
        "unknown_request_set",
        "a request set is in the table request_sets",
        "shared work is in nobody's view",
        "SELECT 'request set ' || (request - 2147483648) AS place, min(t) AS t, count(*) AS n FROM events "
        f"WHERE {_REAL} AND request >= 2147483648 "
        "AND request - 2147483648 NOT IN (SELECT request_set FROM request_sets) GROUP BY request",
    ),
    Rule(
        "unknown_request_state",
        "a request event carries a state that the ABI names",
        "time to first token and preemption cannot be told",
        "SELECT 'state ' || (aux & 4294967295) AS place, min(t) AS t, count(*) AS n FROM events "
        "WHERE hook = 10 AND (aux & 4294967295) NOT BETWEEN 1 AND 8 GROUP BY aux & 4294967295",
    ),
    Rule(
        "slot_of_two_requests",
        "a slot has one request at a time",
        "work is booked to a request that has gone",
        "SELECT 'slot ' || a.slot AS place, NULL AS t, count(*) AS n FROM step_requests a JOIN step_requests b "
        "ON a.slot = b.slot AND a.request < b.request AND a.from_step <= coalesce(nullif(b.to_step, -1), b.from_step) "
        "AND b.from_step <= coalesce(nullif(a.to_step, -1), a.from_step) GROUP BY a.slot",
    ),
    Rule(
        "queue_over_capacity",
        "a queue is never deeper than its capacity",
        "pressure and queueing time are wrong",
        "SELECT 'queue of worker ' || (aux >> 48) AS place, min(t) AS t, count(*) AS n FROM events "
        "WHERE hook = 2 AND (aux >> 24 & 16777215) > (aux & 16777215) GROUP BY aux >> 48",
    ),
    Rule(
        "assigned_to_nobody",
        "assign names a worker that is declared",
        "the task's way from queue to worker is lost",
        "SELECT 'worker ' || (aux >> 48) AS place, min(t) AS t, count(*) AS n FROM events "
        "WHERE hook = 2 AND (aux >> 48) NOT IN (SELECT worker FROM workers) GROUP BY aux >> 48",
    ),
    Rule(
        "communication_without_round",
        "send and receive carry a comm generation",
        "sender and receiver cannot be joined",
        "SELECT hook_name || ' on worker ' || worker AS place, min(t) AS t, count(*) AS n FROM events "
        "WHERE hook IN (8, 9) AND comm = 0 GROUP BY hook_name, worker",
    ),
    Rule(
        "received_before_sent",
        "what is received has been sent, under the same comm generation",
        "the late side of a round cannot be told",
        "SELECT 'round ' || comm AS place, min(t) AS t, count(*) AS n FROM events r WHERE hook = 9 AND comm <> 0 "
        "AND NOT EXISTS (SELECT 1 FROM events s WHERE s.hook = 8 AND s.comm = r.comm AND s.rank <> r.rank) "
        "GROUP BY comm",
        whole=True,
    ),
    Rule(
        "unexpected_dependency_class",
        "a task waits only for the classes of dependency that its class expects",
        "waits by kind are booked under the wrong kind",
        "SELECT c.name || ' waits for class ' || e.dep_class AS place, min(e.t) AS t, count(*) AS n FROM events e "
        "JOIN task_classes c ON c.id = e.task_class WHERE e.hook = 5 AND e.dep <> 0 "
        "AND NOT list_contains(c.expected_dep_classes, e.dep_class) GROUP BY c.name, e.dep_class",
    ),
    Rule(
        "empty_range",
        "a range row stands for at least one task",
        "it counts as nothing",
        "SELECT hook_name || ' on worker ' || worker AS place, min(t) AS t, count(*) AS n FROM events "
        "WHERE (flags & 128) <> 0 AND tile = 0 GROUP BY hook_name, worker",
    ),
    Rule(
        "step_goes_back",
        "steps begin one after the other",
        "a request's decode position cannot be told from the step",
        "SELECT 'step ' || step AS place, min(t) AS t, count(*) AS n FROM (SELECT rank, step, t, step - lag(step) OVER "
        "(PARTITION BY rank ORDER BY t, step) AS d FROM events WHERE hook = 11 AND (flags & 1) <> 0) WHERE d <= "
        "0 GROUP BY step",
    ),
    Rule(
        "iteration_disagrees",
        "a task generation's iteration is the event's step",
        "a task is looked for in the wrong step",
        "SELECT coalesce(any_value(class), 'task') || ' on worker ' || worker AS place, min(t) AS t, count(*) AS n "
        "FROM events WHERE task <> 0 AND hook IN (3, 4) AND (task >> 32) <> step GROUP BY worker, task_class",
    ),
)
