-- SPDX-License-Identifier: Apache-2.0
-- Every statement of the embedded store, by name. Batches come in as one JSON array and go out as one JSON
-- column: each statement step gives up the GIL, so a step per row would cost a switch interval per row.
-- `jsonb_each` renders no text for inner arrays, which makes it twice as fast as `json_each` here.
-- A `+` before a column keeps the planner from choosing another index than the one meant.

-- begin_write --
-- Opens a write transaction; never deferred, so that it cannot fail half way.
begin immediate

-- begin_read --
-- Opens a read transaction: what follows sees one state of the store, and blocks nobody.
begin deferred

-- commit --
-- Makes the transaction durable.
commit

-- rollback --
-- Undoes the transaction.
rollback

-- savepoint --
-- Begins an operation that may be refused.
savepoint operation

-- release_savepoint --
-- Keeps an operation.
release operation

-- rollback_savepoint --
-- Undoes an operation and nothing else.
rollback to operation

-- savepoint_ends --
-- Begins the ending of many jobs at once, which some stale one may spoil.
savepoint ends

-- release_ends --
-- All of them were ours.
release ends

-- rollback_ends --
-- One of them was not: undo, and end them one by one.
rollback to ends

-- data_version --
-- Changes when another connection has committed.
pragma data_version

-- schema_version --
-- The number of the last migration applied.
pragma user_version

-- application_id --
-- Whose database this is.
pragma application_id

-- schema_objects --
-- Every table, index, view and trigger, but for those that SQLite makes by itself: [name, type, statement].
select name, type, sql from sqlite_schema
where sql is not null and name not in ('sqlite_sequence', 'sqlite_stat1', 'sqlite_stat4')

-- first_damage --
-- What is wrong with the structure of the file; 'ok' if nothing is.
pragma quick_check(1)

-- read_meta --
-- One fact about the store itself.
select value from meta where name = ?1

-- write_meta --
-- Sets one fact about the store itself.
insert into meta (name, value) values (?1, ?2) on conflict (name) do update set value = excluded.value

-- name_store --
-- Gives the store the name that its roots know it by, if it has none.
insert into meta (name, value) values ('own_name', ?1) on conflict (name) do nothing

-- last_job_id --
-- The highest id ever given to a job; purging notes it where it takes the last one.
select max(
    coalesce((select max(id) from jobs), 0), (select cast(value as integer) from meta where name = 'purged_id')
)

-- ensure_lanes --
-- Makes the lanes that a batch needs; ?1 = [[spec, task, group, limit_keys, kind], …], ?2 = app.
insert into lanes (spec, task, grp, limit_keys, kind, app)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, ?2 from jsonb_each(?1) where true
on conflict (spec) do nothing

-- lane_ids --
-- The ids of lanes by spec; ?1 = [[spec, …], …].
select json_group_array(json_array(lanes.spec, lanes.id))
from jsonb_each(?1) as wanted cross join lanes on lanes.spec = wanted.value ->> 0

-- insert_jobs --
-- Accepts jobs; the first of a key wins. ?1 = [[key, lane, partition, priority, payload, row_state, due_at, plan_id,
-- level], …], ?2 = now, ?3 = the highest id so far,
-- ?4 = app.
insert into jobs (
    id, app, key, lane_id, partition, priority, payload, row_state, due_at, available_at, plan_id, level, token, created_at,
    updated_at
)
select
    ?3 + 1 + jsonb_each.key, ?4, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 6,
    value ->> 7, value ->> 8, (select cast(meta.value as integer) from meta where name = 'token_floor'), ?2, ?2
from jsonb_each(?1) where true
on conflict (key, app) do nothing

-- insert_job --
-- Accepts one job in a lane that exists, ?2 = its spec; answers the lane, or nothing if the key or the lane says no.
insert into jobs (
    id, app, key, lane_id, partition, priority, payload, row_state, due_at, available_at, plan_id, level, token, created_at,
    updated_at
)
select
    1 + max(
        coalesce((select max(id) from jobs), 0), (select cast(value as integer) from meta where name = 'purged_id')
    ), lanes.app, ?1, lanes.id, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9,
    (select cast(meta.value as integer) from meta where name = 'token_floor'), ?10, ?10
from lanes where lanes.spec = ?2
on conflict (key, app) do nothing
returning lane_id

-- keys_above --
-- The jobs that this transaction has accepted so far.
select json_group_array(json_array(key, id)) from (select key, id from jobs where id > ?1 order by id)

-- jobs_by_key --
-- Ids and states of jobs of app ?2 by key; ?1 = [key, …].
select json_group_array(json_array(jobs.key, jobs.id, jobs.row_state))
from jsonb_each(?1) as wanted cross join jobs on jobs.key = wanted.value and jobs.app = ?2

-- differing_jobs --
-- Of known jobs, those whose task or payload is another text; ?1 = [[key, task, payload], …], ?2 = app: [place, task, payload].
-- A payload that is so much longer that it has another value comes as '""'.
select json_group_array(json_array(
    wanted.key, lanes.task,
    case when length(jobs.payload) <= 64 + 2 * length(wanted.value ->> 2) then jobs.payload else '""' end
))
from jsonb_each(?1) as wanted
cross join jobs on jobs.key = wanted.value ->> 0 and jobs.app = ?2
cross join lanes on lanes.id = jobs.lane_id
where jobs.payload <> wanted.value ->> 2 or lanes.task <> wanted.value ->> 1

-- insert_edges --
-- ?1 = [[parent, child, kind, open, ordinal], …].
insert or ignore into edges (parent_id, child_id, kind, open, ordinal)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 from jsonb_each(?1)

-- place_children --
-- Gives new dependants their first state; ?1 = [[id, row_state, pending, skipped_by, error, finished_at], …].
update jobs set
    row_state = placed.value ->> 1, pending = placed.value ->> 2, skipped_by = placed.value ->> 3,
    error = placed.value ->> 4, finished_at = placed.value ->> 5
from jsonb_each(?1) as placed
where jobs.id = placed.value ->> 0

-- worker_row --
-- A worker that is alive; ?2, ?3 = boot id and boot time.
select no, run_id from workers where id = ?1 and ended_at is null and boot_id = ?2 and expires_at > ?3

-- insert_worker --
-- A worker registers.
insert into workers (id, run_id, boot_id, expires_at, started_at, host, pid, tasks, app)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)

-- beat_worker --
-- Prolongs a worker that is alive.
update workers set expires_at = max(expires_at, ?4)
where id = ?1 and ended_at is null and boot_id = ?2 and expires_at > ?3

-- expire_worker --
-- Ends the time of a worker that is alive; ?2, ?3 = boot id and boot time.
update workers set expires_at = ?3 where id = ?1 and ended_at is null and boot_id = ?2 and expires_at > ?3

-- end_worker --
-- A worker is gone, cleanly or not.
update workers set ended_at = ?2 where no = ?1

-- worker_no --
-- A worker's number, alive or not, unless it has ended.
select no, run_id from workers where id = ?1 and ended_at is null

-- expired_workers --
-- The first ?3 workers whose time is over: [no, same boot, run].
select no, boot_id = ?1, run_id from workers where ended_at is null and (boot_id <> ?1 or expires_at <= ?2) limit ?3

-- forget_max_crashes --
-- What workers that have ended said of jobs that run alone.
delete from meta where name glob 'max_crashes:*'
    and not exists (select 1 from workers where no = substr(name, 13) + 0 and ended_at is null)

-- forget_workers --
-- Rows of workers that ended long ago.
delete from workers where no in (select no from workers where ended_at < ?1 limit 100)

-- leased_by --
-- What a worker holds, a slice: [id, token, lane, limited, losses, crashes, its cell if it is a suspect].
select json_group_array(json_array(id, token, lane_id, limited, losses, crashes, suspect_cell)) from (
    select
        jobs.id, jobs.token, jobs.lane_id, lanes.limit_keys <> '[]' as limited, jobs.losses, jobs.crashes,
        iif(jobs.solo, jobs.cell, null) as suspect_cell
    from jobs join lanes on lanes.id = jobs.lane_id where jobs.row_state = 4 and jobs.worker = ?1
    order by jobs.id limit ?2
)

-- take_back --
-- Leases that ended without an attempt's end; ?1 = [[id, row_state, losses, crashes, cell], …], ?2 = now.
update jobs set
    row_state = back.value ->> 1, losses = back.value ->> 2, crashes = back.value ->> 3, cell = back.value ->> 4,
    worker = null, solo = 0, updated_at = ?2
from jsonb_each(?1) as back
where jobs.id = back.value ->> 0

-- end_crashed --
-- Poison: a job crashed alone too often. Nobody ended it by its token, so an end that comes late is stale.
update jobs set
    row_state = 7, error = ?2, crashes = ?3, finished_at = ?4, updated_at = ?4, worker = null, solo = 0
where id = ?1 and row_state = 4

-- promote_due --
-- Makes due jobs ready; answers their lanes.
update jobs set row_state = 2 where id in (
    select id from jobs where row_state = 1 and available_at <= ?1 order by available_at limit ?2
) returning lane_id

-- next_due --
-- When the next delayed job falls due.
select min(available_at) from jobs where row_state = 1

-- refresh_heads --
-- Sets the heads of lanes to their first ready job; ?1 = [lane, …]. A lane without one is not parked. A head that is
-- right already is not written, which spares an arrival behind a backlog three pages.
with fresh (lane_id, head) as (
    select touched.value, (
        select id from jobs where row_state = 2 and lane_id = touched.value
        order by priority desc, available_at, id limit 1
    ) from jsonb_each(?1) as touched
)
update lanes set
    head_id = fresh.head,
    head_priority = (select priority from jobs where id = fresh.head),
    head_at = (select available_at from jobs where id = fresh.head),
    parked_on = iif(fresh.head is null, null, parked_on)
from fresh where lanes.id = fresh.lane_id and (lanes.head_id is not fresh.head or fresh.head is null)

-- last_ready_group --
-- The last of the groups of app ?1 that have work.
select max(grp) from lanes where head_id is not null and parked_on is null and app = ?1

-- ready_heads --
-- The first ready lane of up to ?2 groups with work for tasks ?3 of app ?4 after group ?1, by skip-scan over the ready lanes:
-- [lane, group, limit_keys, task, has the group other ready lanes].
with recursive found (id, grp, n) as (
    select id, grp, 1 from lanes where id = (
        select id from lanes where head_id is not null and parked_on is null and app = ?4 and grp > ?1
            and task in (select value from jsonb_each(?3))
        order by grp, head_priority desc, head_at, head_id limit 1
    )
    union all
    select lanes.id, lanes.grp, found.n + 1 from found join lanes on lanes.id = (
        select id from lanes where head_id is not null and parked_on is null and app = ?4 and grp > found.grp
            and task in (select value from jsonb_each(?3))
        order by grp, head_priority desc, head_at, head_id limit 1
    ) where found.n < ?2
)
select json_group_array(json_array(lanes.id, lanes.grp, lanes.limit_keys, lanes.task, 0, (
    select count(*) from (
        select 1 from lanes as other where other.head_id is not null and other.parked_on is null
            and other.app = ?4 and other.grp = lanes.grp limit 2
    )
)))
from found join lanes on lanes.id = found.id

-- lease_view --
-- What a lease call must know first: [expired workers, settling, next due, suspects of
-- app ?3, paused, open keys, parked lanes, pauses of that app].
select
    exists (select 1 from workers where ended_at is null and (boot_id <> ?1 or expires_at <= ?2)),
    exists (select 1 from settling) or exists (select 1 from reviving) or exists (select 1 from revivable)
    or exists (select 1 from meta where name = 'retries' and value <> '[]'),
    (select min(available_at) from jobs where row_state = 1),
    (select count(*) from jobs where row_state = 3 and app = ?3),
    (select value from meta where name = 'paused') = '1',
    exists (select 1 from open_keys),
    exists (select 1 from lanes where parked_on is not null),
    exists (select 1 from pauses where app = ?3)

-- ready_lanes --
-- The first ?2 ready lanes of each group of ?1 for tasks ?3 of app ?4: [lane, group, limit_keys, task].
select json_group_array(json_array(lanes.id, lanes.grp, lanes.limit_keys, lanes.task))
from jsonb_each(?1) as wanted cross join lanes on lanes.id in (
    select id from lanes where head_id is not null and parked_on is null and app = ?4 and grp = wanted.value
        and task in (select value from jsonb_each(?3))
    order by head_priority desc, head_at, head_id limit ?2
)

-- merge_lanes --
-- The order of the first ?2 jobs of each of several lanes of one group; ?1 = [lane, …].
select json_group_array(lane_id) from (
    select jobs.lane_id from jsonb_each(?1) as wanted cross join jobs on jobs.id in (
        select id from jobs where row_state = 2 and lane_id = wanted.value
        order by priority desc, available_at, id limit ?2
    )
    order by jobs.priority desc, jobs.available_at, jobs.id
)

-- take_jobs --
-- The first ?2 jobs of each of these lanes, as their worker will hold them; ?1 = [lane, …].
select json_group_array(json_array(
    jobs.id, jobs.token + 1, jobs.key, lanes.task, lanes.grp, jobs.lane_id, jobs.payload, jobs.attempts, jobs.crashes,
    jobs.priority, jobs.due_at, jobs.deferred_since, jobs.partition, jobs.plan_id, jobs.level,
    json(iif(lanes.limit_keys = '[]', 'false', 'true')), lanes.kind
))
from jsonb_each(?1) as wanted cross join lanes on lanes.id = wanted.value
cross join jobs on jobs.id in (
    select id from jobs where row_state = 2 and lane_id = wanted.value
    order by priority desc, available_at, id limit ?2
)

-- weigh_jobs --
-- The number of bytes that take_jobs would hand out; ?1 = [lane, …], ?2 = most.
select coalesce(sum(octet_length(jobs.payload)), 0)
from jsonb_each(?1) as wanted cross join jobs on jobs.id in (
    select id from jobs where row_state = 2 and lane_id = wanted.value
    order by priority desc, available_at, id limit ?2
)

-- mark_leased --
-- Leases ready jobs; ?1 = [id, …], ?2 = worker, ?3 = now. The caller compares the number of rows changed: a job that is
-- ready by its index alone is not.
update jobs set row_state = 4, token = token + 1, worker = ?2, updated_at = ?3
where id in (select value from jsonb_each(?1)) and row_state = 2

-- list_suspects --
-- The first ?3 suspects for tasks ?1 of app ?4, cell by cell: of cell ?2, or if that is 0 of all that nobody runs:
-- [cell, job, limit_keys, bytes].
select json_group_array(json_array(cell, id, limit_keys, bytes)) from (
    select jobs.cell, jobs.id, lanes.limit_keys, octet_length(jobs.payload) as bytes
    from jobs join lanes on lanes.id = jobs.lane_id
    where jobs.row_state = 3 and jobs.app = ?4 and lanes.task in (select value from jsonb_each(?1)) and iif(
        ?2, jobs.cell = ?2,
        jobs.cell = 0 or jobs.cell not in (select cell from jobs where row_state = 4 and solo = 1)
    )
    order by jobs.cell, jobs.id limit ?3
)

-- take_suspects --
-- Suspects as their worker will hold them; ?1 = [id, …].
select json_group_array(json_array(
    jobs.id, jobs.token + 1, jobs.key, lanes.task, lanes.grp, jobs.lane_id, jobs.payload, jobs.attempts, jobs.crashes,
    jobs.priority, jobs.due_at, jobs.deferred_since, jobs.partition, jobs.plan_id, jobs.level,
    json(iif(lanes.limit_keys = '[]', 'false', 'true')), lanes.kind, jobs.cell
))
from jsonb_each(?1) as wanted cross join jobs on jobs.id = wanted.value join lanes on lanes.id = jobs.lane_id

-- mark_solo --
-- Leases suspects; ?1 = [id, …], ?2 = worker, ?3 = now.
update jobs set row_state = 4, token = token + 1, worker = ?2, solo = 1, updated_at = ?3
where id in (select value from jsonb_each(?1))

-- count_delayed --
-- How many jobs are queued for later than ?2; no more than ?1 are counted. Who is due is ready, though not yet promoted.
select count(*) from (select 1 from jobs where row_state = 1 and available_at > ?2 limit ?1)

-- count_suspects --
-- How many jobs of an app, or of all, wait to run in quarantine.
select count(*) from jobs where row_state = 3 and (?1 is null or app = ?1)

-- count_holders --
-- Leases that hold limit keys; ?1 = [key, …].
select json_group_array(json_array(wanted.value, (select count(*) from held where limit_key = wanted.value)))
from jsonb_each(?1) as wanted

-- name_holders --
-- Who holds a limit key: at most ten.
select json_group_array(key) from (
    select jobs.key from held join jobs on jobs.id = held.job_id where held.limit_key = ?1 order by jobs.id limit 10
)

-- list_holders --
-- How many jobs hold each limit key: [key, count], at most ?1 keys.
select limit_key, count(*) from held group by limit_key order by limit_key limit ?1

-- cap_overrides --
-- Caps that an operator set; ?1 = [key, …].
select json_group_array(json_array(limits.limit_key, limits.cap))
from jsonb_each(?1) as wanted cross join limits on limits.limit_key = wanted.value

-- all_caps --
-- Every cap that an operator set.
select json_group_array(json_array(limit_key, cap)) from limits

-- set_cap --
-- Overrides a cap.
insert into limits (limit_key, cap) values (?1, ?2) on conflict (limit_key) do update set cap = excluded.cap

-- drop_cap --
-- Forgets an override.
delete from limits where limit_key = ?1

-- hold_keys --
-- Limit keys of leases; ?1 = [[job, token, key], …].
insert into held (job_id, token, limit_key) select value ->> 0, value ->> 1, value ->> 2 from jsonb_each(?1)

-- open_freed_keys --
-- Notes the keys that these leases give back and for which lanes are parked; ?1 = [[job, token], …].
insert or ignore into open_keys (limit_key)
select distinct held.limit_key from jsonb_each(?1) as freed
cross join held on held.job_id = freed.value ->> 0 and held.token = freed.value ->> 1
where exists (select 1 from lanes where lanes.parked_on = held.limit_key)

-- open_key --
-- Notes that a key may have room.
insert or ignore into open_keys (limit_key) values (?1)

-- open_dimension --
-- Notes that every key between ?1 and ?2 may have room that lanes are parked on.
insert or ignore into open_keys (limit_key)
select distinct parked_on from lanes where parked_on >= ?1 and parked_on < ?2

-- free_keys --
-- Leases give their limit keys back; ?1 = [[job, token], …].
delete from held where (job_id, token) in (select value ->> 0, value ->> 1 from jsonb_each(?1))

-- detach --
-- A lease is over while its body may still run.
insert into detached (job_id, token, worker) values (?1, ?2, ?3)

-- drop_detached --
-- The body of such a lease has ended.
delete from detached where job_id = ?1 and token = ?2

-- detached_of --
-- Such leases of a worker, by its number.
select job_id, token from detached where worker = ?1

-- leased_by_id --
-- What a worker holds, by its id.
select jobs.id, jobs.token from workers join jobs on jobs.worker = workers.no and jobs.row_state = 4
where workers.id = ?1 order by jobs.id

-- inbox_of --
-- What there is for a worker, by its id: leases that are detached, and questions without an answer: [job, token, question].
select job_id, token, null from detached where worker = (select no from workers where id = ?1)
union all
select job_id, token, id from control where target = ?1 and answer is null

-- ask --
-- A question to a worker about a lease; its number.
insert into control (target, job_id, token, asked_at) values (?1, ?2, ?3, ?4) returning id

-- forget_questions --
-- Old questions go: asked before ?1, or numbered up to ?2.
delete from control where id in (select id from control where asked_at < ?1 or id <= ?2 order by id limit 100)

-- answer --
-- A worker answers a question.
update control set answer = ?2, answered_at = ?3 where id = ?1 and answer is null

-- read_answer --
-- The answer to a question.
select answer from control where id = ?1

-- list_open_keys --
-- Keys that may have room while lanes are parked on them.
select json_group_array(limit_key) from (select limit_key from open_keys limit 64)

-- close_key --
-- A key is full, or nobody is parked on it.
delete from open_keys where limit_key = ?1

-- park_lanes --
-- Lanes wait for a key; ?1 = [[lane, key, seq], …]; seq grows, and is 0 for a key whose cap is 0.
update lanes set parked_on = parked.value ->> 1, parked_seq = parked.value ->> 2
from jsonb_each(?1) as parked where lanes.id = parked.value ->> 0

-- park_for_good --
-- The cap of a key is 0: nobody can free it; only a changed cap lets its lanes try again.
update lanes set parked_seq = 0 where parked_on = ?1 and parked_seq <> 0

-- is_ready --
-- True if a job of tasks ?1 of app ?2 is ready that no limit stops, as far as known.
select exists (
    select 1 from lanes where head_id is not null and parked_on is null and app = ?2
        and task in (select value from jsonb_each(?1))
)

-- unpark_lanes --
-- Lets lanes of tasks ?2 of app ?4 try again that wait for a key, first come first served.
update lanes set parked_on = null where id in (
    select id from lanes where parked_on = ?1 and app = ?4 and task in (select value from jsonb_each(?2))
    order by parked_seq limit ?3
)

-- parked_keys --
-- The keys that lanes of tasks ?1 of app ?2 wait for, at most 64, by skip-scan.
with recursive found (limit_key, n) as (
    select (
        select parked_on from lanes where parked_on is not null
            and app = ?2 and task in (select value from jsonb_each(?1)) order by parked_on limit 1
    ), 1
    union all
    select (
        select parked_on from lanes where parked_on > found.limit_key
            and app = ?2 and task in (select value from jsonb_each(?1)) order by parked_on limit 1
    ), n + 1
    from found where found.limit_key is not null and n < 64
)
select json_group_array(limit_key) from found where limit_key is not null

-- is_parked_on --
-- True if any lane waits for this key.
select exists (select 1 from lanes where parked_on = ?1)

-- unpark_all --
-- Lets every lane try again: caps may have changed.
update lanes set parked_on = null where parked_on is not null

-- end_jobs --
-- Ends leased jobs under their tokens; ?1 = [[id, token, row_state, result, error, started_at, ended_at, outcome], …],
-- ?2 = worker. Fencing: the token must be the job's current one; the caller compares the number of rows changed. What a job
-- returned last is kept when it does not end well.
update jobs set
    row_state = ended.value ->> 2, error = ended.value ->> 4,
    result = case ended.value ->> 2 when 5 then ended.value ->> 3 else coalesce(ended.value ->> 3, result) end,
    started_at = ended.value ->> 5, finished_at = ended.value ->> 6, updated_at = ended.value ->> 6,
    ended_token = token, worker = null, solo = 0, losses = 0, deferred_since = null
from jsonb_each(?1) as ended
where jobs.id = ended.value ->> 0 and +jobs.token = ended.value ->> 1 and +jobs.worker = ?2 and +jobs.row_state = 4

-- end_job --
-- The same for one job, to see which of a batch is stale. Fencing: the token must be the job's current one.
update jobs set
    row_state = ?3, result = case ?3 when 5 then ?4 else coalesce(?4, result) end, error = ?5, started_at = ?6, finished_at = ?7, updated_at = ?7, ended_token = token,
    worker = null, solo = 0, losses = 0, deferred_since = null
where id = ?1 and token = ?2 and worker = ?8 and row_state = 4

-- write_history --
-- One row per ended attempt; ?1 as end_jobs, ?2 = worker.
insert or ignore into attempts (job_id, token, worker, outcome, started_at, ended_at, error)
select
    value ->> 0, value ->> 1, ?2, value ->> 7, value ->> 5, value ->> 6, value ->> 4
from jsonb_each(?1)

-- write_attempt --
-- One row of history.
insert or ignore into attempts (job_id, token, worker, outcome, started_at, ended_at, error)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- verdict_row --
-- State and token of a job whose end was refused: [row_state, ended_token].
select row_state, ended_token from jobs where id = ?1

-- rearm_job --
-- Queues a job again instead of ending it, fenced by its token.
update jobs set
    row_state = ?3, due_at = ?4, available_at = ?5, ended_token = token, worker = null, solo = 0, attempts = 0,
    crashes = 0, losses = 0, deferred_since = null, error = null, result = ?6, started_at = ?7, updated_at = ?8
where id = ?1 and token = ?2 and worker = ?9 and row_state = 4 and due_at < ?4

-- fail_job --
-- Ends an attempt badly, fenced by its token: queued again later, or in error. ?3 = now or later, ?4 = charge, ?5 = it ends, ?6 = it
-- crashed, ?7 = error, ?8 = started, ?9 = ended, ?10 = worker, ?11 = now.
update jobs set
    attempts = attempts + ?4,
    crashes = crashes + ?6,
    row_state = case when ?5 then 7 when ?3 > ?11 then 1 else 2 end,
    finished_at = case when ?5 then ?9 end,
    available_at = ?3, error = ?7, started_at = ?8, updated_at = ?9, ended_token = token, worker = null, solo = 0,
    losses = 0, deferred_since = case
        when ?4 then null when ?6 then deferred_since else coalesce(deferred_since, ?9)
    end
where id = ?1 and token = ?2 and worker = ?10 and row_state = 4
returning
    row_state, lane_id, (select limit_keys <> '[]' from lanes where lanes.id = lane_id),
    (select kind from lanes where lanes.id = lane_id)

-- release_job --
-- Gives an unstarted job back, fenced by its token; a suspect stays one.
update jobs set
    row_state = case when solo then 3 else 2 end, worker = null, solo = 0, losses = 0, updated_at = ?4
where id = ?1 and token = ?2 and worker = ?3 and row_state = 4
returning lane_id, (select limit_keys <> '[]' from lanes where lanes.id = lane_id)

-- with_dependants --
-- Of these jobs, those that dependants wait for; ?1 = [id, …].
select json_group_array(value) from jsonb_each(?1)
where exists (select 1 from edges where parent_id = value and open = 1)

-- settle_later --
-- Notes ended jobs whose dependants must be told; ?1 = [id, …].
insert or ignore into settling (job_id) select value from jsonb_each(?1)

-- take_settling --
-- The first ?1 ended jobs whose dependants must be told.
select json_group_array(job_id) from (select job_id from settling order by job_id limit ?1)

-- edges_to_settle --
-- The next ?2 edges from ended jobs, no later than the last of ?1 = [id, …], to those who wait: [parent, its row_state,
-- its key, child, kind].
select json_group_array(json_array(job_id, row_state, key, child_id, kind)) from (
    select settling.job_id, jobs.row_state, jobs.key, edges.child_id, edges.kind
    from settling cross join edges indexed by edges_open on edges.parent_id = settling.job_id and edges.open = 1
    cross join jobs on jobs.id = settling.job_id
    where settling.job_id <= (?1 ->> '$[#-1]')
    order by settling.job_id, edges.child_id limit ?2
)

-- drop_settling --
-- All dependants of these ended jobs are told; ?1 = [id, …].
delete from settling where job_id in (select value from jsonb_each(?1))

-- is_settling --
-- True while dependants of ended jobs remain to be told.
select exists (select 1 from settling)

-- close_edges --
-- Edges are satisfied; ?1 = [[parent, child], …].
update edges set open = 0
where (parent_id, child_id) in (select value ->> 0, value ->> 1 from jsonb_each(?1))

-- close_edges_of --
-- A dependant has ended: it waits for nobody; ?1 = [child, …].
update edges set open = 0 where open = 1 and child_id in (select value from jsonb_each(?1))

-- release_children --
-- Dependants with fewer dependencies; those with none left may run. ?1 = [[child, how many fewer], …], ?2 = now.
update jobs set
    pending = pending - (freed.value ->> 1),
    row_state = case when pending > freed.value ->> 1 then 0 when available_at > ?2 then 1 else 2 end,
    updated_at = ?2
from jsonb_each(?1) as freed where jobs.id = freed.value ->> 0 and +jobs.row_state = 0
returning id, lane_id, row_state

-- skip_children --
-- Dependants that cannot run any more; ?1 = [[child, cause, error], …], ?2 = now.
update jobs set
    row_state = 6, pending = 0, skipped_by = spoilt.value ->> 1, error = spoilt.value ->> 2, finished_at = ?2,
    updated_at = ?2
from jsonb_each(?1) as spoilt where jobs.id = spoilt.value ->> 0 and +jobs.row_state = 0
returning id, lane_id

-- lane_names --
-- Task, group and app of lanes; ?1 = [lane, …].
select json_group_array(json_array(lanes.id, lanes.task, lanes.grp, lanes.app))
from jsonb_each(?1) as wanted cross join lanes on lanes.id = wanted.value

-- add_counts --
-- Merged change of the counters; ?1 = [[scope, state, name, delta], …].
insert into counters (scope, state, name, n)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from jsonb_each(?1) where true
on conflict (scope, state, name) do update set n = n + excluded.n

-- set_cursors --
-- Commits the cursors of ticks and other durable values; ?1 = [[name, value], …].
insert into cursors (name, value) select value ->> 0, value ->> 1 from jsonb_each(?1) where true
on conflict (name) do update set value = excluded.value

-- read_cursor --
-- A durable value.
select value from cursors where name = ?1

-- plan_at --
-- [state of a plan, is its level ?2 committed].
select state, exists (select 1 from commits where plan_id = ?1 and level = ?2) from plans where id = ?1

-- take_numbers --
-- The next ?1 numbers of commits are taken.
update meta set value = cast(value as integer) + ?1 where name = 'commit_seq'

-- drop_replaced --
-- Slices make room for newer ones; ?1 = [[dataset, at, version, basis, number, plan, level, job, document], …].
delete from manifests where id in (
    select old.id from jsonb_each(?1) as new
    cross join manifests as old on old.dataset = new.value ->> 0 and old.at = new.value ->> 1
    where old.seq is not null and (new.value ->> 4) is not null
        or old.seq is null and old.plan_id = new.value ->> 5 and old.level = new.value ->> 6
        and not exists (select 1 from commits where plan_id = old.plan_id and level = old.level)
)

-- insert_slices --
-- Slices that were built; ?1 = [[dataset, at, version, basis, number, plan, level, job, document], …], numbers counted back
-- from the last one that was taken; null: not visible yet.
insert into manifests (dataset, at, version, basis, seq, plan_id, level, job_id, document)
select
    value ->> 0, value ->> 1, value ->> 2, value ->> 3,
    (select cast(value as integer) from meta where name = 'commit_seq') + (value ->> 4),
    value ->> 5, value ->> 6, value ->> 7, value ->> 8
from jsonb_each(?1)

-- insert_commits --
-- Levels become visible; ?1 = [[plan, level, number], …], as above.
insert into commits (plan_id, level, seq)
select
    value ->> 0, value ->> 1, (select cast(value as integer) from meta where name = 'commit_seq') + (value ->> 2)
from jsonb_each(?1) where true
on conflict (plan_id, level) do nothing

-- untidy_slices --
-- ?1 slices that have no number: of committed levels, [id, dataset, at, number], and of plans that are over, number 0.
select json_group_array(json_array(id, dataset, at, number)) from (
    select staged.id, staged.dataset, staged.at, commits.seq as number
    from commits
    cross join manifests as staged
        on staged.plan_id = commits.plan_id and staged.level = commits.level and staged.seq is null
    union all
    select staged.id, staged.dataset, staged.at, 0
    from plans cross join manifests as staged on staged.plan_id = plans.id and staged.seq is null
    where plans.ended_at is not null
        and not exists (select 1 from commits where plan_id = staged.plan_id and level = staged.level)
    limit ?1
)

-- number_slices --
-- Slices of committed levels get their numbers; ?1 = [[id, dataset, at, number], …].
update manifests set seq = tidied.value ->> 3 from jsonb_each(?1) as tidied where manifests.id = tidied.value ->> 0

-- drop_superseded --
-- Only the newest of those with a number stays of a slice; ?1 = [[id, dataset, at, number], …].
delete from manifests where id in (
    select old.id from jsonb_each(?1) as tidied
    cross join manifests as old on old.dataset = tidied.value ->> 1 and old.at = tidied.value ->> 2
    where old.seq < (
        select max(seq) from manifests as newest
        where newest.dataset = tidied.value ->> 1 and newest.at = tidied.value ->> 2
    )
)

-- drop_slices --
-- ?1 = [id, …].
delete from manifests where id in (select value from jsonb_each(?1))

-- slice_marks --
-- What is committed of a dataset in [?2, ?3): [last number, times, numbers, bases, times of other versions than ?4]. SQLite
-- takes the other columns of a group from the row that has the maximum.
select
    (select cast(value as integer) from meta where name = 'commit_seq'),
    json_group_array(at) filter (where version = ?4), json_group_array(number) filter (where version = ?4),
    json_group_array(basis) filter (where version = ?4), json_group_array(at) filter (where version <> ?4)
from (
    select at, basis, version, max(coalesce(seq, (
        select commits.seq from commits where commits.plan_id = slice.plan_id and commits.level = slice.level
    ))) as number
    from manifests as slice where dataset = ?1 and at >= ?2 and at < ?3 group by at
) where number is not null

-- read_slices --
-- Committed slices of a dataset in [?2, ?3), at most ?4: [last number, [[dataset, at, version, basis, number, plan, level,
-- job, document], …]].
select
    (select cast(value as integer) from meta where name = 'commit_seq'),
    json_group_array(json_array(dataset, at, version, basis, number, plan_id, level, job_id, document))
from (
    select dataset, at, version, basis, plan_id, level, job_id, document, max(coalesce(seq, (
        select commits.seq from commits where commits.plan_id = slice.plan_id and commits.level = slice.level
    ))) as number
    from manifests as slice where dataset = ?1 and at >= ?2 and at < ?3
    group by at having number is not null order by at limit ?4
)

-- read_ranges --
-- Committed slices of ranges; ?1 = [[dataset, first, last], …]. Answers as above.
select
    (select cast(value as integer) from meta where name = 'commit_seq'),
    json_group_array(json_array(dataset, at, version, basis, number, plan_id, level, job_id, document))
from (
    select dataset, at, version, basis, plan_id, level, job_id, document, max(coalesce(seq, (
        select commits.seq from commits where commits.plan_id = slice.plan_id and commits.level = slice.level
    ))) as number
    from jsonb_each(?1) as wanted
    cross join manifests as slice on dataset = wanted.value ->> 0
        and at >= wanted.value ->> 1 and at <= wanted.value ->> 2
    group by dataset, at having number is not null order by dataset, at
)

-- staged_slices --
-- What a plan has built that is not visible.
select json_group_array(json_array(dataset, at, version, basis, seq, plan_id, level, job_id, document)) from (
    select * from manifests where plan_id = ?1 and seq is null
        and not exists (select 1 from commits where commits.plan_id = ?1 and commits.level = manifests.level)
    order by level, dataset, at
)

-- read_documents --
-- Every row of datasets of a name, whichever app they are of, above an id, at most ?3: [id, document].
select json_group_array(json_array(id, document)) from (
    select id, document from manifests
    where dataset in (select iif(no = 1, ?1, '@' || no || '/' || ?1) from apps) and id > ?2 order by id limit ?3
)

-- list_datasets --
-- Datasets with something committed: [name, slices, first, last, newest number].
select dataset, count(*), min(at), max(at), max(number) from (
    select dataset, at, max(coalesce(seq, (
        select commits.seq from commits where commits.plan_id = slice.plan_id and commits.level = slice.level
    ))) as number
    from manifests as slice group by dataset, at
) where number is not null group by dataset order by dataset

-- add_plan --
-- Keeps a draft, unless its id is known.
insert into plans (id, app, digest, state, run_id, root, document, levels, jobs, created_at)
values (?1, ?2, ?3, 'draft', ?4, ?5, ?6, ?7, ?8, ?9) on conflict (id) do nothing

-- begin_plan --
-- A draft of this run becomes a plan that runs.
update plans set state = 'running', begun_at = ?3 where id = ?1 and state = 'draft' and run_id = ?2

-- adopt_plan --
-- A plan that was left after it had begun goes on.
update plans set state = 'running', run_id = ?2 where id = ?1 and state = 'left' and begun_at is not null

-- end_plan --
-- A running plan is over: [its run].
update plans set state = 'ended', ended_at = ?2 where id = ?1 and state = 'running' returning run_id

-- abandon_plan --
-- An open plan is given up.
update plans set state = 'abandoned', ended_at = ?2 where id = ?1 and ended_at is null

-- has_open_plan --
-- True if this run has a plan that is not over.
select exists (select 1 from plans where run_id = ?1 and ended_at is null)

-- leave_plans --
-- Plans on their way whose runs hold nothing any more; ?1 = [run, …].
update plans set state = 'left'
where ended_at is null and run_id in (select value from jsonb_each(?1)) and state <> 'left' returning id

-- leave_all_plans --
-- The same for all of them.
update plans set state = 'left' where ended_at is null and run_id > ''

-- finish_job --
-- A queued job ends well without a worker.
update jobs set row_state = 5, finished_at = ?2, updated_at = ?2 where id = ?1 and row_state between 1 and 3

-- open_jobs_of_plan --
-- The newest ?2 jobs of a plan that have not ended: [id, lane, row_state, token, worker].
select json_group_array(json_array(id, lane_id, row_state, token, worker)) from (
    select id, lane_id, row_state, token, worker from jobs
    where plan_id = ?1 and row_state < 5 order by id desc limit ?2
)

-- cancel_jobs --
-- Cancels jobs that have not ended; ?1 = [id, …], ?2 = now.
update jobs set row_state = 8, pending = 0, finished_at = ?2, updated_at = ?2, worker = null, solo = 0
where id in (select value from jsonb_each(?1)) and row_state < 5

-- old_plans --
-- ?2 plans that were over before a time, and of which no job and no staged slice is left.
select json_group_array(id) from (
    select id from plans where ended_at is not null and ended_at < ?1
        and not exists (select 1 from jobs where jobs.plan_id = plans.id)
        and not exists (select 1 from manifests where manifests.plan_id = plans.id and seq is null)
    limit ?2
)

-- purge_commits --
-- Commits of plans that go; ?1 = [plan, …].
delete from commits where plan_id in (select value from jsonb_each(?1))

-- purge_plans --
-- ?1 = [plan, …].
delete from plans where id in (select value from jsonb_each(?1))

-- read_plan --
-- One plan.
select id, app, digest, state, run_id, root, document, levels, jobs, created_at, begun_at, ended_at
from plans where id = ?1

-- list_open_plans --
-- Plans that are not over, the newest first; ?1 = their digest, or null, ?2 = their app, or null.
select id, app, digest, state, run_id, root, document, levels, jobs, created_at, begun_at, ended_at
from plans where ended_at is null and run_id > '' and (?1 is null or digest = ?1) and (?2 is null or app = ?2) order by +no desc

-- count_plan_jobs --
-- [row_state, level, jobs] of a plan, but for those that are done; -1: all of a level; -2: it is committed.
select -1, level, count(*) from jobs where plan_id = ?1 and level is not null group by level
union all
select row_state, level, count(*) from jobs where plan_id = ?1 and row_state < 5 and +level is not null
group by +level, row_state
union all
select row_state, level, count(*) from jobs where plan_id = ?1 and row_state >= 6 and +level is not null
group by +level, row_state
union all
select -2, level, 0 from commits where plan_id = ?1

-- list_unhappy_of_plan --
-- Jobs of a plan above an id that ended otherwise than done; ?3 = [row_state, …], ?4 = most.
select job_rows.* from (
    select id from jobs where plan_id = ?1 and row_state >= 6 and id > ?2
        and row_state in (select value from jsonb_each(?3))
    order by id limit ?4
) as wanted cross join job_rows on job_rows.id = wanted.id

-- list_open_of_plan --
-- Jobs of a plan above an id that have not ended; as above.
select job_rows.* from (
    select id from jobs where plan_id = ?1 and row_state < 5 and id > ?2
        and row_state in (select value from jsonb_each(?3))
    order by id limit ?4
) as wanted cross join job_rows on job_rows.id = wanted.id

-- list_plan_jobs --
-- Jobs of a plan above an id, in whatever states; as above.
select job_rows.* from (
    select id from jobs where plan_id = ?1 and id > ?2 and row_state in (select value from jsonb_each(?3))
    order by id limit ?4
) as wanted cross join job_rows on job_rows.id = wanted.id

-- hold_locks --
-- Locks that somebody holds, ?1 = [name, …]; ?2, ?3 = boot id and boot time: [name, run, mark, token, taken_at, alive].
select json_group_array(json_array(name, run_id, mark, token, taken_at, alive)) from (
    select name, run_id, mark, token, taken_at, boot_id = ?2 and expires_at > ?3 as alive
    from jsonb_each(?1) as wanted cross join locks on locks.name = wanted.value
    where run_id is not null order by name
)

-- take_locks --
-- A run takes locks; ?1 = [name, …], then run, mark, boot id, until, now.
insert into locks (name, run_id, mark, token, boot_id, expires_at, taken_at)
select value, ?2, ?3, 1, ?4, ?5, ?6 from jsonb_each(?1) where true
on conflict (name) do update set
    run_id = excluded.run_id, mark = excluded.mark, token = token + 1, boot_id = excluded.boot_id,
    expires_at = excluded.expires_at, taken_at = excluded.taken_at

-- beat_locks --
-- A run renews what it has taken since the machine was started; ?2 = boot id, ?3 = until.
update locks set expires_at = max(expires_at, ?3) where run_id = ?1 and boot_id = ?2

-- free_locks --
-- Runs hold nothing any more; ?1 = [run, …].
update locks set run_id = null where run_id in (select value from jsonb_each(?1))

-- release_locks --
-- A run gives locks back; ?2 = [name, …].
update locks set run_id = null where run_id = ?1 and name in (select value from jsonb_each(?2))

-- has_lock --
-- True if a run holds any lock.
select exists (select 1 from locks where run_id = ?1)

-- void_locks --
-- Nobody holds anything, and every later token is greater than ?1.
update locks set run_id = null, token = max(token, ?1)

-- list_locks --
-- Locks that somebody holds; ?1, ?2 = boot id and boot time.
select json_group_array(json_array(name, run_id, mark, token, taken_at, alive)) from (
    select name, run_id, mark, token, taken_at, boot_id = ?1 and expires_at > ?2 as alive
    from locks where run_id is not null order by name
)

-- cancel_job --
-- Cancels a job that has not ended.
update jobs set row_state = 8, pending = 0, finished_at = ?2, updated_at = ?2, worker = null, solo = 0
where id = ?1 and row_state < 5

-- open_job --
-- Jobs of a key that have not ended, of app ?2 or of all: [id, lane, row_state, token, worker, kind].
select jobs.id, lane_id, row_state, token, worker, kind from jobs join lanes on lanes.id = lane_id
where key = ?1 and row_state < 5 and (?2 is null or jobs.app = ?2)

-- revoke_job --
-- Ends a lease from outside.
update jobs set row_state = case when solo then 3 else 2 end, worker = null, solo = 0, updated_at = ?3
where id = ?1 and token = ?2 and row_state = 4
returning lane_id

-- holder_of --
-- The worker that holds a lease.
select worker from jobs where id = ?1 and token = ?2 and row_state = 4

-- blame --
-- Dependants stay skipped, for another reason; ?1 = [[id, parent, error], …].
update jobs set skipped_by = blamed.value ->> 1, error = blamed.value ->> 2
from jsonb_each(?1) as blamed where jobs.id = blamed.value ->> 0 and +jobs.row_state = 6

-- failed_jobs --
-- The next ?4 failed jobs above an id: [id, lane, whether to put it back]; ?2 = task, ?3 = most attempts, ?5 = app.
-- `row_state >= 6` repeats the condition of jobs_unhappy: SQLite uses a partial index only if it reads it.
select json_group_array(json_array(id, lane_id, wanted)) from (
    select jobs.id, jobs.lane_id,
        jobs.plan_id is null and (?2 is null or lanes.task = ?2) and (?5 is null or jobs.app = ?5) and (?3 is null or jobs.attempts <= ?3) as wanted
    from jobs join lanes on lanes.id = jobs.lane_id
    where jobs.row_state >= 6 and jobs.row_state = 7 and jobs.id > ?1
    order by jobs.id limit ?4
)

-- named_jobs --
-- Jobs of these keys in a state, of no plan: [key, id, lane, app]; ?1 = [key, …], ?2 = row_state, ?3 = app, ?4 = kind, each of
-- both may be anyone's.
select json_group_array(json_array(key, id, lane_id, name)) from (
    select jobs.key, jobs.id, jobs.lane_id, apps.name
    from jsonb_each(?1) as wanted cross join jobs on jobs.key = wanted.value
    cross join lanes on lanes.id = jobs.lane_id cross join apps on apps.no = jobs.app
    where +jobs.row_state = ?2 and +jobs.plan_id is null and (?3 is null or jobs.app = ?3) and (?4 is null or lanes.kind = ?4)
    order by jobs.id
)

-- requeue_jobs --
-- Jobs that ended as ?3 start afresh; ?1 = [[id, …], …], ?2 = now, ?4 = the time that they are meant for from now on, null: as
-- before. A done one may be older than the last restore: its next lease needs a greater token than any before that.
update jobs set
    row_state = 2, attempts = 0, crashes = 0, losses = 0, deferred_since = null, available_at = ?2, finished_at = null,
    updated_at = ?2, due_at = coalesce(?4, due_at),
    token = max(token, (select cast(meta.value as integer) from meta where name = 'token_floor'))
where id in (select value ->> 0 from jsonb_each(?1)) and +row_state = ?3

-- revive_later --
-- Notes jobs that were put back and have dependants; ?1 = [id, …].
insert into reviving (job_id, after_id)
select value, 0 from jsonb_each(?1) where exists (select 1 from edges where parent_id = value)
on conflict (job_id) do update set after_id = 0

-- skipped_because --
-- Dependants that were skipped because of a job: [id, …].
select json_group_array(jobs.id) from edges cross join jobs on jobs.id = edges.child_id
where edges.parent_id = ?1 and jobs.row_state = 6 and jobs.skipped_by = ?1

-- edges_of_revived --
-- The next ?1 edges of jobs that were put back: [parent, child, was it skipped because of the parent].
select json_group_array(json_array(job_id, child_id, hangs)) from (
    select reviving.job_id, edges.child_id, jobs.row_state = 6 and jobs.skipped_by is reviving.job_id as hangs
    from reviving cross join edges on edges.parent_id = reviving.job_id and edges.child_id > reviving.after_id
    cross join jobs on jobs.id = edges.child_id
    order by reviving.job_id, edges.child_id limit ?1
)

-- drop_reviving --
-- All dependants of all jobs that were put back are collected.
delete from reviving

-- drop_reviving_below --
-- The same for jobs below an id.
delete from reviving where job_id < ?1

-- collected_to --
-- The dependants of a job that was put back are collected up to this one.
update reviving set after_id = ?2 where job_id = ?1

-- judge_later --
-- Notes skipped dependants that are put back unless another job forbids it; ?1 = [id, …].
insert or ignore into revivable (job_id) select value from jsonb_each(?1)

-- next_revivable --
-- The first ?1 of them: [id, its first dependant].
select json_group_array(json_array(job_id, first_child)) from (
    select job_id, (select min(child_id) from edges where parent_id = job_id) as first_child
    from revivable order by job_id limit ?1
)

-- drop_revivable --
-- They are judged; ?1 = [id, …].
delete from revivable where job_id in (select value from jsonb_each(?1))

-- is_reviving --
-- True while failed jobs or skipped dependants remain to be put back.
select exists (select 1 from reviving) or exists (select 1 from revivable)
    or exists (select 1 from meta where name = 'retries' and value <> '[]')

-- reopen_edges --
-- Edges of a dependant whose parents have not ended as they must.
update edges set open = 1 where child_id in (select value from jsonb_each(?1)) and exists (
    select 1 from jobs where jobs.id = edges.parent_id and jobs.row_state < 5
)

-- spoilt_by --
-- Parents that keep dependants from running: [child, parent, row_state, key], by parent; ?1 = [child, …].
select json_group_array(json_array(child_id, id, row_state, key)) from (
    select edges.child_id, jobs.id, jobs.row_state, jobs.key
    from jsonb_each(?1) as child cross join edges on edges.child_id = child.value
    cross join jobs on jobs.id = edges.parent_id
    where edges.kind = 'success' and jobs.row_state in (6, 7, 8)
    order by jobs.id
)

-- restore_children --
-- Skipped dependants wait again, or are ready; ?1 = [id, …], ?2 = now: [id, lane, row_state].
update jobs set
    pending = (select count(*) from edges where child_id = jobs.id and open = 1),
    row_state = case
        when exists (select 1 from edges where child_id = jobs.id and open = 1) then 0
        when available_at > ?2 then 1 else 2
    end,
    skipped_by = null, error = null, finished_at = null, updated_at = ?2
where id in (select value from jsonb_each(?1)) and +row_state = 6
returning id, lane_id, row_state

-- old_jobs --
-- The next ?4 jobs that ended before ?1, above the mark ?2, ?3: [id, lane, row_state, finished_at, may it go (none of
-- its first ?5 dependants is unfinished, no body of it runs, its plan is over, it is of app ?6), how many edges it has, counted to ?5].
select json_group_array(json_array(id, lane_id, row_state, finished_at, free, edges)) from (
    select id, lane_id, row_state, finished_at,
        (?6 is null or app = ?6) and not exists (select 1 from detached where detached.job_id = jobs.id)
        and not exists (select 1 from plans where plans.id = jobs.plan_id and ended_at is null) and not exists (
            select 1 from (select child_id from edges where parent_id = jobs.id limit ?5) as first
            cross join jobs as child on child.id = first.child_id where child.row_state < 5
        ) as free,
        (select count(*) from (select 1 from edges where parent_id = jobs.id limit ?5))
        + (select count(*) from (select 1 from edges where child_id = jobs.id limit ?5)) as edges
    from jobs where row_state >= 5 and finished_at < ?1 and (finished_at, id) > (?2, ?3)
    order by finished_at, id limit ?4
)

-- has_unfinished_dependant --
-- True if one of the first ?2 dependants of a job has not ended, a body of it still runs, or its plan is not over.
select exists (select 1 from detached where job_id = ?1) or exists (
    select 1 from jobs cross join plans on plans.id = jobs.plan_id where jobs.id = ?1 and plans.ended_at is null
) or exists (
    select 1 from (select child_id from edges where parent_id = ?1 limit ?2) as first
    cross join jobs as child on child.id = first.child_id where child.row_state < 5
)

-- forget_soon --
-- A failed or skipped job is cancelled, because its edges are about to go.
update jobs set row_state = 8 where id = ?1 and row_state in (6, 7)

-- strip_dependants --
-- Forgets the first ?2 edges of a job to its dependants.
delete from edges where parent_id = ?1 and child_id in (
    select child_id from edges where parent_id = ?1 order by child_id limit ?2
)

-- strip_dependencies --
-- Forgets ?2 edges of a job from what it waited for.
delete from edges where child_id = ?1 and parent_id in (select parent_id from edges where child_id = ?1 limit ?2)

-- spoilt_by_forgotten --
-- Skipped dependants (the first ?2 of each) of jobs to be forgotten that forbid them: [child, parent, row_state, key, what
-- skipped it]; those that are blamed on a forgotten job already are left out; ?1 = [id, …].
select json_group_array(json_array(child.id, parent.id, parent.row_state, parent.key, child.skipped_by))
from jsonb_each(?1) as old cross join jobs as parent on parent.id = old.value
cross join jobs as child on child.id in (
    select child_id from edges where parent_id = parent.id and kind = 'success' order by child_id limit ?2
)
where parent.row_state >= 6 and child.row_state = 6
    and exists (select 1 from jobs as cause where cause.id = child.skipped_by)

-- note_purged --
-- Remembers the highest id that is purged, so that it is not given again; ?1 = [[id, …], …].
update meta set value = cast(max(cast(value as integer), (
    select max(old.value ->> 0) from jsonb_each(?1) as old
)) as text) where name = 'purged_id'

-- purge_history --
-- ?1 = [[id, …], …].
delete from attempts where job_id in (select value ->> 0 from jsonb_each(?1))

-- purge_edges_to --
-- Edges whose dependant goes.
delete from edges where child_id in (select value ->> 0 from jsonb_each(?1))

-- purge_edges_from --
-- Edges whose parent goes.
delete from edges where parent_id in (select value ->> 0 from jsonb_each(?1))

-- purge_jobs --
-- ?1 = [[id, …], …].
delete from jobs where id in (select value ->> 0 from jsonb_each(?1))

-- purge_lanes --
-- Lanes of purged jobs whose whole group has no job any more; ?1 = [lane, …], ?2 = [state, …].
delete from lanes where id in (select value from jsonb_each(?1)) and head_id is null and not exists (
    select 1 from jsonb_each(?2) as states cross join counters
        on scope = 'group' and state = states.value and name = lanes.grp and n > 0
)

-- purge_group_counts --
-- Counters of groups that have come to nothing; ?2 = [state, …].
delete from counters where n = 0 and scope = 'group' and state in (select value from jsonb_each(?2))
    and name in (select value from jsonb_each(?1))

-- highest_token --
-- No lease of this store ever had a greater token.
select max(
    coalesce((select max(token) from jobs), 0), (select cast(value as integer) from meta where name = 'token_floor')
)

-- leased_by_lane --
-- How many leases there are: [lane, leases].
select json_group_array(json_array(lane_id, n)) from (
    select lane_id, count(*) as n from jobs where row_state = 4 group by lane_id
)

-- void_history --
-- Every lease was lost; ?1 = now, ?2 = why.
insert or ignore into attempts (job_id, token, worker, outcome, ended_at, error)
select id, token, worker, 'lost', ?1, ?2 from jobs where row_state = 4

-- void_jobs --
-- What was in progress is ready again; a suspect stays one.
update jobs set row_state = case when solo then 3 else 2 end, worker = null, solo = 0, updated_at = ?1
where row_state = 4

-- void_holders --
-- Nobody holds a limit key.
delete from held

-- void_detached --
-- No body runs any more.
delete from detached

-- end_all_workers --
-- Nobody is alive.
update workers set ended_at = ?1 where ended_at is null

-- raise_tokens --
-- Jobs that may be leased again get a token above every other; those that are done keep theirs.
update jobs set token = ?1 where row_state <> 5 and token < ?1

-- count_jobs --
-- How many jobs there are, from the counters.
select coalesce(sum(n), 0) from counters where scope = 'task' or scope glob 'task:*'

-- merge_log --
-- Writes the log into the file and empties it: [busy, …].
pragma wal_checkpoint(truncate)

-- one_file --
-- Gives the write-ahead log up, so that the file is whole by itself.
pragma journal_mode = delete

-- publish_status --
-- What a worker says of itself.
update workers set status = ?2, status_at = ?3 where id = ?1 and ended_at is null

-- list_workers --
-- Workers that have not ended: [id, run, host, pid, started, left of its lease, tasks, status, status_at].
select id, run_id, host, pid, started_at, case when boot_id = ?1 then expires_at - ?2 else 0 end, tasks,
    status, status_at
from workers where ended_at is null order by no

-- save_learned --
-- What a run has learned about one model of a provider: the last word counts.
insert into learned_limits (provider, model, document, learned_at) values (?1, ?2, ?3, ?4)
on conflict (provider, model) do update set document = excluded.document, learned_at = excluded.learned_at

-- forget_learned --
-- What is older than ?1.
delete from learned_limits where learned_at < ?1

-- list_learned --
-- The first ?1 that were learned, the newest first: [provider, model, document, learned_at].
select provider, model, document, learned_at from learned_limits
order by learned_at desc, provider, model limit ?1

-- begin_cooldown --
-- A provider asks for a pause; one that is known and ends later stays. ?1 … ?6 = provider, model, account, begun, until, document.
insert into cooldowns (provider, model, account, begun_at, until_at, probed_until, document)
values (?1, ?2, ?3, ?4, ?5, 0, ?6)
on conflict (provider, model, account) do update set
    begun_at = excluded.begun_at, until_at = excluded.until_at, probed_until = 0, document = excluded.document
where excluded.until_at >= cooldowns.until_at

-- take_probe --
-- The right to probe until ?5, if nobody has it; by ?4 = now the pause is over, or began later than that since the clock
-- was set back, or ?6: it may be probed before its end.
update cooldowns set probed_until = ?5
where provider = ?1 and model = ?2 and account = ?3 and (probed_until <= ?4 or probed_until > ?5)
    and (until_at <= ?4 or begun_at > ?4 or ?6 = 1)

-- end_cooldown --
-- A probe was answered: nothing is kept of it.
delete from cooldowns where provider = ?1 and model = ?2 and account = ?3

-- forget_cooldowns --
-- Those that were over before ?1.
delete from cooldowns where until_at < ?1

-- list_cooldowns --
-- The first ?1, the newest first: [provider, model, account, begun, until, probed until, document].
select provider, model, account, begun_at, until_at, probed_until, document from cooldowns
order by begun_at desc, provider, model, account limit ?1

-- find_calls --
-- Calls by key; ?1 = [[job, fingerprint, ordinal], …]: [call, job, fingerprint, ordinal, state, token, run, day, task,
-- provider, model, begun_at, ended_at, 2 × reserved, 2 × used, bought, reused, resent, estimated, doubts,
-- 2 × doubt, app].
select json_group_array(json_array(
    no, job_id, fingerprint, ordinal, state, token, run_id, day, task, provider, model, begun_at, ended_at,
    reserved_micros, reserved_tokens, used_micros, used_tokens, bought, reused, resent, estimated,
    doubts, doubt_micros, doubt_tokens, app
)) from jsonb_each(?1) as wanted
cross join calls on job_id = value ->> 0 and fingerprint = value ->> 1 and ordinal = value ->> 2

-- job_tokens --
-- The last tokens of jobs; ?1 = [job, …]: [job, token].
select json_group_array(json_array(jobs.id, jobs.token)) from jsonb_each(?1) as wanted
cross join jobs on jobs.id = wanted.value

-- add_calls --
-- Calls begin; ?1 = [[job, fingerprint, ordinal, token, run, day, task, provider, model, app, begun_at,
-- 2 × reserved, resent], …].
insert into calls (
    job_id, fingerprint, ordinal, state, token, run_id, day, task, provider, model, app, begun_at, reserved_micros,
    reserved_tokens, resent
)
select
    value ->> 0, value ->> 1, value ->> 2, 'open', value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
    value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13
from jsonb_each(?1) order by key

-- reopen_calls --
-- Calls begin again; ?1 = [[call, token, run, day, task, provider, model, app, begun_at, 2 × reserved, resent,
-- doubts, 2 × doubt], …].
update calls set
    state = 'open', token = value ->> 1, run_id = value ->> 2, day = value ->> 3, task = value ->> 4,
    provider = value ->> 5, model = value ->> 6, app = value ->> 7, begun_at = value ->> 8, ended_at = null,
    reserved_micros = value ->> 9, reserved_tokens = value ->> 10, resent = value ->> 11,
    doubts = value ->> 12, doubt_micros = value ->> 13, doubt_tokens = value ->> 14
from jsonb_each(?1) where no = value ->> 0

-- change_calls --
-- ?1 = [[call, state, ended_at, 2 × reserved, 2 × used, bought, reused, estimated], …].
update calls set
    state = value ->> 1, ended_at = value ->> 2, reserved_micros = value ->> 3, reserved_tokens = value ->> 4,
    used_micros = value ->> 5, used_tokens = value ->> 6, bought = value ->> 7, reused = value ->> 8,
    estimated = value ->> 9
from jsonb_each(?1) where no = value ->> 0

-- keep_answer --
-- The answer of a call.
insert into answers (call, status, headers, body, used_micros, used_tokens, input_tokens, output_tokens)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)

-- drop_answers --
-- ?1 = [call, …].
delete from answers where call in (select value from jsonb_each(?1))

-- add_to_accounts --
-- Merged change of the accounts; ?1 = [[scope, period, span, app, 2 × spent, 2 × reserved, bought, reused,
-- resent, estimated, 2 × doubt], …].
insert into accounts (
    scope, period, span, app, spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent,
    estimated, doubt_micros, doubt_tokens
)
select
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8,
    value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13
from jsonb_each(?1) where true
on conflict (span, period, scope, app) do update set
    spent_micros = spent_micros + excluded.spent_micros, spent_tokens = spent_tokens + excluded.spent_tokens,
    reserved_micros = reserved_micros + excluded.reserved_micros,
    reserved_tokens = reserved_tokens + excluded.reserved_tokens,
    bought = bought + excluded.bought, reused = reused + excluded.reused,
    resent = resent + excluded.resent, estimated = estimated + excluded.estimated,
    doubt_micros = doubt_micros + excluded.doubt_micros, doubt_tokens = doubt_tokens + excluded.doubt_tokens

-- read_accounts --
-- Accounts; ?1 = [[scope, period, span, app], …]: [scope, period, span, app, 2 × spent, 2 × reserved, bought, reused, resent,
-- estimated, 2 × doubt].
select json_group_array(json_array(
    scope, period, span, app, spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent,
    estimated, doubt_micros, doubt_tokens
)) from jsonb_each(?1) as wanted
cross join accounts on span = value ->> 2 and period = value ->> 1 and scope = value ->> 0 and app = value ->> 3

-- list_accounts --
-- All accounts of some runs and days; ?1 = [span, …].
select
    accounts.scope, accounts.period, accounts.span, accounts.app, accounts.spent_micros, accounts.spent_tokens,
    accounts.reserved_micros, accounts.reserved_tokens, accounts.bought, accounts.reused,
    accounts.resent, accounts.estimated, accounts.doubt_micros, accounts.doubt_tokens
from (select distinct value from jsonb_each(?1)) as wanted cross join accounts on accounts.span = wanted.value
order by accounts.scope, accounts.period, accounts.span, accounts.app

-- read_calls --
-- Every call of a job, in the order of their beginning; the columns of find_calls.
select
    no, job_id, fingerprint, ordinal, state, token, run_id, day, task, provider, model, begun_at, ended_at,
    reserved_micros, reserved_tokens, used_micros, used_tokens, bought, reused, resent, estimated,
    doubts, doubt_micros, doubt_tokens, app
from calls where job_id = ?1 order by begun_at, no

-- read_newest_calls --
-- The last ?1 calls, the newest first: the columns of find_calls, then [key of the job, is it in hand].
select
    calls.no, calls.job_id, calls.fingerprint, calls.ordinal, calls.state, calls.token, calls.run_id, calls.day, calls.task,
    calls.provider, calls.model, calls.begun_at, calls.ended_at, calls.reserved_micros, calls.reserved_tokens,
    calls.used_micros, calls.used_tokens, calls.bought, calls.reused, calls.resent, calls.estimated, calls.doubts,
    calls.doubt_micros, calls.doubt_tokens, calls.app, jobs.key,
    coalesce(calls.ended_at is null and jobs.row_state = 4 and jobs.token = calls.token, false)
from calls left join jobs on jobs.id = calls.job_id order by calls.no desc limit ?1

-- read_call_answer --
-- The answer of a call by its key: [status, headers, body, 2 × used, input, output].
select answers.status, answers.headers, answers.body, answers.used_micros, answers.used_tokens, answers.input_tokens,
    answers.output_tokens
from calls cross join answers on answers.call = calls.no
where calls.job_id = ?1 and calls.fingerprint = ?2 and calls.ordinal = ?3

-- sum_calls_of --
-- Sums over the calls of a job: [bought, reused, in doubt, micros, tokens, resent, estimated, 2 × doubt].
select
    coalesce(sum(bought), 0), coalesce(sum(reused), 0), coalesce(sum(doubts + is_doubtful), 0),
    coalesce(sum(used_micros), 0), coalesce(sum(used_tokens), 0), coalesce(sum(resent), 0), coalesce(sum(estimated), 0),
    coalesce(sum(doubt_micros + is_doubtful * reserved_micros), 0),
    coalesce(sum(doubt_tokens + is_doubtful * reserved_tokens), 0)
from (
    select *, ended_at is null and not exists (
        select 1 from jobs where jobs.id = calls.job_id and jobs.row_state = 4 and jobs.token = calls.token
    ) as is_doubtful from calls where job_id = ?1
)

-- read_call_counts --
-- Sums over all calls that are kept, from the counters.
select state, n from counters where scope = 'calls' and name = ''

-- sum_in_hand --
-- Calls begun by the present leases of their jobs and not ended: [run, day, task, provider, model, app, count, 2 × reserved].
select
    calls.run_id, calls.day, calls.task, calls.provider, calls.model, calls.app, count(*), sum(calls.reserved_micros),
    sum(calls.reserved_tokens)
from jobs cross join calls on calls.job_id = jobs.id
where jobs.row_state = 4 and calls.token = jobs.token and calls.ended_at is null
group by calls.run_id, calls.day, calls.task, calls.provider, calls.model, calls.app

-- doubtful_calls --
-- The unended calls of an app that no present lease has in hand; the columns of find_calls.
select json_group_array(json_array(
    no, job_id, fingerprint, ordinal, state, token, run_id, day, task, provider, model, begun_at, ended_at,
    reserved_micros, reserved_tokens, used_micros, used_tokens, bought, reused, resent, estimated,
    doubts, doubt_micros, doubt_tokens, app
)) from calls where app = ?1 and ended_at is null and not exists (
    select 1 from jobs where jobs.id = calls.job_id and jobs.row_state = 4 and jobs.token = calls.token
)

-- doubt_calls --
-- The reserves of calls become doubts; ?1 = [[call, 2 × doubt], …].
update calls set
    reserved_micros = 0, reserved_tokens = 0, doubt_micros = value ->> 1, doubt_tokens = value ->> 2
from jsonb_each(?1) where no = value ->> 0

-- reset_accounts --
-- Accounts begin at zero, but for what is reserved; ?1 = [[scope, period, span, app], …].
update accounts set
    spent_micros = 0, spent_tokens = 0, bought = 0, reused = 0, resent = 0, estimated = 0, doubt_micros = 0,
    doubt_tokens = 0
from jsonb_each(?1) where span = value ->> 2 and period = value ->> 1 and scope = value ->> 0 and app = value ->> 3

-- calls_of_jobs --
-- The first ?2 calls of jobs; ?1 = [job, …].
select json_group_array(no) from (
    select no from jsonb_each(?1) as wanted cross join calls on calls.job_id = wanted.value limit ?2
)

-- unended_calls --
-- Those of calls that have not ended; ?1 = [call, …]; the columns of find_calls.
select json_group_array(json_array(
    no, job_id, fingerprint, ordinal, state, token, run_id, day, task, provider, model, begun_at, ended_at,
    reserved_micros, reserved_tokens, used_micros, used_tokens, bought, reused, resent, estimated,
    doubts, doubt_micros, doubt_tokens, app
)) from jsonb_each(?1) as wanted cross join calls on no = value and ended_at is null

-- sum_calls --
-- ?1 = [call, …]: [bought, reused, micros, tokens, resent, estimated, doubts, 2 × doubt].
select coalesce(sum(bought), 0), coalesce(sum(reused), 0), coalesce(sum(used_micros), 0), coalesce(sum(used_tokens), 0),
    coalesce(sum(resent), 0), coalesce(sum(estimated), 0), coalesce(sum(doubts), 0), coalesce(sum(doubt_micros), 0),
    coalesce(sum(doubt_tokens), 0)
from calls where no in (select value from jsonb_each(?1))

-- drop_calls --
-- ?1 = [call, …].
delete from calls where no in (select value from jsonb_each(?1))

-- jobs_with_calls --
-- The next ?3 jobs with calls above an id, by skip-scan: [job, has it ended before ?2, or is it not there, and is
-- it of app ?4].
with recursive found (job_id, n) as (
    select min(job_id), 1 from calls where job_id > ?1
    union all
    select (select min(job_id) from calls where calls.job_id > found.job_id), n + 1 from found
    where found.job_id is not null and n < ?3
)
select json_group_array(json_array(job_id, not exists (
    select 1 from jobs where jobs.id = found.job_id and (
        jobs.finished_at is null or jobs.finished_at >= ?2 or jobs.app <> coalesce(?4, jobs.app)
    )
))) from found where job_id is not null

-- save_run --
-- A run is told of; the one that was told of for the first time last has begun last.
insert into runs (run_id, turn) values (?1, (select coalesce(max(turn), 0) + 1 from runs))
on conflict (run_id) do nothing

-- save_run_part --
-- What a worker says of its part of a run: the last word counts.
insert into run_parts (run_id, worker, saved_at, document) values (?1, ?2, ?3, ?4)
on conflict (run_id, worker) do update set saved_at = excluded.saved_at, document = excluded.document

-- old_runs --
-- Runs but for the last ?1 and those that go on.
select json_group_array(run_id) from (select run_id from runs order by turn desc limit -1 offset ?1)
where run_id not in (select run_id from workers where ended_at is null)

-- forget_run_parts --
-- ?1 = [run, …].
delete from run_parts where run_id in (select value from jsonb_each(?1))

-- forget_run_accounts --
-- What runs spent, but for accounts of which something is still reserved; ?1 = [run, …].
delete from accounts where span in (select value from jsonb_each(?1)) and period = 'run'
    and reserved_micros = 0 and reserved_tokens = 0

-- has_old_days --
-- True if there are accounts of days before ?1.
select exists (select 1 from accounts where span < ?1 and period = 'day')

-- forget_day_accounts --
-- What was spent on days before ?1, but for accounts of which something is still reserved.
delete from accounts where span < ?1 and period = 'day' and reserved_micros = 0 and reserved_tokens = 0

-- forget_runs --
-- ?1 = [run, …].
delete from runs where run_id in (select value from jsonb_each(?1))

-- list_runs --
-- The last ?1 runs, the newest first.
select run_id from runs order by turn desc limit ?1

-- read_run_parts --
-- What the workers of a run say: [worker, saved_at, document].
select worker, saved_at, document from run_parts where run_id = ?1 order by worker

-- find_units --
-- Jobs of app ?2 by key, as units if they are some; ?1 = [key, …]: [key, job, lane, row_state, due_at, partition, payload, app, timing,
-- last_due_at, retired_at, available_at].
select json_group_array(json_array(
    jobs.key, jobs.id, jobs.lane_id, jobs.row_state, jobs.due_at, jobs.partition, jobs.payload, units.app, units.timing,
    units.last_due_at, units.retired_at, jobs.available_at
))
from jsonb_each(?1) as wanted cross join jobs on jobs.key = wanted.value and jobs.app = ?2 left join units on units.job_id = jobs.id

-- insert_units --
-- Jobs are units from now on; ?1 = [[job, key, timing], …], ?2 = app.
insert into units (job_id, key, app, timing)
select value ->> 0, value ->> 1, ?2, value ->> 2 from jsonb_each(?1)

-- change_units --
-- Known units are armed as they are planned now; ?1 = [[job, timing], …], ?2 = app.
update units set app = ?2, timing = armed.value ->> 1, retired_at = null
from jsonb_each(?1) as armed where units.job_id = armed.value ->> 0

-- replan_jobs --
-- What a unit's job is planned as, when it does not run; ?1 = [[job, lane, partition, payload], …].
update jobs set lane_id = armed.value ->> 1, partition = armed.value ->> 2, payload = armed.value ->> 3
from jsonb_each(?1) as armed where jobs.id = armed.value ->> 0

-- start_units --
-- Units start afresh; ?1 = [[job, row_state, due_at, available_at], …], ?2 = now.
update jobs set
    row_state = armed.value ->> 1, due_at = armed.value ->> 2, available_at = armed.value ->> 3, attempts = 0, crashes = 0,
    losses = 0, deferred_since = null, error = null, finished_at = null, updated_at = ?2
from jsonb_each(?1) as armed where jobs.id = armed.value ->> 0

-- hasten_units --
-- Units that wait are tried earlier; ?1 = [[job, available_at], …], ?2 = now.
update jobs set available_at = sooner.value ->> 1, updated_at = ?2
from jsonb_each(?1) as sooner where jobs.id = sooner.value ->> 0 and row_state = 1

-- cancel_units --
-- Units that do not run end, so that nobody leases them; ?1 = [job, …], ?2 = now.
update jobs set row_state = 8, finished_at = ?2, updated_at = ?2
where id in (select value from jsonb_each(?1)) and row_state < 4

-- cancel_failed --
-- Units that had failed for good are cancelled, so that no retry puts them back; ?1 = [job, …], ?2 = now.
update jobs set row_state = 8, finished_at = ?2, updated_at = ?2
where id in (select value from jsonb_each(?1)) and row_state = 7

-- retire_units --
-- ?1 = [job, …], ?2 = now.
update units set retired_at = ?2 where job_id in (select value from jsonb_each(?1))

-- add_pause --
-- A unit, or all of a schedule, of app ?1 is paused, unless it is.
insert into pauses (app, name, paused_at) values (?1, ?2, ?3) on conflict do nothing

-- drop_pause --
-- The pause of a name of app ?1 ends.
delete from pauses where app = ?1 and name = ?2

-- find_pauses --
-- Those of the names ?1 = [name, …] of app ?2 that are paused.
select json_group_array(pauses.name) from jsonb_each(?1) as wanted
cross join pauses on pauses.app = ?2 and pauses.name = wanted.value

-- list_pauses --
-- What is paused of an app, or of all, by name; at most ?2.
select distinct name from pauses where ?1 is null or app = ?1 order by name limit ?2

-- copy_pauses --
-- What is paused of app ?1 is paused of app ?2.
insert into pauses (app, name, paused_at) select ?2, name, paused_at from pauses where app = ?1 on conflict do nothing

-- drop_pauses --
-- Nothing of an app is paused.
delete from pauses where app = ?1

-- lay_aside --
-- Units that were leased just now wait, since they are paused; ?1 = [job, …], ?2 = now.
update jobs set row_state = 0, worker = null, solo = 0, cell = 0, updated_at = ?2
where id in (select value from jsonb_each(?1)) and row_state = 4

-- resume_units --
-- The unit, or all units of the schedule, ?1 of app ?2 that wait are due again; ?3 = now. Answers their lanes.
update jobs set row_state = 1, updated_at = ?3 where row_state = 0 and id in (
    select unit.id from units cross join jobs as unit on unit.id = units.job_id
    cross join lanes on lanes.id = unit.lane_id
    where units.key >= ?1 and units.key < ?1 || ';' and unit.app = ?2 and ?1 in (units.key, lanes.task)
) returning lane_id

-- forget_cursors --
-- ?1 = [name, …].
delete from cursors where name in (select value from jsonb_each(?1))

-- count_ticks --
-- How the ticks of units went; ?1 = [[job, ticks, missed, failed, last_tick_at, last_due_at], …].
update units set
    ticks = ticks + (went.value ->> 1), missed = missed + (went.value ->> 2), failed = failed + (went.value ->> 3),
    last_tick_at = coalesce(went.value ->> 4, last_tick_at), last_due_at = coalesce(went.value ->> 5, last_due_at)
from jsonb_each(?1) as went where units.job_id = went.value ->> 0

-- bound_history --
-- Keeps the newest ?2 rows of the history of those jobs that are units; ?1 = [job, …].
delete from attempts where (job_id, token) in (
    select old.job_id, old.token from jsonb_each(?1) as grown cross join units on units.job_id = grown.value
    cross join attempts as old on old.job_id = units.job_id and old.token <= (
        select token from attempts where job_id = units.job_id order by token desc limit 1 offset ?2
    )
)

-- leased_units --
-- Units that run now.
select json_group_array(jobs.id) from jobs cross join units on units.job_id = jobs.id where jobs.row_state = 4

-- purge_units --
-- Units whose jobs go; ?1 = [[job, …], …].
delete from units where job_id in (select value ->> 0 from jsonb_each(?1))

-- list_units --
-- Units of an app above a key, at most ?3.
select * from unit_rows where app = ?1 and key > ?2 order by key limit ?3

-- list_all_units --
-- Units above a key, about ?2: all that share the last key.
select * from unit_rows where key > ?1 and key <= (
    select max(key) from (select key from units where key > ?1 order by key limit ?2)
) order by key, app

-- read_unit --
-- Units by key, of an app or of all.
select * from unit_rows where key = ?1 and (?2 is null or app = (
    select units.app from jobs cross join units on units.job_id = jobs.id where jobs.key = ?1 and jobs.app = ?2
)) order by app

-- read_cursors --
-- Durable values, by name; ?1 = [name, …].
select json_group_array(json_array(cursors.name, cursors.value))
from jsonb_each(?1) as wanted cross join cursors on cursors.name = wanted.value

-- keep_preflights --
-- What checks came to, the last word on each; ?1 = [[unit, name, partition, value, error, checked_at], …], ?2 = app.
insert into preflights (unit, app, name, partition, value, error, checked_at)
select value ->> 0, ?2, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 from jsonb_each(?1) where true
on conflict (app, unit) do update set
    name = excluded.name, partition = excluded.partition, value = excluded.value,
    error = excluded.error, checked_at = excluded.checked_at

-- list_preflights --
-- What checks of an app came to, above a unit, at most ?3: [unit, name, partition, value, error, checked_at].
select unit, name, partition, value, error, checked_at from preflights where app = ?1 and unit > ?2 order by unit limit ?3

-- read_preflights --
-- What some checks of an app came to; ?2 = [unit, …]: [unit, name, partition, value, error, checked_at].
select kept.unit, kept.name, kept.partition, kept.value, kept.error, kept.checked_at
from jsonb_each(?2) as wanted cross join preflights as kept on kept.app = ?1 and kept.unit = wanted.value

-- list_failed_preflights --
-- Checks of all apps that did not pass, at most ?1: [unit, name, partition, value, error, checked_at].
select unit, name, partition, null, error, checked_at from preflights where error is not null order by unit limit ?1

-- forget_preflights --
-- What was checked before a time.
delete from preflights where app = ?1 and checked_at < ?2

-- read_task_counts --
-- Counters by task, of an app or of all.
select counters.name, counters.state, sum(counters.n) from apps
cross join counters on counters.scope = iif(apps.no = 1, 'task', 'task:' || apps.no)
where ?1 is null or apps.no = ?1 group by counters.name, counters.state having sum(counters.n) <> 0

-- read_group_names --
-- The first ?2 groups with jobs in a state.
select name from counters where scope = 'group' and state = ?1 and n > 0 order by name limit ?2

-- read_group_counts --
-- Counters of groups; ?1 = [group, …], ?2 = [state, …].
select counters.name, counters.state, counters.n
from jsonb_each(?1) as wanted cross join jsonb_each(?2) as states
cross join counters on scope = 'group' and state = states.value and name = wanted.value and n <> 0

-- count_groups --
-- How many groups have or had jobs; no more than 100,001 are counted.
select count(*) from (select distinct name from counters where scope = 'group' limit 100001)

-- oldest_ready --
-- When the longest waiting ready job fell due: the first of each lane and priority, by skip-scan; no more than ?1
-- of them are asked.
with recursive firsts (id, lane_id, priority, available_at, n) as (
    select id, lane_id, priority, available_at, 1 from jobs where id = (
        select id from jobs where row_state = 2 and lane_id > 0
        order by lane_id, priority desc, available_at, id limit 1
    )
    union all
    select jobs.id, jobs.lane_id, jobs.priority, jobs.available_at, firsts.n + 1
    from firsts join jobs on jobs.id = coalesce((
        select id from jobs where row_state = 2 and lane_id = firsts.lane_id and priority < firsts.priority
        order by priority desc, available_at, id limit 1
    ), (
        select id from jobs where row_state = 2 and lane_id > firsts.lane_id
        order by lane_id, priority desc, available_at, id limit 1
    )) where firsts.n < ?1
)
select min(available_at) from firsts

-- count_workers --
-- Workers that are alive.
select count(*) from workers where ended_at is null and boot_id = ?1 and expires_at > ?2

-- tasks_elsewhere --
-- What other live workers of app ?4 know, or of all.
select tasks from workers where ended_at is null and boot_id = ?1 and expires_at > ?2 and id <> ?3 and (?4 is null or app = ?4)

-- read_run_counts --
-- How many leases ended for good in a run, by end; ?2 = [state, …].
select counters.state, counters.n from jsonb_each(?2) as states
cross join counters on scope = 'run' and state = states.value and name = ?1

-- anything_to_lease --
-- True if a lease call would find something; ?1 = now, ?2, ?3 = boot id and boot time, ?4 = app.
select
    exists (select 1 from lanes where head_id is not null and parked_on is null and app = ?4)
    or exists (select 1 from jobs where row_state = 1 and available_at <= ?1)
    or exists (select 1 from jobs where row_state = 3 and app = ?4)
    or exists (select 1 from open_keys) or exists (select 1 from settling)
    or exists (select 1 from reviving) or exists (select 1 from revivable)
    or exists (select 1 from meta where name = 'retries' and value <> '[]')
    or exists (select 1 from workers where ended_at is null and (boot_id <> ?2 or expires_at <= ?3))

-- read_job --
-- Jobs for people, by key, of an app or of all.
select * from job_rows where key = ?1 and (?2 is null or app_no = ?2) order by id

-- list_jobs --
-- Jobs for people with ids above ?1 up to ?2; ?3, ?4 = bounds of row_state, ?5 = task, ?6 = most, ?7 = app.
select * from job_rows
where id > ?1 and id <= ?2 and +row_state between ?3 and ?4 and (?5 is null or task = ?5) and (?7 is null or app_no = ?7)
order by id limit ?6

-- window_end --
-- The id of the last of the next ?2 jobs above an id.
select max(id) from (select id from jobs where id > ?1 order by id limit ?2)

-- end_window --
-- The end of the last of the next ?3 jobs that ended after the mark ?1, ?2: [finished_at, id].
select finished_at, id from (
    select finished_at, id from jobs where row_state >= 5 and (finished_at, id) > (?1, ?2) order by finished_at, id limit ?3
) order by finished_at desc, id desc limit 1

-- list_results --
-- Done jobs of task ?5 that ended after the mark ?1, ?2 up to ?3, ?4, of app ?6, at most ?7, and as many as have ?8 bytes of
-- results and one more: [id, finished_at, key, result].
select id, finished_at, key, result from (
    select id, finished_at, key, result, sum(coalesce(octet_length(result), 0)) over (
        order by finished_at, id rows between unbounded preceding and 1 preceding
    ) as bytes_before
    from jobs where row_state >= 5 and (finished_at, id) > (?1, ?2) and (finished_at, id) <= (?3, ?4) and +row_state = 5
        and (select task from lanes where lanes.id = lane_id) = ?5 and (?6 is null or app = ?6)
) where coalesce(bytes_before, 0) <= ?8 order by finished_at, id limit ?7

-- list_upstream --
-- What a job was enqueued after and what it returned, in that order: [key, task, row_state, result].
select parent.key, lanes.task, parent.row_state, parent.result
from edges cross join jobs as parent on parent.id = edges.parent_id cross join lanes on lanes.id = parent.lane_id
where edges.child_id = ?1 order by edges.ordinal, edges.parent_id

-- list_unhappy --
-- Jobs for people above an id that ended otherwise than done; ?2 = row_state, ?3 = task, ?4 = most, ?5 = app.
select job_rows.* from (
    select id from jobs where row_state >= 6 and row_state = ?2 and id > ?1
        and (?3 is null or (select task from lanes where lanes.id = lane_id) = ?3) and (?5 is null or app = ?5)
    order by id limit ?4
) as wanted cross join job_rows on job_rows.id = wanted.id

-- next_waiting --
-- The first waiting job above an id, from the edges that are open.
select min(+child_id) from edges where open = 1 and +child_id > ?1

-- next_queued --
-- The first queued job above an id, from the indexes of what is queued.
select min(id) from (
    select min(+id) as id from jobs where row_state = 2 and +id > ?1
    union all
    select min(+id) from jobs where row_state = 1 and +id > ?1
    union all
    select min(id) from jobs where row_state = 3 and id > ?1
)

-- next_in_progress --
-- The first job above an id that is in progress, from the index of leases.
select min(+id) from jobs where row_state = 4 and +id > ?1

-- keys_between --
-- The first keys from ?1 to before ?2.
select distinct key from jobs where key >= ?1 and key < ?2 order by key limit ?3

-- read_attempts --
-- The history of a job, by id.
select attempts.token, coalesce(workers.id, 'worker ' || attempts.worker), attempts.outcome, attempts.started_at,
    attempts.ended_at, attempts.error
from jobs join attempts on attempts.job_id = jobs.id left join workers on workers.no = attempts.worker
where jobs.id = ?1 order by attempts.token

-- read_dependencies --
-- What a job waits for or waited for, open ones first, at most ?2: [key, kind, row_state, open].
select jobs.key, edges.kind, jobs.row_state, edges.open
from edges cross join jobs on jobs.id = edges.parent_id
where edges.child_id = ?1 order by edges.open desc, edges.parent_id limit ?2

-- read_skipped_by --
-- The job because of which a job was skipped.
select blamed.key from jobs cross join jobs as blamed on blamed.id = jobs.skipped_by where jobs.id = ?1

-- read_detached --
-- Workers that may still run a body of a job under a lease that is over.
select workers.id from detached cross join workers on workers.no = detached.worker where detached.job_id = ?1

-- read_holders --
-- Leases that hold a limit key, at most ?2: [job, worker, leased at, is detached].
select jobs.key, workers.id, iif(detached.job_id is null, jobs.updated_at, null), detached.job_id is not null
from held cross join jobs on jobs.id = held.job_id
left join detached on detached.job_id = held.job_id and detached.token = held.token
left join workers on workers.no = coalesce(detached.worker, jobs.worker)
where held.limit_key = ?1 order by held.job_id, held.token limit ?2

-- check_task_counts --
-- Counters that are not a count: [task, state, counted, kept].
select name, state, sum(counted), sum(kept) from (
    select iif(lanes.app = 1, 'task', 'task:' || lanes.app) as scope, lanes.task as name, case when row_state = 0 then 'waiting' when row_state < 4 then 'queued'
        when row_state = 4 then 'in_progress' when row_state = 5 then 'done' when row_state = 6 then 'skipped'
        when row_state = 7 then 'error' else 'cancelled' end as state, count(*) as counted, 0 as kept
    from jobs join lanes on lanes.id = jobs.lane_id group by 1, 2, 3
    union all
    select scope, name, state, 0, n from counters where scope = 'task' or scope glob 'task:*'
) group by scope, name, state having sum(counted) <> sum(kept)

-- check_group_counts --
-- Counters that are not a count: [group, state, counted, kept].
select name, state, sum(counted), sum(kept) from (
    select lanes.grp as name, case when row_state = 0 then 'waiting' when row_state < 4 then 'queued'
        when row_state = 4 then 'in_progress' when row_state = 5 then 'done' when row_state = 6 then 'skipped'
        when row_state = 7 then 'error' else 'cancelled' end as state, count(*) as counted, 0 as kept
    from jobs join lanes on lanes.id = jobs.lane_id group by 1, 2
    union all
    select name, state, 0, n from counters where scope = 'group'
) group by name, state having sum(counted) <> sum(kept)

-- check_heads --
-- Lanes whose head is not their first ready job.
select spec from lanes where head_id is not (
    select id from jobs where row_state = 2 and lane_id = lanes.id order by priority desc, available_at, id limit 1
)

-- check_held --
-- Holders that are not leases of limited jobs, and leases that hold nothing; leases that are detached without a worker.
select 'holder of ' || held.limit_key || ' is not a lease: ' || held.job_id from held
where not exists (
    select 1 from jobs where jobs.id = held.job_id and jobs.token = held.token and jobs.row_state = 4
) and not exists (select 1 from detached where detached.job_id = held.job_id and detached.token = held.token)
union all
select 'a lease is detached though its worker is gone: ' || detached.job_id from detached
where not exists (select 1 from workers where workers.no = detached.worker and workers.ended_at is null)
union all
select 'lease of a limited job holds nothing: ' || jobs.key from jobs join lanes on lanes.id = jobs.lane_id
where jobs.row_state = 4 and lanes.limit_keys <> '[]'
    and not exists (select 1 from held where held.job_id = jobs.id and held.token = jobs.token)

-- check_pending --
-- Jobs whose open dependencies are not what they say.
select key from jobs where row_state < 5 and pending <> (
    select count(*) from edges where child_id = jobs.id and open = 1
)

-- check_waiting --
-- Jobs that wait for nobody, or do not wait although they must.
select key from jobs where (row_state = 0) <> (pending > 0) and not exists (select 1 from units where units.job_id = jobs.id)

-- check_workers --
-- Jobs whose worker does not fit their state.
select key from jobs where (row_state = 4) <> (worker is not null)

-- check_parked --
-- Lanes that nobody will wake: parked on a key that nobody holds and that is not noted as open.
select spec from lanes where parked_on is not null
    and not exists (select 1 from held where held.limit_key = lanes.parked_on)
    and not exists (select 1 from open_keys where open_keys.limit_key = lanes.parked_on)
    and parked_seq <> 0

-- check_calls --
-- Calls that contradict themselves.
select no || ' of job ' || job_id || ' (' || state || ')' from calls
where (state in ('open', 'held')) <> (ended_at is null)
    or (state = 'answered') <> exists (select 1 from answers where answers.call = calls.no)
    or (ended_at is not null and (reserved_micros <> 0 or reserved_tokens <> 0))
union all
select call || ', which is forgotten,' from answers where not exists (select 1 from calls where calls.no = answers.call)

-- check_reserves --
-- Accounts whose reserve is not that of their calls: [app, scope, period, span, counted, kept].
with unended as materialized (
    select * from calls where ended_at is null
), spans as (
    select no, 'run' as period, run_id as span from unended
    union all
    select no, 'day', day from unended
    union all
    select no, 'total', 'total' from unended
), scopes as (
    select no, 'all' as scope from unended
    union all
    select no, 'provider:' || provider from unended
    union all
    select no, 'model:' || provider || '/' || model from unended
    union all
    select no, 'task:' || task from unended
)
select app, scope, period, span, sum(micros) || ' and ' || sum(tokens), sum(kept_micros) || ' and ' || sum(kept_tokens)
from (
    select unended.app, scopes.scope, spans.period, spans.span, unended.reserved_micros as micros, unended.reserved_tokens as tokens,
        0 as kept_micros, 0 as kept_tokens
    from unended join spans on spans.no = unended.no join scopes on scopes.no = unended.no
    union all
    select app, scope, period, span, 0, 0, reserved_micros, reserved_tokens from accounts
) as sums group by app, scope, period, span having sum(micros) <> sum(kept_micros) or sum(tokens) <> sum(kept_tokens)

-- check_call_counts --
-- Figures of all calls that are not a count: [figure, counted, kept].
select state, sum(counted), sum(kept) from (
    select 'bought' as state, coalesce(sum(bought), 0) as counted, 0 as kept from calls
    union all
    select 'reused', coalesce(sum(reused), 0), 0 from calls
    union all
    select 'micros', coalesce(sum(used_micros), 0), 0 from calls
    union all
    select 'tokens', coalesce(sum(used_tokens), 0), 0 from calls
    union all
    select 'resent', coalesce(sum(resent), 0), 0 from calls
    union all
    select 'estimated', coalesce(sum(estimated), 0), 0 from calls
    union all
    select 'doubts', coalesce(sum(doubts), 0), 0 from calls
    union all
    select 'doubt_micros', coalesce(sum(doubt_micros), 0), 0 from calls
    union all
    select 'doubt_tokens', coalesce(sum(doubt_tokens), 0), 0 from calls
    union all
    select 'unended', count(*), 0 from calls where ended_at is null
    union all
    select 'open_micros', coalesce(sum(reserved_micros), 0), 0 from calls where ended_at is null
    union all
    select 'open_tokens', coalesce(sum(reserved_tokens), 0), 0 from calls where ended_at is null
    union all
    select state, 0, n from counters where scope = 'calls'
) as counts group by state having sum(counted) <> sum(kept)

-- check_units --
-- Units that contradict themselves or their jobs.
select 'Unit ' || units.key || ' has no job' from units
where not exists (select 1 from jobs where jobs.id = units.job_id and jobs.key = units.key)
union all
select 'Unit ' || key || ' waits, and is not paused' from unit_rows where row_state = 0 and paused_at is null
union all
select 'Unit ' || units.key || ' was retired, and may tick' from units join jobs on jobs.id = units.job_id
where units.retired_at is not null and (jobs.row_state < 5 or jobs.row_state = 7)
union all
select 'Unit ' || units.key || ' is due at a time that ended well before' from units join jobs on jobs.id = units.job_id
where jobs.row_state < 5 and jobs.due_at <= units.last_due_at
union all
select 'Unit ' || key || ' has other counts than times' from units
where (ticks > 0) <> (last_tick_at is not null) or (last_tick_at is null) <> (last_due_at is null)
union all
select 'Unit ' || units.key || ' has too much history' from units
where (select count(*) from attempts where attempts.job_id = units.job_id) > 20

-- check_datasets --
-- Slices, commits, plans and locks that contradict each other.
select 'Level ' || level || ' of plan ' || plan_id || ' is committed, but there is no such plan' from commits
where not exists (select 1 from plans where plans.id = commits.plan_id)
union all
select 'Slice ' || dataset || '@' || at || ' has two rows of one commit' from (
    select dataset, at, coalesce(manifests.seq, commits.seq) as number
    from manifests left join commits on commits.plan_id = manifests.plan_id and commits.level = manifests.level
) where number is not null group by dataset, at, number having count(*) > 1
union all
select 'Slice ' || dataset || '@' || at || ' has basis ' || basis || ' and number ' || number from (
    select dataset, at, basis, coalesce(manifests.seq, commits.seq) as number
    from manifests left join commits on commits.plan_id = manifests.plan_id and commits.level = manifests.level
) where number <= basis or number > (select cast(value as integer) from meta where name = 'commit_seq')
union all
select 'Plan ' || id || ' is ' || state || ', but its run holds no lock' from plans
where state in ('draft', 'running') and not exists (select 1 from locks where locks.run_id = plans.run_id)
union all
select 'Plan ' || id || ' is ' || state || ' and ended at ' || coalesce(ended_at, 'no time') from plans
where (state in ('ended', 'abandoned')) <> (ended_at is not null)
union all
select 'Plan ' || id || ' is running, but never began' from plans where state = 'running' and begun_at is null

-- check_ready --
-- Indexes in which a lease would not find what is there: rows that are ready, due or suspect, and lanes with a head.
select case row_state when 1 then 'jobs_due' when 2 then 'jobs_ready' else 'jobs_suspect' end from jobs not indexed
where row_state in (1, 2, 3) and not case row_state
    when 1 then exists (
        select 1 from jobs as found indexed by jobs_due
        where found.row_state = 1 and found.available_at = jobs.available_at and found.id = jobs.id
    )
    when 2 then exists (
        select 1 from jobs as found indexed by jobs_ready where found.row_state = 2 and found.lane_id = jobs.lane_id
            and found.priority = jobs.priority and found.available_at = jobs.available_at and found.id = jobs.id
    )
    else exists (select 1 from jobs as found indexed by jobs_suspect where found.row_state = 3 and found.id = jobs.id)
end
union
select 'lanes_ready' from lanes not indexed where head_id is not null and parked_on is null and not exists (
    select 1 from lanes as found indexed by lanes_ready where found.head_id is not null and found.parked_on is null
        and found.app = lanes.app and found.grp = lanes.grp and found.head_priority is lanes.head_priority
        and found.head_at is lanes.head_at and found.head_id = lanes.head_id and found.id = lanes.id
)

-- check_file --
-- The quick integrity check of the file.
pragma quick_check(10)

-- check_file_fully --
-- The full integrity check: the file, and every index against its table.
pragma integrity_check(10)

-- check_apps --
-- Jobs and lanes that belong to different apps, or to none.
select jobs.key from jobs join lanes on lanes.id = jobs.lane_id
where jobs.app <> lanes.app or not exists (select 1 from apps where apps.no = jobs.app)

-- list_apps --
-- Apps, by name: [number, name, last seen, workers that are alive]; ?1, ?2 = boot id and boot time.
select no, name, max(coalesce(seen_at, 0), coalesce((select max(started_at) from workers where workers.app = apps.no), 0)), (
    select count(*) from workers
    where workers.app = apps.no and ended_at is null and boot_id = ?1 and expires_at > ?2
)
from apps order by name

-- read_app --
-- The number of an app.
select no from apps where name = ?1

-- add_app --
-- An app signs on for the first time.
insert into apps (no, name) select 1 + max(no), ?1 from apps where true on conflict (name) do nothing

-- name_app --
-- Gives an app another name.
update apps set name = ?2 where no = ?1

-- see_app --
-- An app has signed on.
update apps set seen_at = ?2 where no = ?1

-- rename_units --
-- Units of an app under its new name.
update units set app = ?2 where app = ?1

-- rename_preflights --
-- What was checked for an app, under its new name.
update or replace preflights set app = ?2 where app = ?1

-- rename_plans --
-- Plans of an app under its new name.
update plans set app = ?2 where app = ?1

-- is_app_named --
-- True if the store names another app than ?1 that something belongs to.
select exists (select 1 from apps where name not in ('', ?1)) or exists (select 1 from units where app <> ?1)
    or exists (select 1 from plans where app <> ?1)

-- movable_jobs --
-- The next jobs of app ?1 above an id that belong to another app, by unit or plan, or are of its tasks ?4, or of any if that is
-- null: [id, key, lane, row_state, task, group, limit_keys, kind]. ?2 = above, ?3 = the last to look at, ?5 = the name of the other.
select jobs.id, jobs.key, jobs.lane_id, jobs.row_state, lanes.task, lanes.grp, lanes.limit_keys, lanes.kind
from jobs join lanes on lanes.id = jobs.lane_id
where jobs.id > ?2 and jobs.id <= ?3 and jobs.app = ?1 and (
    ?4 is null
    or lanes.kind = 'tick' and exists (select 1 from units where units.job_id = jobs.id and units.app = ?5)
    or lanes.kind in ('slice', 'step') and exists (select 1 from plans where plans.id = jobs.plan_id and plans.app = ?5)
    or lanes.kind not in ('tick', 'slice', 'step') and lanes.task in (select value from jsonb_each(?4))
) order by jobs.id

-- is_named_in --
-- True if units or plans of the app of name ?2 have jobs of app ?1.
select exists (select 1 from units join jobs on jobs.id = units.job_id where units.app = ?2 and jobs.app = ?1)
    or exists (select 1 from plans join jobs on jobs.plan_id = plans.id where plans.app = ?2 and jobs.app = ?1)

-- taken_keys --
-- Of these keys, those that app ?2 has; ?1 = [key, …].
select json_group_array(jobs.key)
from jsonb_each(?1) as wanted cross join jobs on jobs.key = wanted.value and jobs.app = ?2

-- move_jobs --
-- Jobs go to another app; ?1 = [[job, lane], …], ?2 = app.
update jobs set app = ?2, lane_id = moved.value ->> 1
from jsonb_each(?1) as moved where jobs.id = moved.value ->> 0

-- common_key --
-- The first key that two apps both have.
select jobs.key from jobs cross join jobs as other on other.key = jobs.key and other.app = ?2 where jobs.app = ?1 limit 1

-- list_kept_ends --
-- What the last plans of schedules of datasets have left: [name, value].
select name, value from cursors where substr(value, 1, 19) = '{"type":"kept_end",' order by name

-- cursors_and_datasets --
-- The names of all cursors, and those of all datasets with slices: [name, is it a dataset].
select name, 0 from cursors union all select distinct dataset, 1 from manifests

-- move_cursor --
-- A cursor goes to another app, unless it has one.
update or ignore cursors set name = ?2 where name = ?1

-- move_slices --
-- Slices of a dataset go to another app, at most ?3.
update manifests set dataset = ?2 where id in (select id from manifests where dataset = ?1 limit ?3)

-- app_counts --
-- Counters by app: [app, task, state, jobs].
select apps.no, counters.name, counters.state, counters.n from apps
cross join counters on counters.scope = iif(apps.no = 1, 'task', 'task:' || apps.no) where counters.n <> 0

-- rename_calls --
-- Calls of an app under its new name.
update calls set app = ?2 where app = ?1

-- rename_accounts --
-- What an app has spent counts under its new name, beside what was spent there.
insert into accounts (
    scope, period, span, app, spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent,
    estimated, doubt_micros, doubt_tokens
)
select
    scope, period, span, ?2, spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent,
    estimated, doubt_micros, doubt_tokens
from accounts where app = ?1
on conflict (span, period, scope, app) do update set
    spent_micros = accounts.spent_micros + excluded.spent_micros,
    spent_tokens = accounts.spent_tokens + excluded.spent_tokens,
    reserved_micros = accounts.reserved_micros + excluded.reserved_micros,
    reserved_tokens = accounts.reserved_tokens + excluded.reserved_tokens,
    bought = accounts.bought + excluded.bought,
    reused = accounts.reused + excluded.reused,
    resent = accounts.resent + excluded.resent,
    estimated = accounts.estimated + excluded.estimated,
    doubt_micros = accounts.doubt_micros + excluded.doubt_micros,
    doubt_tokens = accounts.doubt_tokens + excluded.doubt_tokens

-- forget_accounts --
-- The accounts of an app that has another name now.
delete from accounts where app = ?1
