-- SPDX-License-Identifier: Apache-2.0
-- Every statement of the PostgreSQL store, by name; names and answers are those of stores/sqlite/queries.sql.
-- What differs from there everywhere: many transactions run side by side (read committed), so a statement that
-- decides by what it reads locks it first, and a question whose answer must not be older than a lock is a statement
-- of its own. A job lies in `hot` until it ends and in `ended` afterwards. Batches come in as JSON, or as arrays where
-- they are hot, and go out as rows. `row_state + 0` keeps the planner from an index of a state where ids are given.

-- begin_write --
-- Opens a write transaction; `set_up` goes with it, in the same round trip.
begin isolation level read committed

-- set_up --
-- What is set for a write transaction, and what it must know: [now, back end, its number, version of the schema, life,
-- number of the schema]. No setting outlives it: a pooler may give the next transaction another connection. Every
-- statement goes by indexes, row by row, whatever the planner believes of tables that were empty a moment ago; so one
-- plan does for all parameters.
select
    (extract(epoch from now()) * 1000000)::bigint, pg_backend_pid(), pg_current_xact_id()::text,
    (select max(version) from penstock.schema_versions), (select value from penstock.meta where name = 'cluster'),
    to_regnamespace('penstock')::oid::bigint,
    set_config('statement_timeout', '{statement_ms}', true), set_config('lock_timeout', '{lock_ms}', true),
    set_config('idle_in_transaction_session_timeout', '{idle_ms}', true),
    set_config('synchronous_commit', '{synchronous}', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
    set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('array_nulls', 'on', true)

-- commit --
-- Makes the transaction durable.
commit

-- rollback --
-- Undoes the transaction.
rollback

-- server_time --
-- The clock that leases live by.
select (extract(epoch from clock_timestamp()) * 1000000)::bigint

-- place_of_store --
-- Which store this is: the server, its database, and the schema in it.
select
    (select system_identifier from pg_control_system())::text,
    (select oid::bigint from pg_database where datname = current_database()),
    to_regnamespace('penstock')::oid::bigint

-- transaction_fate --
-- The fate of a transaction: committed, aborted, in progress.
select pg_xact_status($1::text::xid8)

-- was_created --
-- A row if the transaction of this time accepted the job.
select exists (select 1 from penstock.jobs where key = $1 and created_at = $2 and app = $3)

-- was_leased --
-- A row if this lease was given; it may be over by now.
select
    exists (select 1 from penstock.hot where job_id = $1 and token = $2 and worker = $3)
    or exists (select 1 from penstock.ended where job_id = $1 and token = $2)

-- was_ended --
-- A row if this lease ended the job.
select exists (select 1 from penstock.ended where job_id = $1 and ended_token = $2 and worker = $3)

-- was_tried --
-- A row if the end of this attempt is known.
select exists (select 1 from penstock.attempts where job_id = $1 and token = $2 and worker = $3)

-- end_backend --
-- A connection of ours that is lost must not keep its transaction open.
select pg_terminate_backend($1::integer)

-- own_path --
-- From now on names mean the server's own functions, whatever others have put into schemas of the search path. Every name
-- here says where it is. Behind a pooler the session is not ours alone, and nothing is set.
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)
where pg_catalog.pg_backend_pid() operator(pg_catalog.=) $1::pg_catalog.int4

-- who_and_where --
-- Identity of the server and of its present life: role, read-only, version, database, back end.
select
    (select system_identifier from pg_control_system())::text, pg_is_in_recovery(),
    case when pg_is_in_recovery() then null else substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end,
    current_setting('server_version_num')::integer, current_database(), current_user, pg_backend_pid(),
    current_setting('server_encoding'), coalesce(to_regnamespace('penstock')::oid::bigint, 0),
    concat(
        extract(epoch from pg_postmaster_start_time()), ' ', (select extract(epoch from stats_reset) from pg_stat_bgwriter)
    )

-- schema_exists --
-- Tells whether a schema of this name exists, whether it is a store's, and whether anything is in it. An administrator may
-- have made an empty one.
-- All three are rows of one snapshot; to_regclass would look at another one while a store is being made.
select
    count(distinct pg_namespace.oid) > 0, count(*) filter (where relname = 'schema_versions') > 0, count(pg_class.oid) > 0
from pg_namespace left join pg_class on relnamespace = pg_namespace.oid where nspname = 'penstock'

-- schema_version --
-- The number of the last migration applied.
select coalesce(max(version), 0) from penstock.schema_versions

-- schema_squatter --
-- The owner of an empty schema of this name, if neither we, nor a superuser, nor the database's owner has made it: it could
-- replace our tables by its own.
select owner.rolname
from pg_namespace
join pg_roles owner on owner.oid = nspowner
join pg_database on datname = current_database()
where
    nspname = 'penstock' and not owner.rolsuper and owner.oid <> datdba and owner.rolname <> 'pg_database_owner'
    and not pg_has_role(owner.oid, 'usage')

-- make_schema --
-- Where the tables live.
create schema penstock

-- make_versions --
-- Which migrations were applied.
create table penstock.schema_versions (
    version integer primary key,
    applied_at timestamptz not null default now()
)

-- note_migration --
-- A migration was applied.
insert into penstock.schema_versions (version) values ($1)

-- lock_migrations --
-- One process at a time brings the schema up to date.
select pg_advisory_xact_lock(7308, 1)

-- lock_tables --
-- All at once, before anything is changed: whoever still works crosses with a migration here, where a repeat costs nothing.
do $$ begin
    execute (
        select 'lock table ' || string_agg(oid::regclass::text, ', ' order by oid) || ' in access exclusive mode'
        from pg_class where relnamespace = 'penstock'::regnamespace and relkind = 'r'
    );
end $$

-- lock_walk --
-- One transaction at a time walks over rows of others.
select pg_advisory_xact_lock(7308, 2)

-- try_walk --
-- The same without waiting.
select pg_try_advisory_xact_lock(7308, 2)

-- lock_caps --
-- Caps are about to change: nobody counts holders.
select pg_advisory_xact_lock(7308, 3)

-- share_caps --
-- Caps do not change while holders are counted.
select pg_advisory_xact_lock_shared(7308, 3)

-- lock_keys --
-- Holders of these keys are counted by one transaction at a time; in one order, so that nobody waits in a ring.
select pg_advisory_xact_lock(7309, place) from (
    select distinct hashtext(key) as place from unnest($1::text[]) as wanted (key) order by 1
) as ordered

-- try_lock_keys --
-- The same without waiting: [key, was it had].
select key, pg_try_advisory_xact_lock(7309, hashtext(key)) from unnest($1::text[]) as wanted (key)

-- tell --
-- Wakes who waits for work.
select pg_notify('penstock_work', '')

-- listen --
-- Hears what `tell` tells.
listen penstock_work

-- begin --
-- Opens a transaction that makes the schema; after the wait for its turn it must see what others have made.
begin isolation level read committed

-- migrate_at_leisure --
-- A limit of the role is for its daily statements.
select
    set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
    set_config('idle_in_transaction_session_timeout', '0', true)

-- ping --
-- Answers 1: a connection that answers is alive.
select 1

-- read_meta --
-- One fact about the store itself.
select value from penstock.meta where name = $1

-- write_meta --
-- Sets one fact about the store itself.
insert into penstock.meta (name, value) values ($1, $2) on conflict (name) do update set value = excluded.value

-- name_store --
-- Gives the store the name that its roots know it by, if it has none.
insert into penstock.meta (name, value) values ('own_name', $1) on conflict (name) do nothing

-- ensure_lanes --
-- Makes the lanes that a batch needs; $1 = [[spec, task, group, limit_keys, kind], …], $2 = app.
insert into penstock.lanes (spec, task, grp, limit_keys, kind, app)
select lane ->> 0, lane ->> 1, lane ->> 2, lane ->> 3, lane ->> 4, $2::bigint from jsonb_array_elements($1::jsonb) as lane
order by lane ->> 0
on conflict (spec) do nothing

-- lane_ids --
-- The ids of lanes by spec; $1 = [[spec, …], …]. Differs from sqlite because a purge may take them away: they are held.
select spec, id from penstock.lanes
where spec = any(array(select lane ->> 0 from jsonb_array_elements($1::jsonb) as lane))
order by id for key share

-- keep_lanes --
-- Those of lanes that are still there; they stay until we are done.
select id from penstock.lanes where id = any($1::bigint[]) order by id for key share

-- hold_lanes --
-- Lanes that may be purged: nobody puts a job into them meanwhile.
select id from penstock.lanes
where id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))
order by id for update skip locked

-- insert_jobs --
-- Accepts jobs; the first of a key wins. Arrays of key, lane, partition, priority, payload, plan_id, level (empty where
-- all are null), then now and app: [key, id] of what is new. Differs from sqlite because ids come from a sequence, in the order of
-- the batch; rows are written in the order of keys, so that two batches never wait for each other in a ring.
insert into penstock.jobs (id, key, lane_id, partition, priority, payload, plan_id, level, created_at, app)
select id, key, lane_id, partition, priority, payload, plan_id, level, $8::bigint, $9::bigint from (
    select nextval('penstock.jobs_id_seq') as id, job.*
    from unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[])
    as job (key, lane_id, partition, priority, payload, plan_id, level)
) as numbered order by key, id
on conflict (key, app) do nothing
returning key, id

-- accept_jobs --
-- The same for jobs that begin in one state, $9, and are due at one time, $10; they are placed as well. $11 = app.
with fresh as (
    insert into penstock.jobs (id, key, lane_id, partition, priority, payload, plan_id, level, created_at, app)
    select id, key, lane_id, partition, priority, payload, plan_id, level, $8::bigint, $11::bigint from (
        select nextval('penstock.jobs_id_seq') as id, job.*
        from unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[])
        as job (key, lane_id, partition, priority, payload, plan_id, level)
    ) as numbered order by key, id
    on conflict (key, app) do nothing
    returning key, id, lane_id, priority, octet_length(payload) as bytes
), placed as (
    insert into penstock.hot (job_id, lane_id, rank, bytes, row_state, due_at, available_at, updated_at)
    select id, lane_id, -greatest(priority, -9223372036854775807), bytes, $9::smallint, $10::bigint, $10::bigint, $8::bigint
    from fresh order by id
)
select key, id from fresh

-- reserve_ids --
-- Ids for so many new jobs, rising.
select nextval('penstock.jobs_id_seq') from generate_series(1, $1::bigint)

-- copy_jobs --
-- Accepts jobs none of whose keys is known; half of what `accept_jobs` takes.
copy penstock.jobs (id, key, lane_id, priority, payload, partition, plan_id, level, created_at, app) from stdin

-- copy_hot --
-- Gives them their first state.
copy penstock.hot (job_id, lane_id, rank, bytes, row_state, due_at, available_at, updated_at) from stdin

-- place_jobs --
-- Gives new jobs their first state; arrays of id, lane, priority, bytes, row_state, due_at, then now.
insert into penstock.hot (job_id, lane_id, rank, bytes, row_state, due_at, available_at, updated_at)
select job_id, lane_id, -greatest(priority, -9223372036854775807), bytes, row_state, due_at, due_at, $7::bigint
from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::integer[], $5::smallint[], $6::bigint[])
as job (job_id, lane_id, priority, bytes, row_state, due_at)

-- insert_job --
-- Accepts one job in a lane that exists, $2 = its spec; answers the lane, or nothing if the key or the lane says no. Where
-- $7 and $10 are null, it is due and accepted at the time of the transaction.
with lane as materialized (
    select id, app from penstock.lanes where spec = $2 for key share
), fresh as (
    insert into penstock.jobs (key, lane_id, partition, priority, payload, plan_id, level, created_at, app)
    select $1, lane.id, $3, $4, $5, $8, $9, coalesce($10::bigint, (extract(epoch from now()) * 1000000)::bigint), lane.app
    from lane
    on conflict (key, app) do nothing
    returning id, lane_id, created_at
), placed as (
    insert into penstock.hot (job_id, lane_id, rank, bytes, row_state, due_at, available_at, updated_at)
    select
        id, lane_id, -greatest($4::bigint, -9223372036854775807), octet_length($5), $6::smallint,
        coalesce($7::bigint, created_at), coalesce($7::bigint, created_at), created_at
    from fresh
)
select lane_id from fresh

-- jobs_by_key --
-- Ids and states of jobs that have ended, by key; $1 = array of keys, $2 = app. Differs from sqlite because a job that ends moves:
-- `hold_jobs` is asked for the others. Nobody puts these back or forgets them before we are done.
select jobs.key, jobs.id, ended.row_state
from penstock.jobs join penstock.ended on ended.job_id = jobs.id where jobs.key = any($1::text[]) and jobs.app = $2
order by ended.job_id for key share of ended

-- hold_jobs --
-- The same of those that have not; they do not end before we do. Asked first: what is in neither answer has just moved.
select jobs.key, jobs.id, hot.row_state
from penstock.jobs join penstock.hot on hot.job_id = jobs.id where jobs.key = any($1::text[]) and jobs.app = $2
order by hot.job_id for share of hot

-- known_keys --
-- Of these keys, those that are taken in app $2.
select key from penstock.jobs where key = any($1::text[]) and app = $2

-- differing_jobs --
-- Of known jobs, those whose task or payload is another text; arrays of key, task and payload, $4 = app: [place, task, payload].
-- A payload that is so much longer that it has another value comes as '""'.
select
    wanted.place - 1, lanes.task,
    case when length(jobs.payload) <= 64 + 2 * length(wanted.payload) then jobs.payload else '""' end
from unnest($1::text[], $2::text[], $3::text[]) with ordinality as wanted (key, task, payload, place)
join penstock.jobs on jobs.key = wanted.key and jobs.app = $4
join penstock.lanes on lanes.id = jobs.lane_id
where jobs.payload <> wanted.payload or lanes.task <> wanted.task

-- insert_edges --
-- $1 = [[parent, child, kind, open, ordinal], …].
insert into penstock.edges (parent_id, child_id, kind, open, ordinal)
select (edge ->> 0)::bigint, (edge ->> 1)::bigint, edge ->> 2, edge ->> 3 = '1', (edge ->> 4)::integer from jsonb_array_elements($1::jsonb) as edge
on conflict do nothing

-- place_children --
-- Gives new dependants their first state; $1 = [[id, row_state, pending, skipped_by, error, finished_at], …].
with placed as materialized (
    select
        (child ->> 0)::bigint as id, (child ->> 1)::smallint as row_state, (child ->> 2)::integer as pending,
        (child ->> 3)::bigint as skipped_by, child ->> 4 as error, (child ->> 5)::bigint as finished_at
    from jsonb_array_elements($1::jsonb) as child
), moved as (
    update penstock.hot set row_state = placed.row_state, pending = placed.pending
    from placed where hot.job_id = placed.id and placed.row_state < 5
), gone as (
    delete from penstock.hot using placed where hot.job_id = placed.id and placed.row_state >= 5
    returning hot.*, placed.row_state as end_state, placed.skipped_by, placed.error as why, placed.finished_at
)
insert into penstock.ended (
    job_id, row_state, token, ended_token, attempts, crashes, due_at, available_at, skipped_by, finished_at, updated_at,
    error
)
select
    job_id, end_state, token, ended_token, attempts, crashes, due_at, available_at, skipped_by, finished_at, updated_at,
    why
from gone

-- worker_row --
-- A worker that is alive; $2 = the server's life, $3 = its time, or null: the transaction's. Differs from sqlite because
-- somebody else could end it meanwhile: it is held, and a beat goes on all the same.
select no, run_id from penstock.workers
where id = $1 and ended_at + 0 is null and boot_id = $2
    and expires_at > coalesce($3::bigint, (extract(epoch from now()) * 1000000)::bigint)
for key share

-- insert_worker --
-- A worker registers.
insert into penstock.workers (id, run_id, boot_id, expires_at, started_at, host, pid, tasks, app)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- beat_worker --
-- Prolongs a worker that is alive.
update penstock.workers set expires_at = greatest(expires_at, $4)
where id = $1 and ended_at + 0 is null and boot_id = $2 and expires_at > $3

-- expire_worker --
-- Ends the time of a worker that is alive; $2, $3 = the server's life and its time.
update penstock.workers set expires_at = $3
where id = $1 and ended_at + 0 is null and boot_id = $2 and expires_at > $3

-- end_worker --
-- A worker is gone, cleanly or not.
with silent as (delete from penstock.worker_status where no = $1)
update penstock.workers set ended_at = $2 where no = $1

-- worker_no --
-- A worker's number, alive or not, unless it has ended; it leases nothing more before we are done.
select no, run_id from penstock.workers where id = $1 and ended_at + 0 is null for update

-- expired_workers --
-- The first $3 workers whose time is over: [no, same life of the server, run]; not those that somebody else looks after.
select no, boot_id = $1, run_id from penstock.workers
where ended_at is null and (boot_id <> $1 or expires_at <= $2) order by no limit $3 for update skip locked

-- forget_max_crashes --
-- What workers that have ended said of jobs that run alone.
delete from penstock.meta where starts_with(name, 'max_crashes:') and not exists (
    select 1 from penstock.workers where no = substr(name, 13)::bigint and ended_at is null
)

-- forget_workers --
-- Rows of workers that ended long ago.
delete from penstock.workers where no in (
    select no from penstock.workers where ended_at < $1 limit 100 for update skip locked
)

-- leased_by --
-- What a worker holds, a slice: [id, token, lane, limited, losses, crashes, its cell if it is a suspect].
select
    hot.job_id, hot.token, hot.lane_id, lanes.limit_keys <> '[]', hot.losses, hot.crashes,
    case when hot.solo then hot.cell end
from penstock.hot join penstock.lanes on lanes.id = hot.lane_id
where hot.row_state = 4 and hot.worker = $1 order by hot.job_id limit $2 for update of hot

-- take_back --
-- Leases that ended without an attempt's end; $1 = [[id, row_state, losses, crashes, cell], …], $2 = now.
update penstock.hot set
    row_state = (back ->> 1)::smallint, losses = (back ->> 2)::integer, crashes = (back ->> 3)::integer,
    cell = (back ->> 4)::bigint, worker = null, solo = false, updated_at = $2
from jsonb_array_elements($1::jsonb) as back
where hot.job_id = (back ->> 0)::bigint

-- end_crashed --
-- Poison: a job crashed alone too often. Nobody ended it by its token, so an end that comes late is stale.
with gone as (
    delete from penstock.hot where job_id = $1 and row_state = 4 returning *
)
insert into penstock.ended (
    job_id, row_state, token, ended_token, attempts, crashes, deferred_since, due_at, available_at, started_at,
    finished_at, updated_at, result, error
)
select
    job_id, 7, token, ended_token, attempts, $3::integer, deferred_since, due_at, available_at, started_at, $4::bigint,
    $4::bigint, result, $2::text
from gone

-- promote_due --
-- Makes due jobs ready; answers their lanes.
update penstock.hot set row_state = 2 where ctid = any(array(
    select ctid from penstock.hot where row_state = 1 and available_at <= $1 order by available_at limit $2
    for update skip locked
)) returning lane_id

-- next_due --
-- When the next delayed job falls due.
select min(available_at) from penstock.hot where row_state = 1

-- hold_ready_lanes --
-- Lanes that are known to have ready jobs; they stay known until we are done.
select lane_id from penstock.ready_lanes where lane_id = any($1::bigint[]) order by lane_id for key share

-- refresh_heads --
-- Makes lanes known to have ready jobs; answers those that were not. Differs from sqlite because a head that every
-- transaction writes would let the fleet wait in one line: who leases looks for the first job itself.
insert into penstock.ready_lanes (lane_id, task, grp, turn, app)
select id, task, grp, nextval('penstock.turns'), app from penstock.lanes where id = any($1::bigint[]) order by id
on conflict (lane_id) do nothing
returning lane_id

-- keep_heads --
-- Both at once, so that it can go with the commit. Divides by zero where another transaction has made a lane known just
-- now: it is not held, and could be forgotten before we are done.
with held as materialized (
    select lane_id from penstock.ready_lanes where lane_id = any($1::bigint[]) order by lane_id for key share
), made as (
    insert into penstock.ready_lanes (lane_id, task, grp, turn, app)
    select id, task, grp, nextval('penstock.turns'), app from penstock.lanes
    where id = any($1::bigint[]) and id <> all(array(select lane_id from held)) order by id
    on conflict (lane_id) do nothing
    returning lane_id
)
select 1 / ((select count(*) from held) + (select count(*) from made) = cardinality($1::bigint[]))::integer

-- hold_empty_lanes --
-- Lanes in which a lease has found nothing and into which nobody is putting anything.
select lane_id from penstock.ready_lanes where lane_id = any($1::bigint[]) order by lane_id for update skip locked

-- drop_empty_lanes --
-- Forgets those that are still empty now that nobody can put anything into them.
delete from penstock.ready_lanes where lane_id = any($1::bigint[]) and not exists (
    select 1 from penstock.hot where row_state = 2 and hot.lane_id = ready_lanes.lane_id
)

-- rotate_lanes --
-- Lanes that had their turn stand behind the others of their group.
update penstock.ready_lanes set turn = nextval('penstock.turns') where lane_id in (
    select lane_id from penstock.ready_lanes where lane_id = any($1::bigint[]) order by lane_id for no key update skip locked
)

-- last_ready_group --
-- The last of the groups of app $1 that have work.
select max(grp) from penstock.ready_lanes where parked_on is null and app = $1

-- ready_heads --
-- A lane of up to $2 groups with work for tasks $3 of app $4 after group $1, by skip-scan over the ready lanes: [lane, group,
-- limit_keys, task, 0, has the group other ready lanes]. Differs from sqlite because lanes know no head: the one whose
-- turn it is comes first.
with recursive known as materialized (
    select array(select jsonb_array_elements_text($3::jsonb)) as tasks
), found as (
    (
        select lane_id, grp, 1 as n from penstock.ready_lanes
        where parked_on is null and app = $4 and grp > $1::text and task = any((select tasks from known)::text[])
        order by grp, turn, lane_id limit 1
    )
    union all
    select following.lane_id, following.grp, found.n + 1 from found cross join lateral (
        select lane_id, grp from penstock.ready_lanes
        where parked_on is null and app = $4 and grp > found.grp and task = any((select tasks from known)::text[])
        order by grp, turn, lane_id limit 1
    ) as following where found.n < $2::bigint
)
select lanes.id, lanes.grp, lanes.limit_keys, lanes.task, 0, (
    select count(*) from (
        select 1 from penstock.ready_lanes as other where other.parked_on is null and other.app = $4 and other.grp = found.grp
        limit 2
    ) as few
)
from found join penstock.lanes on lanes.id = found.lane_id order by found.n

-- lease_view --
-- What a lease call must know first: [expired workers, settling, next due, suspects of app $3, paused, open keys, parked
-- lanes, pauses of that app]; $1, $2 as in `worker_row`.
select
    exists (
        select 1 from penstock.workers where ended_at is null and (
            boot_id <> $1 or expires_at <= coalesce($2::bigint, (extract(epoch from now()) * 1000000)::bigint)
        )
    ),
    exists (select 1 from penstock.settling) or exists (select 1 from penstock.reviving)
    or exists (select 1 from penstock.revivable) or exists (select 1 from penstock.meta where name = 'retries' and value <> '[]'),
    (select min(available_at) from penstock.hot where row_state = 1),
    (
        select count(*) from penstock.hot join penstock.lanes on lanes.id = hot.lane_id
        where hot.row_state = 3 and lanes.app = $3
    ),
    (select value from penstock.meta where name = 'paused') = '1',
    exists (select 1 from penstock.open_keys),
    exists (select 1 from penstock.ready_lanes where parked_on is not null),
    exists (select 1 from penstock.pauses where app = $3)

-- ready_lanes --
-- The first $2 ready lanes of each group of $1 for tasks $3 of app $4: [lane, group, limit_keys, task].
select first.lane_id, first.grp, lanes.limit_keys, lanes.task
from jsonb_array_elements_text($1::jsonb) as wanted (grp) cross join lateral (
    select lane_id, grp from penstock.ready_lanes
    where parked_on is null and app = $4 and ready_lanes.grp = wanted.grp
        and task = any(array(select jsonb_array_elements_text($3::jsonb)))
    order by turn, lane_id limit $2
) as first join penstock.lanes on lanes.id = first.lane_id

-- merge_lanes --
-- The order of the first $2 jobs of each of several lanes of one group; $1 = lanes, $3 to $5 = where to begin in each.
-- Differs from sqlite because dead rows may lie at the front.
select first.lane_id
from unnest($1::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) as wanted (lane_id, rank, at, id) cross join lateral (
    select lane_id, rank, available_at, job_id from penstock.hot
    where row_state = 2 and hot.lane_id = wanted.lane_id
        and (hot.rank, hot.available_at, hot.job_id) > (wanted.rank, wanted.at, wanted.id)
    order by rank, available_at, job_id limit $2
) as first
order by first.rank, first.available_at, first.job_id

-- take_jobs --
-- Leases the first $2 jobs of each of these lanes that nobody else is taking; $1 = lanes, $3 = worker, $4 = now, $5 to $7
-- = where to begin in each. Differs from sqlite because reading and leasing must be one statement here; by `ctid`,
-- which is twice as fast as by id.
with picked as materialized (
    select first.place
    from unnest($1::bigint[], $5::bigint[], $6::bigint[], $7::bigint[]) as wanted (lane_id, rank, at, id)
    cross join lateral (
        select hot.ctid as place from penstock.hot
        where hot.row_state = 2 and hot.lane_id = wanted.lane_id
            and (hot.rank, hot.available_at, hot.job_id) > (wanted.rank, wanted.at, wanted.id)
        order by hot.rank, hot.available_at, hot.job_id limit $2 for update skip locked
    ) as first
), leased as (
    update penstock.hot set
        row_state = 4, worker = $3, updated_at = $4,
        token = 1 + greatest(token, (select value::bigint from penstock.meta where name = 'token_floor'))
    where ctid = any(array(select place from picked))
    returning job_id, token, lane_id, attempts, crashes, rank, available_at, due_at, deferred_since
)
select
    leased.job_id, leased.token, jobs.key, leased.lane_id, jobs.payload, leased.attempts, leased.crashes, jobs.priority,
    leased.due_at, leased.deferred_since, jobs.partition, jobs.plan_id, jobs.level, leased.rank, leased.available_at
from leased join penstock.jobs on jobs.id = leased.job_id

-- weigh_jobs --
-- The number of bytes that take_jobs would hand out; $1 = [lane, …], $2 = most.
select coalesce(sum(first.bytes), 0)::bigint from jsonb_array_elements_text($1::jsonb) as wanted (lane) cross join lateral (
    select bytes from penstock.hot where row_state = 2 and hot.lane_id = wanted.lane::bigint
    order by rank, available_at, job_id limit $2
) as first

-- list_suspects --
-- The first $3 suspects for tasks $1 of app $4, cell by cell: of cell $2, or if that is 0 of all that nobody runs:
-- [cell, job, limit_keys, bytes].
select hot.cell, hot.job_id, lanes.limit_keys, hot.bytes
from penstock.hot join penstock.lanes on lanes.id = hot.lane_id
where hot.row_state = 3 and lanes.app = $4 and lanes.task = any(array(select jsonb_array_elements_text($1::jsonb))) and case
    when $2::bigint <> 0 then hot.cell = $2::bigint
    else hot.cell = 0 or hot.cell <> all(array(select cell from penstock.hot where row_state = 4 and solo))
end
order by hot.cell, hot.job_id limit $3

-- take_suspects --
-- Leases suspects, but those for which somebody was faster; $1 = ids, $2 = worker, $3 = now. Differs from sqlite because
-- reading and leasing must be one statement.
with leased as (
    update penstock.hot set
        row_state = 4, worker = $2, solo = true, updated_at = $3,
        token = 1 + greatest(token, (select value::bigint from penstock.meta where name = 'token_floor'))
    where ctid = any(array(
        select ctid from penstock.hot where job_id = any($1::bigint[]) and row_state = 3 for update skip locked
    ))
    returning job_id, token, lane_id, attempts, crashes, cell, due_at, deferred_since
)
select
    leased.job_id, leased.token, jobs.key, lanes.task, lanes.grp, leased.lane_id, jobs.payload, leased.attempts,
    leased.crashes, jobs.priority, leased.due_at, leased.deferred_since, jobs.partition, jobs.plan_id, jobs.level,
    lanes.limit_keys <> '[]', lanes.kind, leased.cell
from leased join penstock.jobs on jobs.id = leased.job_id join penstock.lanes on lanes.id = leased.lane_id
order by leased.job_id

-- count_delayed --
-- How many jobs are queued for later than $2; no more than $1 are counted. Who is due is ready, though not yet promoted.
select count(*) from (select 1 from penstock.hot where row_state = 1 and available_at > $2 limit $1) as few

-- count_suspects --
-- How many jobs of an app, or of all, wait to run in quarantine.
select count(*) from penstock.hot join penstock.lanes on lanes.id = hot.lane_id
where hot.row_state = 3 and ($1::bigint is null or lanes.app = $1)

-- count_holders --
-- Leases that hold limit keys; $1 = [key, …].
select key, (select count(*) from penstock.held where limit_key = wanted.key)
from jsonb_array_elements_text($1::jsonb) as wanted (key)

-- name_holders --
-- Who holds a limit key: at most ten.
select jobs.key from penstock.held join penstock.jobs on jobs.id = held.job_id
where held.limit_key = $1 order by jobs.id limit 10

-- list_holders --
-- How many jobs hold each limit key: [key, count], at most $1 keys.
select limit_key, count(*) from penstock.held group by limit_key order by limit_key limit $1

-- cap_overrides --
-- Caps that an operator set; $1 = [key, …].
select limit_key, cap from penstock.limits
where limit_key = any(array(select jsonb_array_elements_text($1::jsonb)))

-- all_caps --
-- Every cap that an operator set.
select limit_key, cap from penstock.limits

-- set_cap --
-- Overrides a cap.
insert into penstock.limits (limit_key, cap) values ($1, $2) on conflict (limit_key) do update set cap = excluded.cap

-- drop_cap --
-- Forgets an override.
delete from penstock.limits where limit_key = $1

-- hold_keys --
-- Limit keys of leases; $1 = [[job, token, key], …].
insert into penstock.held (job_id, token, limit_key)
select (lease ->> 0)::bigint, (lease ->> 1)::bigint, lease ->> 2 from jsonb_array_elements($1::jsonb) as lease

-- free_keys --
-- Leases give their limit keys back; $1 = [[job, token], …]. Differs from sqlite because it answers the keys: what waits
-- for them is looked for later, when they are locked.
delete from penstock.held using jsonb_array_elements($1::jsonb) as freed
where held.job_id = (freed ->> 0)::bigint and held.token = (freed ->> 1)::bigint
returning held.limit_key

-- open_freed_keys --
-- Notes the keys that were given back and for which lanes are parked. Differs from sqlite because it must not be asked
-- before the keys are locked: who parks a lane now would be missed.
insert into penstock.open_keys (limit_key)
select key from unnest($1::text[]) as freed (key)
where exists (select 1 from penstock.ready_lanes where parked_on = freed.key) order by key
on conflict do nothing

-- open_key --
-- Notes that a key may have room.
insert into penstock.open_keys (limit_key) values ($1) on conflict do nothing

-- open_dimension --
-- Notes that every key between $1 and $2 may have room that lanes are parked on.
insert into penstock.open_keys (limit_key)
select distinct parked_on from penstock.ready_lanes where parked_on >= $1 and parked_on < $2 order by 1
on conflict do nothing

-- detach --
-- A lease is over while its body may still run.
insert into penstock.detached (job_id, token, worker) values ($1, $2, $3)

-- drop_detached --
-- The body of such a lease has ended.
delete from penstock.detached where job_id = $1 and token = $2

-- detached_of --
-- Such leases of a worker, by its number.
select job_id, token from penstock.detached where worker = $1

-- leased_by_id --
-- What a worker holds, by its id.
select job_id, token from penstock.hot
where worker = (select no from penstock.workers where id = $1) and row_state = 4 order by job_id

-- inbox_of --
-- What there is for a worker, by its id: leases that are detached, and questions without an answer: [job, token, question].
select job_id, token, null::bigint from penstock.detached where worker = (select no from penstock.workers where id = $1)
union all
select job_id, token, id from penstock.control where target = $1 and answer is null

-- ask --
-- A question to a worker about a lease; its number.
insert into penstock.control (target, job_id, token, asked_at) values ($1, $2, $3, $4) returning id

-- forget_questions --
-- Old questions go: asked before $1, or numbered up to $2.
delete from penstock.control where id in (
    select id from penstock.control where asked_at < $1 or id <= $2 order by id limit 100 for update skip locked
)

-- answer --
-- A worker answers a question.
update penstock.control set answer = $2, answered_at = $3 where id = $1 and answer is null

-- read_answer --
-- The answer to a question.
select answer from penstock.control where id = $1

-- list_open_keys --
-- Keys that may have room while lanes are parked on them.
select limit_key from penstock.open_keys limit 64

-- close_key --
-- A key is full, or nobody is parked on it.
delete from penstock.open_keys where limit_key = $1

-- next_turn --
-- A number greater than all before.
select nextval('penstock.turns')

-- park_lanes --
-- Lanes wait for a key; $1 = [[lane, key, seq], …]; seq grows, and is 0 for a key whose cap is 0. Differs from sqlite
-- because a lane that somebody else is changing is left as it is: who holds a key does not wait for who may want it.
update penstock.ready_lanes set parked_on = parked ->> 1, parked_seq = (parked ->> 2)::bigint
from jsonb_array_elements($1::jsonb) as parked where ready_lanes.lane_id = (parked ->> 0)::bigint
    and ready_lanes.lane_id = any(array(
        select lane_id from penstock.ready_lanes where lane_id = any(array(
            select (parked ->> 0)::bigint from jsonb_array_elements($1::jsonb) as parked
        )) for no key update skip locked
    ))

-- park_for_good --
-- The cap of a key is 0: nobody can free it; only a changed cap lets its lanes try again.
update penstock.ready_lanes set parked_seq = 0 where parked_on = $1 and parked_seq <> 0

-- is_ready --
-- True if a job of tasks $1 of app $2 is ready that no limit stops, as far as known.
select exists (
    select 1 from penstock.ready_lanes where parked_on is null and app = $2
        and task = any(array(select jsonb_array_elements_text($1::jsonb)))
)

-- unpark_lanes --
-- Lets lanes of tasks $2 of app $4 try again that wait for a key, first come first served.
update penstock.ready_lanes set parked_on = null where parked_on = $1 and lane_id = any(array(
    select lane_id from penstock.ready_lanes where lane_id = any(array(
        select lane_id from penstock.ready_lanes
        where parked_on = $1 and app = $4 and task = any(array(select jsonb_array_elements_text($2::jsonb)))
        order by parked_seq limit $3
    )) order by lane_id for no key update
))

-- parked_keys --
-- The keys that lanes of tasks $1 of app $2 wait for, at most 64, by skip-scan.
with recursive known as materialized (
    select array(select jsonb_array_elements_text($1::jsonb)) as tasks
), found (limit_key, n) as (
    select (
        select parked_on from penstock.ready_lanes where parked_on is not null
            and app = $2 and task = any((select tasks from known)::text[]) order by parked_on limit 1
    ), 1
    union all
    select (
        select parked_on from penstock.ready_lanes where parked_on > found.limit_key
            and app = $2 and task = any((select tasks from known)::text[]) order by parked_on limit 1
    ), n + 1
    from found where found.limit_key is not null and n < 64
)
select limit_key from found where limit_key is not null

-- is_parked_on --
-- True if any lane waits for this key.
select exists (select 1 from penstock.ready_lanes where parked_on = $1)

-- unpark_all --
-- Lets every lane try again: caps may have changed.
update penstock.ready_lanes set parked_on = null where parked_on is not null and lane_id = any(array(
    select lane_id from penstock.ready_lanes where parked_on is not null order by lane_id for no key update
))

-- end_jobs --
-- Ends leased jobs under their tokens: arrays of id, token, row_state, result, error, started_at, ended_at, then the
-- worker; answers which were ended. Fencing: the token must be the job's current one. What a job returned last is kept when it
-- does not end well. Differs from sqlite because an ended job moves to where ends are kept.
with gone as (
    delete from penstock.hot using unnest(
        $1::bigint[], $2::bigint[], $3::smallint[], $4::text[], $5::text[], $6::bigint[], $7::bigint[]
    ) as done (id, token, end_state, result, error, started_at, ended_at)
    where hot.job_id = done.id and hot.token = done.token and hot.worker = $8 and hot.row_state + 0 = 4
    returning
        hot.job_id, done.end_state, hot.token, hot.attempts, hot.crashes, hot.due_at, hot.available_at, done.started_at,
        done.ended_at, case done.end_state when 5 then done.result else coalesce(done.result, hot.result) end as result,
        done.error
), kept as (
    insert into penstock.ended (
        job_id, row_state, token, ended_token, worker, attempts, crashes, due_at, available_at, started_at, finished_at,
        updated_at, result, error
    )
    select
        job_id, end_state, token, token, $8, attempts, crashes, due_at, available_at, started_at, ended_at, ended_at,
        result, error
    from gone
)
select job_id from gone

-- write_attempt --
-- One row of history.
insert into penstock.attempts (job_id, token, worker, outcome, started_at, ended_at, error)
values ($1, $2, $3, $4, $5, $6, $7) on conflict do nothing

-- verdict_row --
-- State and token of a job whose end was refused: [row_state, ended_token].
select row_state, ended_token from penstock.hot where job_id = $1
union all
select row_state, ended_token from penstock.ended where job_id = $1

-- rearm_job --
-- Queues a job again instead of ending it, fenced by its token.
update penstock.hot set
    row_state = $3::smallint, due_at = $4, available_at = $5, ended_token = token, worker = null, solo = false,
    attempts = 0, crashes = 0, losses = 0, deferred_since = null, error = null, result = $6, started_at = $7,
    updated_at = $8
where job_id = $1 and token = $2 and worker = $9 and row_state + 0 = 4 and due_at < $4

-- fail_job --
-- Ends an attempt badly, fenced by its token: queued again later, or in error. $3 = now or later, $4 = charge, $5 = it ends, $6 = it
-- crashed, $7 = error, $8 = started, $9 = ended, $10 = worker, $11 = now.
with mine as materialized (
    select *, $5::integer <> 0 as is_over, case
        when $4::integer <> 0 then null when $6::integer <> 0 then deferred_since
        else coalesce(deferred_since, $9::bigint)
    end as deferred
    from penstock.hot where job_id = $1 and token = $2 and worker = $10 and row_state = 4 for update
), kept as (
    update penstock.hot set
        attempts = mine.attempts + $4::integer,
        crashes = mine.crashes + $6::integer,
        row_state = case when $3::bigint > $11::bigint then 1 else 2 end,
        available_at = $3, error = $7, started_at = $8, updated_at = $9, ended_token = mine.token, worker = null,
        solo = false, losses = 0, deferred_since = mine.deferred
    from mine where hot.job_id = mine.job_id and not mine.is_over
    returning hot.row_state, hot.lane_id
), gone as (
    delete from penstock.hot using mine where hot.job_id = mine.job_id and mine.is_over returning hot.job_id
), ended as (
    insert into penstock.ended (
        job_id, row_state, token, ended_token, attempts, crashes, deferred_since, due_at, available_at, started_at,
        finished_at, updated_at, result, error
    )
    select
        mine.job_id, 7, mine.token, mine.token, mine.attempts + $4::integer, mine.crashes + $6::integer,
        mine.deferred, mine.due_at, $3, $8, $9, $9, mine.result, $7
    from mine join gone on gone.job_id = mine.job_id
    returning job_id
)
select moved.row_state, moved.lane_id, lanes.limit_keys <> '[]', lanes.kind from (
    select row_state, lane_id from kept
    union all
    select 7, mine.lane_id from mine join ended on ended.job_id = mine.job_id
) as moved join penstock.lanes on lanes.id = moved.lane_id

-- release_job --
-- Gives an unstarted job back, fenced by its token; a suspect stays one.
update penstock.hot set
    row_state = case when solo then 3 else 2 end, worker = null, solo = false, losses = 0, updated_at = $4
where job_id = $1 and token = $2 and worker = $3 and row_state + 0 = 4
returning lane_id, (select limit_keys <> '[]' from penstock.lanes where lanes.id = lane_id)

-- with_dependants --
-- Of these jobs, those that dependants wait for; $1 = [id, …].
select ended.id::bigint from jsonb_array_elements_text($1::jsonb) as ended (id)
where exists (select 1 from penstock.edges where parent_id = ended.id::bigint and open)

-- settle_later --
-- Notes ended jobs whose dependants must be told; $1 = [id, …].
insert into penstock.settling (job_id)
select value::bigint from jsonb_array_elements_text($1::jsonb) order by 1 on conflict do nothing

-- take_settling --
-- The first $1 ended jobs whose dependants must be told. Differs from sqlite because others tell, too: not those that
-- somebody has taken.
select job_id from penstock.settling order by job_id limit $1 for update skip locked

-- edges_to_settle --
-- The next $2 edges from these ended jobs, $1 = [id, …], to those who wait: [parent, its row_state, its key, child, kind].
-- Differs from sqlite because jobs between them may be somebody else's to tell.
select ended.job_id, ended.row_state, jobs.key, waiting.child_id, waiting.kind
from jsonb_array_elements_text($1::jsonb) with ordinality as told (id, place)
cross join lateral (
    select child_id, kind from penstock.edges where parent_id = told.id::bigint and open order by child_id limit $2
) as waiting
join penstock.ended on ended.job_id = told.id::bigint
join penstock.jobs on jobs.id = told.id::bigint
order by told.place, waiting.child_id limit $2

-- drop_settling --
-- All dependants of these ended jobs are told; $1 = [id, …].
delete from penstock.settling
where job_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))

-- is_settling --
-- True while dependants of ended jobs remain to be told.
select exists (select 1 from penstock.settling)

-- hold_settling --
-- Nobody is telling the dependants of these jobs, and nobody begins to; $1 = [id, …].
select job_id from penstock.settling
where job_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb))) order by job_id for update

-- close_edges --
-- Edges are satisfied; $1 = [[parent, child], …]; answers those that were open. Differs from sqlite because a dependant may
-- have been skipped and put back since its edges were read. Its row is held before its edges are, as everybody does.
with mine as materialized (
    select job_id from penstock.hot where job_id = any(array(
        select (closed ->> 1)::bigint from jsonb_array_elements($1::jsonb) as closed
    )) order by job_id for update
)
update penstock.edges set open = false from jsonb_array_elements($1::jsonb) as closed
where parent_id = (closed ->> 0)::bigint and child_id = (closed ->> 1)::bigint and open
    and (select count(*) from mine) >= 0
returning parent_id, child_id

-- close_edges_of --
-- A dependant has ended: it waits for nobody; $1 = [child, …].
update penstock.edges set open = false
where open::integer = 1 and child_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))

-- release_children --
-- Dependants with fewer dependencies; those with none left may run. $1 = [[child, how many fewer], …], $2 = now. Their rows
-- are held.
update penstock.hot set
    pending = pending - (freed ->> 1)::integer,
    row_state = case
        when pending > (freed ->> 1)::integer then 0 when available_at > $2::bigint then 1 else 2
    end,
    updated_at = $2
from jsonb_array_elements($1::jsonb) as freed
where hot.job_id = (freed ->> 0)::bigint and hot.row_state + 0 = 0
returning hot.job_id, hot.lane_id, hot.row_state

-- skip_children --
-- Dependants that cannot run any more; $1 = [[child, cause, error], …] by id, $2 = now.
with mine as materialized (
    select job_id from penstock.hot where job_id = any(array(
        select (spoilt ->> 0)::bigint from jsonb_array_elements($1::jsonb) as spoilt
    )) order by job_id for update
), gone as (
    delete from penstock.hot using jsonb_array_elements($1::jsonb) as spoilt
    where hot.job_id = (spoilt ->> 0)::bigint and hot.row_state = 0 and hot.job_id in (select job_id from mine)
    returning hot.*, (spoilt ->> 1)::bigint as cause, spoilt ->> 2 as why
), kept as (
    insert into penstock.ended (
        job_id, row_state, token, ended_token, attempts, crashes, due_at, available_at, skipped_by, started_at,
        finished_at, updated_at, error
    )
    select
        job_id, 6, token, ended_token, attempts, crashes, due_at, available_at, cause, started_at, $2::bigint, $2::bigint,
        why
    from gone
)
select job_id, lane_id from gone

-- lane_facts --
-- What never changes about lanes: [lane, task, group, have its jobs limit keys, kind, app]; asked once by a process.
select id, task, grp, limit_keys <> '[]', kind, app from penstock.lanes where id = any($1::bigint[])

-- add_counts --
-- Merged change of the counters; $1 = [[scope, state, name, delta], …]. Differs from sqlite because a row that everybody
-- adds to would let the fleet wait in one line: changes are noted, and merged now and then.
insert into penstock.changes (scope, state, name, n)
select change ->> 0, change ->> 1, change ->> 2, (change ->> 3)::bigint from jsonb_array_elements($1::jsonb) as change

-- count_changes --
-- About how many changes of the counters are not merged yet.
select coalesce((select max(no) from penstock.changes) - (select min(no) from penstock.changes), 0)

-- merge_changes --
-- Adds up to $1 changes to the counters.
with gone as (
    delete from penstock.changes where no in (
        select no from penstock.changes order by no limit $1 for update skip locked
    ) returning scope, state, name, n
)
insert into penstock.counters (scope, state, name, n)
select scope, state, name, sum(n) from gone group by scope, state, name order by scope, state, name
on conflict (scope, state, name) do update set n = counters.n + excluded.n

-- set_cursors --
-- Commits the cursors of ticks and other durable values; $1 = [[name, value], …], by name.
insert into penstock.cursors (name, value) select one ->> 0, one ->> 1 from jsonb_array_elements($1::jsonb) as one
on conflict (name) do update set value = excluded.value

-- read_cursor --
-- A durable value.
select value from penstock.cursors where name = $1

-- plan_at --
-- [state of a plan, is its level $2 committed]; it does not change before we are done.
select state, exists (select 1 from penstock.commits where plan_id = $1 and level = $2) from penstock.plans
where id = $1 for share

-- take_numbers --
-- The next $1 numbers of commits are taken; who takes some waits until the one before is seen, so their order is that of
-- the commits.
update penstock.meta set value = (value::bigint + $1::bigint)::text where name = 'commit_seq'

-- drop_replaced --
-- Slices make room for newer ones; $1 = [[dataset, at, version, basis, number, plan, level, job, document], …].
delete from penstock.manifests where id = any(array(
    select old.id from (
        select (one ->> 0) as dataset, (one ->> 1)::bigint as at, (one ->> 4)::bigint as number, (one ->> 5) as plan_id,
        (one ->> 6)::bigint as level from jsonb_array_elements($1::jsonb) as one
    ) as new
    join penstock.manifests as old on old.dataset = new.dataset and old.at = new.at
    where old.seq is not null and new.number is not null
        or old.seq is null and old.plan_id = new.plan_id and old.level = new.level and not exists (
            select 1 from penstock.commits where commits.plan_id = old.plan_id and commits.level = old.level
        )
))

-- insert_slices --
-- Slices that were built; $1 = [[dataset, at, version, basis, number, plan, level, job, document], …], numbers counted back
-- from the last one that was taken; null: not visible yet.
insert into penstock.manifests (dataset, at, version, basis, seq, plan_id, level, job_id, document)
select
    one ->> 0, (one ->> 1)::bigint, one ->> 2, (one ->> 3)::bigint, (select value::bigint from penstock.meta where name = 'commit_seq') + (one ->> 4)::bigint,
    one ->> 5, (one ->> 6)::bigint, (one ->> 7)::bigint, one ->> 8
from jsonb_array_elements($1::jsonb) as one

-- insert_commits --
-- Levels become visible; $1 = [[plan, level, number], …], as above.
insert into penstock.commits (plan_id, level, seq)
select one ->> 0, (one ->> 1)::bigint, (select value::bigint from penstock.meta where name = 'commit_seq') + (one ->> 2)::bigint
from jsonb_array_elements($1::jsonb) as one
on conflict (plan_id, level) do nothing

-- untidy_slices --
-- $1 slices that have no number: of committed levels, [id, dataset, at, number], and of plans that are over, number 0.
select staged.id, staged.dataset, staged.at, commits.seq
from penstock.commits
join penstock.manifests as staged
    on staged.plan_id = commits.plan_id and staged.level = commits.level and staged.seq is null
union all
select staged.id, staged.dataset, staged.at, 0
from penstock.plans join penstock.manifests as staged on staged.plan_id = plans.id and staged.seq is null
where plans.ended_at is not null and (
    select 1 from penstock.commits where commits.plan_id = staged.plan_id and commits.level = staged.level
) is null
limit $1

-- number_slices --
-- Slices of committed levels get their numbers; $1 = [[id, dataset, at, number], …].
update penstock.manifests set seq = (one ->> 3)::bigint
from jsonb_array_elements($1::jsonb) as one where manifests.id = (one ->> 0)::bigint

-- drop_superseded --
-- Only the newest of those with a number stays of a slice; $1 = [[id, dataset, at, number], …].
delete from penstock.manifests where id = any(array(
    select old.id from jsonb_array_elements($1::jsonb) as one
    join penstock.manifests as old on old.dataset = one ->> 1 and old.at = (one ->> 2)::bigint
    where old.seq < (
        select max(newest.seq) from penstock.manifests as newest
        where newest.dataset = one ->> 1 and newest.at = (one ->> 2)::bigint
    )
))

-- drop_slices --
-- $1 = [id, …].
delete from penstock.manifests
where id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))

-- slice_marks --
-- What is committed of a dataset in [$2, $3): [last number, times, numbers, bases, times of other versions than $4], eight
-- bytes for each slice. Differs from sqlite because a server sends bytes as they are.
select
    (select value::bigint from penstock.meta where name = 'commit_seq'),
    string_agg(int8send(at), ''::bytea) filter (where version = $4),
    string_agg(int8send(number), ''::bytea) filter (where version = $4),
    string_agg(int8send(basis), ''::bytea) filter (where version = $4),
    string_agg(int8send(at), ''::bytea) filter (where version <> $4)
from (
    select distinct on (at) at, number, basis, version from (
        select at, basis, version, coalesce(seq, (
        select commits.seq from penstock.commits where commits.plan_id = slice.plan_id and commits.level = slice.level
    )) as number
        from penstock.manifests as slice where dataset = $1 and at >= $2 and at < $3
    ) as visible where number is not null order by at, number desc
) as newest

-- read_slices --
-- Committed slices of a dataset in [$2, $3), at most $4, and the last number in a row of its own: [last number, or null,
-- dataset, at, version, basis, number, plan, level, job, document].
select (select value::bigint from penstock.meta where name = 'commit_seq'), null, null::bigint, null, null::bigint, null::bigint, null, null::bigint, null::bigint, null
union all
select null, newest.* from (
    select distinct on (at) dataset, at, version, basis, number, plan_id, level, job_id, document from (
        select slice.*, coalesce(seq, (
        select commits.seq from penstock.commits where commits.plan_id = slice.plan_id and commits.level = slice.level
    )) as number
        from penstock.manifests as slice where dataset = $1 and at >= $2 and at < $3
    ) as visible where number is not null order by at, number desc limit $4
) as newest

-- read_ranges --
-- Committed slices of ranges; $1 = [[dataset, first, last], …]. Answers as above.
select (select value::bigint from penstock.meta where name = 'commit_seq'), null, null::bigint, null, null::bigint, null::bigint, null, null::bigint, null::bigint, null
union all
select null, newest.* from (
    select distinct on (dataset, at) dataset, at, version, basis, number, plan_id, level, job_id, document from (
        select slice.*, coalesce(seq, (
        select commits.seq from penstock.commits where commits.plan_id = slice.plan_id and commits.level = slice.level
    )) as number
        from jsonb_array_elements($1::jsonb) as one join penstock.manifests as slice
            on slice.dataset = one ->> 0 and slice.at >= (one ->> 1)::bigint and slice.at <= (one ->> 2)::bigint
    ) as visible where number is not null order by dataset, at, number desc
) as newest

-- staged_slices --
-- What a plan has built that is not visible.
select dataset, at, version, basis, seq, plan_id, level, job_id, document from penstock.manifests
where plan_id = $1 and seq is null and not exists (
    select 1 from penstock.commits where commits.plan_id = $1 and commits.level = manifests.level
)
order by level, dataset, at

-- read_documents --
-- Every row of datasets of a name, whichever app they are of, above an id, at most $3: [id, document].
select found.id, found.document from (
    select case no when 1 then $1::text else '@' || no || '/' || $1::text end as dataset from penstock.apps
) as names cross join lateral (
    select id, document from penstock.manifests
    where manifests.dataset = names.dataset and id + 0 > $2 order by id + 0 limit $3
) as found order by found.id limit $3

-- list_datasets --
-- Datasets with something committed: [name, slices, first, last, newest number].
select dataset, count(distinct at), min(at), max(at), max(number) from (
    select dataset, at, coalesce(seq, (
        select commits.seq from penstock.commits where commits.plan_id = slice.plan_id and commits.level = slice.level
    )) as number from penstock.manifests as slice
) as visible where number is not null group by dataset order by dataset

-- add_plan --
-- Keeps a draft, unless its id is known.
insert into penstock.plans (id, app, digest, state, run_id, root, document, levels, jobs, created_at)
values ($1, $2, $3, 'draft', $4, $5, $6, $7, $8, $9) on conflict (id) do nothing

-- begin_plan --
-- A draft of this run becomes a plan that runs.
update penstock.plans set state = 'running', begun_at = $3 where id = $1 and state = 'draft' and run_id || '' = $2

-- adopt_plan --
-- A plan that was left after it had begun goes on.
update penstock.plans set state = 'running', run_id = $2 where id = $1 and state = 'left' and begun_at is not null

-- end_plan --
-- A running plan is over: [its run].
update penstock.plans set state = 'ended', ended_at = $2 where id = $1 and state = 'running' returning run_id

-- abandon_plan --
-- An open plan is given up.
update penstock.plans set state = 'abandoned', ended_at = $2 where id = $1 and ended_at + 0 is null

-- has_open_plan --
-- True if this run has a plan that is not over.
select exists (select 1 from penstock.plans where run_id = $1 and ended_at is null)

-- leave_plans --
-- Plans on their way whose runs hold nothing any more; $1 = [run, …].
update penstock.plans set state = 'left'
where ended_at is null and run_id = any(array(select jsonb_array_elements_text($1::jsonb))) and state <> 'left'
returning id

-- leave_all_plans --
-- The same for all of them.
update penstock.plans set state = 'left' where ended_at is null

-- finish_job --
-- A queued job ends well without a worker.
with gone as (delete from penstock.hot where job_id = $1 and row_state + 0 between 1 and 3 returning *)
insert into penstock.ended (
    job_id, row_state, token, ended_token, attempts, crashes, deferred_since, due_at, available_at, started_at,
    finished_at, updated_at, result, error
)
select
    job_id, 5, token, ended_token, attempts, crashes, deferred_since, due_at, available_at, started_at, $2::bigint,
    $2::bigint, result, error
from gone

-- open_jobs_of_plan --
-- The newest $2 jobs of a plan that have not ended: [id, lane, row_state, token, worker]; nobody else ends them before we
-- are done.
select hot.job_id, hot.lane_id, hot.row_state, hot.token, hot.worker from penstock.hot
where job_id = any(array(
    select open.job_id from penstock.hot as open join penstock.jobs on jobs.id = open.job_id
    where open.job_id >= (select min(id) from penstock.jobs where plan_id = $1)
        and open.job_id <= (select max(id) from penstock.jobs where plan_id = $1) and jobs.plan_id || '' = $1
    order by open.job_id desc limit $2
))
order by hot.job_id for update

-- cancel_jobs --
-- Cancels jobs that have not ended; $1 = [id, …], $2 = now.
with gone as (
    delete from penstock.hot
    where job_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb))) returning *
)
insert into penstock.ended (
    job_id, row_state, token, ended_token, attempts, crashes, deferred_since, due_at, available_at, started_at,
    finished_at, updated_at, result, error
)
select
    job_id, 8, token, ended_token, attempts, crashes, deferred_since, due_at, available_at, started_at, $2::bigint,
    $2::bigint, result, error
from gone

-- old_plans --
-- $2 plans that were over before a time, and of which no job and no staged slice is left.
select id from penstock.plans where ended_at is not null and ended_at < $1
    and (select 1 from penstock.jobs where jobs.plan_id = plans.id limit 1) is null
    and (select 1 from penstock.manifests where manifests.plan_id = plans.id and seq is null limit 1) is null
order by ended_at limit $2

-- purge_commits --
-- Commits of plans that go; $1 = [plan, …].
delete from penstock.commits where plan_id = any(array(select jsonb_array_elements_text($1::jsonb)))

-- purge_plans --
-- $1 = [plan, …].
delete from penstock.plans where id = any(array(select jsonb_array_elements_text($1::jsonb)))

-- read_plan --
-- One plan.
select id, app, digest, state, run_id, root, document, levels, jobs, created_at, begun_at, ended_at from penstock.plans where id = $1

-- list_open_plans --
-- Plans that are not over, the newest first; $1 = their digest, or null, $2 = their app, or null.
select id, app, digest, state, run_id, root, document, levels, jobs, created_at, begun_at, ended_at from penstock.plans
where ended_at is null and ($1::text is null or digest = $1)
    and ($2::text is null or app = $2) order by no desc

-- count_plan_jobs --
-- [row_state, level, jobs] of a plan, but for those that are done; -1: all of a level; -2: it is committed.
with span as materialized (
    select
        (select min(id) from penstock.jobs where plan_id = $1) as first,
        (select max(id) from penstock.jobs where plan_id = $1) as last
)
select -1, level, count(*) from penstock.jobs where plan_id = $1 and level is not null group by level
union all
select hot.row_state, jobs.level, count(*)
from span cross join lateral (
    select job_id, row_state from penstock.hot where job_id between span.first and span.last offset 0
) as hot
join penstock.jobs on jobs.id = hot.job_id
where jobs.plan_id || '' = $1 and jobs.level is not null group by hot.row_state, jobs.level
union all
select ended.row_state, jobs.level, count(*)
from span cross join (values (6::smallint), (7::smallint), (8::smallint)) as unhappy (row_state)
cross join lateral (
    select job_id, row_state from penstock.ended
    where row_state >= 6 and (row_state, job_id) >= (unhappy.row_state, span.first)
        and (row_state, job_id) <= (unhappy.row_state, span.last)
    order by row_state, job_id offset 0
) as ended
join penstock.jobs on jobs.id = ended.job_id
where jobs.plan_id || '' = $1 and jobs.level is not null group by ended.row_state, jobs.level
union all
select -2, level, 0 from penstock.commits where plan_id = $1

-- list_unhappy_of_plan --
-- Jobs of a plan above an id that ended otherwise than done; $3 = [row_state, …], $4 = most.
select job_rows.* from (
    select ended.job_id
    from (select value::smallint as row_state from jsonb_array_elements_text($3::jsonb)) as unhappy
    cross join lateral (
        select found.job_id from (
            select job_id from penstock.ended
            where row_state >= 6 and (row_state, job_id) > (
                unhappy.row_state, greatest($2, (select min(id) - 1 from penstock.jobs where plan_id = $1))
            )
            and (row_state, job_id) <= (
                unhappy.row_state, (select max(id) from penstock.jobs where plan_id = $1)
            )
            order by row_state, job_id offset 0
        ) as found
        where (select plan_id from penstock.jobs where jobs.id = found.job_id) = $1 limit $4
    ) as ended order by ended.job_id limit $4
) as wanted join penstock.job_rows on job_rows.id = wanted.job_id order by job_rows.id

-- list_open_of_plan --
-- Jobs of a plan above an id that have not ended; as above.
select job_rows.* from (
    select hot.job_id from penstock.hot join penstock.jobs on jobs.id = hot.job_id
    where hot.job_id > $2 and hot.job_id >= (select min(id) from penstock.jobs where plan_id = $1)
        and hot.job_id <= (select max(id) from penstock.jobs where plan_id = $1) and jobs.plan_id || '' = $1
        and hot.row_state + 0 = any(array(select value::smallint from jsonb_array_elements_text($3::jsonb)))
    order by hot.job_id limit $4
) as wanted join penstock.job_rows on job_rows.id = wanted.job_id order by job_rows.id

-- list_plan_jobs --
-- Jobs of a plan above an id, in whatever states; as above.
select job_rows.* from (
    select jobs.id from penstock.jobs join penstock.states on states.job_id = jobs.id
    where jobs.plan_id = $1 and jobs.id > $2
        and states.row_state = any(array(select value::smallint from jsonb_array_elements_text($3::jsonb)))
    order by jobs.id limit $4
) as wanted join penstock.job_rows on job_rows.id = wanted.id order by job_rows.id

-- lock_datasets --
-- Nobody else takes or gives back locks of datasets until the commit.
select pg_advisory_xact_lock(7308, 4)

-- hold_locks --
-- Locks that somebody holds, $1 = [name, …]; $2, $3 = the server's life and its time: [name, run, mark, token, taken_at,
-- alive]. With all others of their runs, in the order of names: a beat takes them in the same.
select name, run_id, mark, token, taken_at, boot_id = $2 and expires_at > $3 from penstock.locks
where run_id is not null and (
    name = any(array(select jsonb_array_elements_text($1::jsonb)))
    or run_id = any(array(
        select run_id from penstock.locks where name = any(array(select jsonb_array_elements_text($1::jsonb)))
    ))
)
order by name for update

-- take_locks --
-- A run takes locks; $1 = [name, …] by name, then run, mark, the server's life, until, now.
insert into penstock.locks (name, run_id, mark, token, boot_id, expires_at, taken_at)
select name, $2, $3, 1, $4, $5, $6 from jsonb_array_elements_text($1::jsonb) as name
on conflict (name) do update set
    run_id = excluded.run_id, mark = excluded.mark, token = locks.token + 1, boot_id = excluded.boot_id,
    expires_at = excluded.expires_at, taken_at = excluded.taken_at

-- beat_locks --
-- A run renews what it holds since the server's life $2; $3 = until.
with mine as materialized (
    select name from penstock.locks where run_id = $1 and boot_id = $2 order by name for update
)
update penstock.locks set expires_at = greatest(expires_at, $3) where name = any(array(select name from mine))

-- free_locks --
-- Runs hold nothing any more; $1 = [run, …].
with theirs as materialized (
    select name from penstock.locks where run_id = any(array(select jsonb_array_elements_text($1::jsonb)))
    order by name for update
)
update penstock.locks set run_id = null where name = any(array(select name from theirs))

-- release_locks --
-- A run gives locks back; $2 = [name, …].
with mine as materialized (
    select name from penstock.locks
    where run_id || '' = $1 and name = any(array(select jsonb_array_elements_text($2::jsonb)))
    order by name for update
)
update penstock.locks set run_id = null where name = any(array(select name from mine))

-- has_lock --
-- True if a run holds any lock.
select exists (select 1 from penstock.locks where run_id = $1)

-- void_locks --
-- Nobody holds anything, and every later token is greater than $1.
update penstock.locks set run_id = null, token = greatest(token, $1)

-- list_locks --
-- Locks that somebody holds; $1, $2 = the server's life and its time.
select name, run_id, mark, token, taken_at, boot_id = $1 and expires_at > $2 from penstock.locks
where run_id is not null order by name

-- cancel_job --
-- Cancels a job that has not ended.
with gone as (delete from penstock.hot where job_id = $1 returning *)
insert into penstock.ended (
    job_id, row_state, token, ended_token, attempts, crashes, deferred_since, due_at, available_at, started_at,
    finished_at, updated_at, result, error
)
select
    job_id, 8, token, ended_token, attempts, crashes, deferred_since, due_at, available_at, started_at, $2::bigint,
    $2::bigint, result, error
from gone

-- open_job --
-- Jobs of a key that have not ended, of app $2 or of all: [id, lane, row_state, token, worker, kind]; nobody else ends it before we are done.
select hot.job_id, hot.lane_id, hot.row_state, hot.token, hot.worker, lanes.kind
from penstock.hot join penstock.jobs on jobs.id = hot.job_id join penstock.lanes on lanes.id = hot.lane_id
where jobs.key = $1 and ($2::bigint is null or jobs.app = $2) for update of hot

-- revoke_job --
-- Ends a lease from outside.
update penstock.hot set row_state = case when solo then 3 else 2 end, worker = null, solo = false, updated_at = $3
where job_id = $1 and token = $2 and row_state = 4
returning lane_id

-- holder_of --
-- The worker that holds a lease; nobody ends it before we are done.
select worker from penstock.hot where job_id = $1 and token = $2 and row_state = 4 for update

-- blame --
-- Dependants stay skipped, for another reason; $1 = [[id, parent, error], …].
update penstock.ended set skipped_by = (blamed ->> 1)::bigint, error = blamed ->> 2
from jsonb_array_elements($1::jsonb) as blamed where job_id = (blamed ->> 0)::bigint and row_state = 6

-- failed_jobs --
-- The next $4 failed jobs above an id: [id, lane, whether to put it back]; $2 = task, $3 = most attempts, $5 = app.
select ended.job_id, jobs.lane_id,
    jobs.plan_id is null and ($2::text is null or lanes.task = $2) and ($3::bigint is null or ended.attempts <= $3)
    and ($5::bigint is null or jobs.app = $5)
from penstock.ended join penstock.jobs on jobs.id = ended.job_id join penstock.lanes on lanes.id = jobs.lane_id
where ended.row_state = 7 and ended.row_state >= 6 and ended.job_id > $1 order by ended.job_id limit $4

-- named_jobs --
-- Jobs of these keys in a state, of no plan: [key, id, lane, app]; $1 = [key, …], $2 = row_state, $3 = app, $4 = kind, each of
-- both may be anyone's. Nobody puts them back or forgets them before we are done.
select jobs.key, jobs.id, jobs.lane_id, apps.name
from penstock.jobs join penstock.ended on ended.job_id = jobs.id
join penstock.lanes on lanes.id = jobs.lane_id join penstock.apps on apps.no = jobs.app
where jobs.key = any(array(select jsonb_array_elements_text($1::jsonb))) and ended.row_state + 0 = $2
    and jobs.plan_id is null and ($3::bigint is null or jobs.app = $3) and ($4::text is null or lanes.kind = $4)
order by ended.job_id for update of ended

-- requeue_jobs --
-- Jobs that ended as $3 start afresh; $1 = [[id, …], …], $2 = now, $4 = the time that they are meant for from now on, null: as
-- before. Differs from sqlite because the row of an end is the history of its attempt: it is kept.
with gone as (
    delete from penstock.ended
    where row_state + 0 = $3 and job_id = any(array(select (job ->> 0)::bigint from jsonb_array_elements($1::jsonb) as job))
    returning *
), kept as (
    insert into penstock.attempts (job_id, token, worker, outcome, started_at, ended_at, error)
    select job_id, token, worker, case row_state when 5 then 'done' else 'error' end, started_at, finished_at, error
    from gone where worker is not null
    on conflict do nothing
)
insert into penstock.hot (
    job_id, lane_id, rank, bytes, row_state, token, ended_token, due_at, available_at, started_at, updated_at, result,
    error
)
select
    gone.job_id, jobs.lane_id, -greatest(jobs.priority, -9223372036854775807), octet_length(jobs.payload), 2, gone.token,
    gone.ended_token, coalesce($4::bigint, gone.due_at), $2::bigint, gone.started_at, $2::bigint, gone.result, gone.error
from gone join penstock.jobs on jobs.id = gone.job_id

-- revive_later --
-- Notes jobs that were put back and have dependants; $1 = [id, …].
insert into penstock.reviving (job_id, after_id)
select back.id::bigint, 0 from jsonb_array_elements_text($1::jsonb) as back (id)
where exists (select 1 from penstock.edges where parent_id = back.id::bigint)
on conflict (job_id) do update set after_id = 0

-- skipped_because --
-- Dependants that were skipped because of a job: [id, …].
select ended.job_id from penstock.edges join penstock.ended on ended.job_id = edges.child_id
where edges.parent_id = $1 and ended.row_state = 6 and ended.skipped_by = $1

-- edges_of_revived --
-- The next $1 edges of jobs that were put back: [parent, child, was it skipped because of the parent].
select back.job_id, following.child_id, exists (
    select 1 from penstock.ended
    where ended.job_id = following.child_id and ended.row_state = 6 and ended.skipped_by = back.job_id
)
from (select job_id, after_id from penstock.reviving order by job_id limit $1) as back cross join lateral (
    select child_id from penstock.edges where parent_id = back.job_id and child_id > back.after_id
    order by child_id limit $1
) as following
order by back.job_id, following.child_id limit $1

-- drop_reviving --
-- All dependants of all jobs that were put back are collected.
delete from penstock.reviving

-- drop_reviving_below --
-- The same for jobs below an id.
delete from penstock.reviving where job_id < $1

-- collected_to --
-- The dependants of a job that was put back are collected up to this one.
update penstock.reviving set after_id = $2 where job_id = $1

-- judge_later --
-- Notes skipped dependants that are put back unless another job forbids it; $1 = [id, …].
insert into penstock.revivable (job_id)
select value::bigint from jsonb_array_elements_text($1::jsonb) on conflict do nothing

-- next_revivable --
-- The first $1 of them: [id, its first dependant].
select job_id, (select min(child_id) from penstock.edges where parent_id = job_id)
from penstock.revivable order by job_id limit $1

-- drop_revivable --
-- They are judged; $1 = [id, …].
delete from penstock.revivable
where job_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))

-- is_reviving --
-- True while failed jobs or skipped dependants remain to be put back.
select exists (select 1 from penstock.reviving) or exists (select 1 from penstock.revivable)
    or exists (select 1 from penstock.meta where name = 'retries' and value <> '[]')

-- hold_parents --
-- What these dependants wait for does not end before we do; $1 = [child, …].
select hot.job_id from penstock.hot where job_id in (
    select parent_id from penstock.edges
    where child_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))
) order by job_id for share

-- reopen_edges --
-- Edges of a dependant whose parents have not ended as they must.
update penstock.edges set open = true
where child_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))
    and exists (select 1 from penstock.hot where hot.job_id = edges.parent_id)

-- spoilt_by --
-- Parents that keep dependants from running: [child, parent, row_state, key], by parent; $1 = [child, …].
select edges.child_id, ended.job_id, ended.row_state, jobs.key
from penstock.edges join penstock.ended on ended.job_id = edges.parent_id join penstock.jobs on jobs.id = ended.job_id
where edges.child_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))
    and edges.kind = 'success' and ended.row_state in (6, 7, 8)
order by ended.job_id

-- restore_children --
-- Skipped dependants wait again, or are ready; $1 = [id, …], $2 = now: [id, lane, row_state].
with gone as (
    delete from penstock.ended
    where row_state = 6 and job_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))
    returning *
), counted as (
    select gone.*, jobs.lane_id, -greatest(jobs.priority, -9223372036854775807) as rank, octet_length(jobs.payload) as bytes, (
        select count(*) from penstock.edges where child_id = gone.job_id and open
    ) as open_edges
    from gone join penstock.jobs on jobs.id = gone.job_id
)
insert into penstock.hot (
    job_id, lane_id, rank, bytes, row_state, token, ended_token, attempts, crashes, due_at, available_at, pending,
    started_at, updated_at
)
select
    job_id, lane_id, rank, bytes, case when open_edges > 0 then 0 when available_at > $2::bigint then 1 else 2 end,
    token, ended_token, attempts, crashes, due_at, available_at, open_edges, started_at, $2::bigint
from counted
returning job_id, lane_id, row_state

-- old_jobs --
-- The next $4 jobs that ended before $1, above the mark $2, $3: [id, lane, row_state, finished_at, may it go (none of
-- its first $5 dependants is unfinished, no body of it runs, its plan is over, it is of app $6), how many edges it has, counted to $5].
select
    old.job_id, jobs.lane_id, old.row_state, old.finished_at,
    ($6::bigint is null or jobs.app = $6) and not exists (select 1 from penstock.detached where detached.job_id = old.job_id)
    and not exists (select 1 from penstock.plans where plans.id = jobs.plan_id and ended_at + 0 is null) and not exists (
        select 1 from (
            select child_id from penstock.edges where parent_id = old.job_id limit nullif($5::bigint, -1)
        ) as first join penstock.hot on hot.job_id = first.child_id
    ),
    (
        select count(*) from (
            select 1 from penstock.edges where parent_id = old.job_id limit nullif($5::bigint, -1)
        ) as few
    ) + (
        select count(*) from (
            select 1 from penstock.edges where child_id = old.job_id limit nullif($5::bigint, -1)
        ) as few
    )
from (
    select job_id, row_state, finished_at from penstock.ended
    where finished_at < $1 and (finished_at, job_id) > ($2, $3) order by finished_at, job_id limit $4
) as old join penstock.jobs on jobs.id = old.job_id
order by old.finished_at, old.job_id

-- has_unfinished_dependant --
-- True if one of the first $2 dependants of a job has not ended, a body of it still runs, or its plan is not over.
select exists (select 1 from penstock.detached where job_id = $1) or exists (
    select 1 from penstock.jobs join penstock.plans on plans.id = jobs.plan_id
    where jobs.id = $1 and plans.ended_at + 0 is null
) or exists (
    select 1 from (
        select child_id from penstock.edges where parent_id = $1 limit nullif($2::bigint, -1)
    ) as first join penstock.hot on hot.job_id = first.child_id
)

-- hold_ended --
-- Of these ended jobs those for which nobody is enqueueing a dependant, and nobody begins to; $1 = array of ids.
select job_id from penstock.ended where job_id = any($1::bigint[]) order by job_id for update skip locked

-- without_unfinished --
-- Of these jobs those whose dependants have all ended; $1 = array of ids. Asked again when they are held.
select old.id from unnest($1::bigint[]) as old (id) where not exists (
    select 1 from penstock.edges join penstock.hot on hot.job_id = edges.child_id where edges.parent_id = old.id
)

-- forget_soon --
-- A failed or skipped job is cancelled, because its edges are about to go.
update penstock.ended set row_state = 8 where job_id = $1 and row_state in (6, 7)

-- strip_dependants --
-- Forgets the first $2 edges of a job to its dependants.
delete from penstock.edges where parent_id = $1 and child_id in (
    select child_id from penstock.edges where parent_id = $1 order by child_id limit $2
)

-- strip_dependencies --
-- Forgets $2 edges of a job from what it waited for.
delete from penstock.edges where child_id = $1 and parent_id in (
    select parent_id from penstock.edges where child_id = $1 limit $2
)

-- spoilt_by_forgotten --
-- Skipped dependants (the first $2 of each) of jobs to be forgotten that forbid them: [child, parent, row_state, key,
-- what skipped it]; those that are blamed on a forgotten job already are left out; $1 = [id, …].
select child.job_id, parent.job_id, parent.row_state, jobs.key, child.skipped_by
from jsonb_array_elements_text($1::jsonb) as old (id)
join penstock.ended as parent on parent.job_id = old.id::bigint and parent.row_state >= 6
join penstock.jobs on jobs.id = parent.job_id
cross join lateral (
    select child_id from penstock.edges where parent_id = parent.job_id and kind = 'success' order by child_id limit $2
) as first
join penstock.ended as child on child.job_id = first.child_id and child.row_state = 6
where exists (select 1 from penstock.jobs as cause where cause.id = child.skipped_by)

-- purge_history --
-- $1 = [[id, …], …].
delete from penstock.attempts
where job_id = any(array(select (job ->> 0)::bigint from jsonb_array_elements($1::jsonb) as job))

-- purge_edges_to --
-- Edges whose dependant goes.
delete from penstock.edges
where child_id = any(array(select (job ->> 0)::bigint from jsonb_array_elements($1::jsonb) as job))

-- purge_edges_from --
-- Edges whose parent goes.
delete from penstock.edges
where parent_id = any(array(select (job ->> 0)::bigint from jsonb_array_elements($1::jsonb) as job))

-- purge_jobs --
-- $1 = [[id, …], …].
with old as materialized (
    select (job ->> 0)::bigint as id from jsonb_array_elements($1::jsonb) as job
), ends as (
    delete from penstock.ended where job_id = any(array(select id from old))
)
delete from penstock.jobs where id = any(array(select id from old))

-- purge_lanes --
-- Lanes of purged jobs whose whole group has no job any more, as far as nobody is putting one into them; $1 = [lane, …],
-- $2 = [state, …].
delete from penstock.lanes
where id in (
    select id from penstock.lanes
    where id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb))) for update skip locked
) and not exists (select 1 from penstock.ready_lanes where lane_id = lanes.id) and not exists (
    select 1 from jsonb_array_elements_text($2::jsonb) as states (state) where (
        select coalesce(sum(n), 0) from penstock.counters
        where scope = 'group' and counters.state = states.state and name = lanes.grp
    ) + (
        select coalesce(sum(n), 0) from penstock.changes
        where scope = 'group' and changes.state = states.state and name = lanes.grp
    ) > 0
)

-- purge_group_counts --
-- Counters of groups that have come to nothing; $2 = [state, …].
delete from penstock.counters where n = 0 and scope = 'group'
    and state = any(array(select jsonb_array_elements_text($2::jsonb)))
    and name = any(array(select jsonb_array_elements_text($1::jsonb)))

-- highest_token --
-- No lease of this store ever had a greater token.
select greatest(
    coalesce((select max(token) from penstock.hot), 0), coalesce((select max(token) from penstock.ended), 0),
    (select value::bigint from penstock.meta where name = 'token_floor')
)

-- leased_by_lane --
-- How many leases there are: [lane, leases].
select lane_id, count(*) from penstock.hot where row_state = 4 group by lane_id

-- void_history --
-- Every lease was lost; $1 = now, $2 = why.
insert into penstock.attempts (job_id, token, worker, outcome, ended_at, error)
select job_id, token, worker, 'lost', $1::bigint, $2::text from penstock.hot where row_state = 4
on conflict do nothing

-- void_jobs --
-- What was in progress is ready again; a suspect stays one.
update penstock.hot set row_state = case when solo then 3 else 2 end, worker = null, solo = false, updated_at = $1
where row_state = 4

-- void_holders --
-- Nobody holds a limit key.
delete from penstock.held

-- void_detached --
-- No body runs any more.
delete from penstock.detached

-- end_all_workers --
-- Nobody is alive.
update penstock.workers set ended_at = $1 where ended_at is null

-- publish_status --
-- What a worker says of itself.
insert into penstock.worker_status (no, status, status_at)
select no, $2::text, $3::bigint from penstock.workers where id = $1 and ended_at is null
on conflict (no) do update set status = excluded.status, status_at = excluded.status_at

-- list_workers --
-- Workers that have not ended: [id, run, host, pid, started, left of its lease, tasks, status, status_at].
select id, run_id, host, pid, started_at, case when boot_id = $1 then expires_at - $2 else 0 end, tasks,
    status, status_at
from penstock.workers left join penstock.worker_status on worker_status.no = workers.no
where ended_at is null order by workers.no

-- save_learned --
-- What a run has learned about one model of a provider: the last word counts.
insert into penstock.learned_limits (provider, model, document, learned_at) values ($1, $2, $3, $4)
on conflict (provider, model) do update set document = excluded.document, learned_at = excluded.learned_at

-- forget_learned --
-- What is older than $1.
delete from penstock.learned_limits where learned_at < $1

-- list_learned --
-- The first $1 that were learned, the newest first: [provider, model, document, learned_at].
select provider, model, document, learned_at from penstock.learned_limits
order by learned_at desc, provider, model limit $1

-- begin_cooldown --
-- A provider asks for a pause; one that is known and ends later stays. $1 … $6 = provider, model, account, begun, until, document.
insert into penstock.cooldowns (provider, model, account, begun_at, until_at, probed_until, document)
values ($1, $2, $3, $4, $5, 0, $6)
on conflict (provider, model, account) do update set
    begun_at = excluded.begun_at, until_at = excluded.until_at, probed_until = 0, document = excluded.document
where excluded.until_at >= cooldowns.until_at

-- take_probe --
-- The right to probe until $5, if nobody has it; by $4 = now the pause is over, or began later than that since the clock
-- was set back, or $6: it may be probed before its end.
update penstock.cooldowns set probed_until = $5
where provider = $1 and model = $2 and account = $3 and (probed_until <= $4 or probed_until > $5)
    and (until_at <= $4 or begun_at > $4 or $6 = 1)

-- end_cooldown --
-- A probe was answered: nothing is kept of it.
delete from penstock.cooldowns where provider = $1 and model = $2 and account = $3

-- forget_cooldowns --
-- Those that were over before $1.
delete from penstock.cooldowns where until_at < $1

-- list_cooldowns --
-- The first $1, the newest first: [provider, model, account, begun, until, probed until, document].
select provider, model, account, begun_at, until_at, probed_until, document from penstock.cooldowns
order by begun_at desc, provider, model, account limit $1

-- find_calls --
-- Calls by key, held until the commit; $1, $2, $3 = arrays of jobs, fingerprints, ordinals: [call, job, fingerprint,
-- ordinal, state, token, run, day, task, provider, model, begun_at, ended_at, 2 × reserved, 2 × used, bought, reused,
-- resent, estimated, doubts, 2 × doubt, app].
select
    calls.no, calls.job_id, calls.fingerprint, calls.ordinal, calls.state, calls.token, calls.run_id, calls.day,
    calls.task, calls.provider, calls.model, calls.begun_at, calls.ended_at, calls.reserved_micros,
    calls.reserved_tokens, calls.used_micros, calls.used_tokens, calls.bought, calls.reused, calls.resent,
    calls.estimated, calls.doubts, calls.doubt_micros, calls.doubt_tokens,
    calls.app
from unnest($1::bigint[], $2::text[], $3::bigint[]) as wanted (job_id, fingerprint, ordinal)
join penstock.calls on calls.job_id = wanted.job_id and calls.fingerprint = wanted.fingerprint
    and calls.ordinal = wanted.ordinal
order by calls.job_id, calls.fingerprint, calls.ordinal for update of calls

-- job_tokens --
-- The last tokens of jobs; $1 = [job, …]: [job, token].
select wanted.id, now_.token
from (select value::bigint as id from jsonb_array_elements_text($1::jsonb)) as wanted cross join lateral (
    select token from penstock.hot where hot.job_id = wanted.id
    union all
    select token from penstock.ended where ended.job_id = wanted.id
) as now_

-- add_calls --
-- Calls begin; arrays of jobs, fingerprints, ordinals, tokens, runs, days, tasks, providers, models, apps,
-- begun_at, 2 × reserved, resent. Answers those that were new: another process may have begun one of them just now.
insert into penstock.calls (
    job_id, fingerprint, ordinal, state, token, run_id, day, task, provider, model, app, begun_at, reserved_micros,
    reserved_tokens, resent
)
select
    job_id, fingerprint, ordinal, 'open', token, run_id, day, task, provider, model, app, begun_at, micros, tokens,
    resent
from unnest(
    $1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[]
) with ordinality as fresh (
    job_id, fingerprint, ordinal, token, run_id, day, task, provider, model, app, begun_at, micros, tokens, resent, place
) order by place
on conflict (job_id, fingerprint, ordinal) do nothing
returning no

-- was_called --
-- A row if the transaction of this time began or ended a call.
select exists (
    select 1 from penstock.calls where job_id = $1 and fingerprint = $2 and ordinal = $3 and $4 in (begun_at, ended_at)
)

-- reopen_calls --
-- Calls begin again; $1 = [[call, token, run, day, task, provider, model, app, begun_at, 2 × reserved, resent,
-- doubts, 2 × doubt], …].
update penstock.calls set
    state = 'open', token = (call ->> 1)::bigint, run_id = call ->> 2, day = call ->> 3, task = call ->> 4,
    provider = call ->> 5, model = call ->> 6, app = call ->> 7, begun_at = (call ->> 8)::bigint, ended_at = null,
    reserved_micros = (call ->> 9)::bigint, reserved_tokens = (call ->> 10)::bigint, resent = (call ->> 11)::bigint,
    doubts = (call ->> 12)::bigint, doubt_micros = (call ->> 13)::bigint, doubt_tokens = (call ->> 14)::bigint
from jsonb_array_elements($1::jsonb) as call where no = (call ->> 0)::bigint

-- change_calls --
-- Arrays of calls, states, ended_at, 2 × reserved, 2 × used, bought, reused, estimated.
update penstock.calls set
    state = new.state, ended_at = new.ended_at, reserved_micros = new.micros, reserved_tokens = new.tokens,
    used_micros = new.used_micros, used_tokens = new.used_tokens, bought = new.bought, reused = new.reused,
    estimated = new.estimated
from unnest(
    $1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bigint[], $10::bigint[]
) as new (call, state, ended_at, micros, tokens, used_micros, used_tokens, bought, reused, estimated)
where no = new.call

-- keep_answers --
-- Answers of calls; arrays of calls, status, headers, bodies, 2 × used, input, output.
insert into penstock.answers (call, status, headers, body, used_micros, used_tokens, input_tokens, output_tokens)
select * from unnest(
    $1::bigint[], $2::bigint[], $3::text[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[]
) as fresh (call, status, headers, body, used_micros, used_tokens, input_tokens, output_tokens)

-- drop_answers --
-- $1 = [call, …].
delete from penstock.answers where call = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))

-- lock_accounts --
-- Of these accounts one transaction reserves at a time; in one order, so that nobody waits in a ring.
select pg_advisory_xact_lock(7310, place) from (
    select distinct hashtext(name) as place from unnest($1::text[]) as wanted (name) order by 1
) as ordered

-- try_lock_accounts --
-- The same without waiting; true if all were locked.
select bool_and(pg_try_advisory_xact_lock(7310, hashtext(name))) from unnest($1::text[]) as wanted (name)

-- add_to_accounts --
-- Merged change of the accounts; $1 = [[scope, period, span, app, 2 × spent, 2 × reserved, bought, reused,
-- resent, estimated, 2 × doubt], …]. Differs from sqlite as add_counts does.
insert into penstock.account_changes (
    scope, period, span, app, spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent, estimated,
    doubt_micros, doubt_tokens
)
select
    change ->> 0, change ->> 1, change ->> 2, change ->> 3, (change ->> 4)::bigint, (change ->> 5)::bigint,
    (change ->> 6)::bigint, (change ->> 7)::bigint, (change ->> 8)::bigint, (change ->> 9)::bigint,
    (change ->> 10)::bigint, (change ->> 11)::bigint, (change ->> 12)::bigint, (change ->> 13)::bigint
from jsonb_array_elements($1::jsonb) as change

-- count_account_changes --
-- About how many changes of the accounts are not merged yet.
select coalesce((select max(no) from penstock.account_changes) - (select min(no) from penstock.account_changes), 0)

-- merge_account_changes --
-- Adds up to $1 changes to the accounts.
with gone as (
    delete from penstock.account_changes where no in (
        select no from penstock.account_changes order by no limit $1 for update skip locked
    ) returning scope, period, span, app, spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent,
        estimated, doubt_micros, doubt_tokens
)
insert into penstock.accounts as kept (
    scope, period, span, app, spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent, estimated,
    doubt_micros, doubt_tokens
)
select
    scope, period, span, app, sum(spent_micros), sum(spent_tokens), sum(reserved_micros), sum(reserved_tokens), sum(bought),
    sum(reused), sum(resent), sum(estimated), sum(doubt_micros), sum(doubt_tokens)
from gone group by scope, period, span, app order by span, period, scope, app
on conflict (span, period, scope, app) do update set
    spent_micros = kept.spent_micros + excluded.spent_micros, spent_tokens = kept.spent_tokens + excluded.spent_tokens,
    reserved_micros = kept.reserved_micros + excluded.reserved_micros,
    reserved_tokens = kept.reserved_tokens + excluded.reserved_tokens,
    bought = kept.bought + excluded.bought, reused = kept.reused + excluded.reused,
    resent = kept.resent + excluded.resent, estimated = kept.estimated + excluded.estimated,
    doubt_micros = kept.doubt_micros + excluded.doubt_micros, doubt_tokens = kept.doubt_tokens + excluded.doubt_tokens

-- read_accounts --
-- Accounts; $1 = [[scope, period, span, app], …]: [scope, period, span, app, 2 × spent, 2 × reserved, bought, reused, resent,
-- estimated, 2 × doubt].
select
    wanted.scope, wanted.period, wanted.span, wanted.app, sum(spent_micros)::bigint, sum(spent_tokens)::bigint,
    sum(reserved_micros)::bigint, sum(reserved_tokens)::bigint, sum(bought)::bigint, sum(reused)::bigint,
    sum(resent)::bigint, sum(estimated)::bigint, sum(doubt_micros)::bigint, sum(doubt_tokens)::bigint
from (
    select account ->> 0 as scope, account ->> 1 as period, account ->> 2 as span, account ->> 3 as app
    from jsonb_array_elements($1::jsonb) as account
) as wanted cross join lateral (
    select
        spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent, estimated, doubt_micros,
        doubt_tokens
    from penstock.accounts
    where accounts.span = wanted.span and accounts.period = wanted.period and accounts.scope = wanted.scope
        and accounts.app = wanted.app
    union all
    select
        spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent, estimated, doubt_micros,
        doubt_tokens
    from penstock.account_changes
    where account_changes.span = wanted.span and account_changes.period = wanted.period
        and account_changes.scope = wanted.scope and account_changes.app = wanted.app
) as parts group by 1, 2, 3, 4

-- list_accounts --
-- All accounts of some runs and days; $1 = [span, …].
select
    scope, period, span, app, sum(spent_micros)::bigint, sum(spent_tokens)::bigint, sum(reserved_micros)::bigint,
    sum(reserved_tokens)::bigint, sum(bought)::bigint, sum(reused)::bigint, sum(resent)::bigint, sum(estimated)::bigint,
    sum(doubt_micros)::bigint, sum(doubt_tokens)::bigint
from (
    select
        scope, period, span, app, spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent,
        estimated, doubt_micros, doubt_tokens
    from penstock.accounts where span = any(array(select jsonb_array_elements_text($1::jsonb)))
    union all
    select
        scope, period, span, app, spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent,
        estimated, doubt_micros, doubt_tokens
    from penstock.account_changes where span = any(array(select jsonb_array_elements_text($1::jsonb)))
) as parts group by scope, period, span, app order by scope, period, span, app

-- read_calls --
-- Every call of a job, in the order of their beginning; the columns of find_calls.
select
    no, job_id, fingerprint, ordinal, state, token, run_id, day, task, provider, model, begun_at, ended_at,
    reserved_micros, reserved_tokens, used_micros, used_tokens, bought, reused, resent, estimated,
    doubts, doubt_micros, doubt_tokens, app
from penstock.calls where job_id = $1 order by begun_at, no

-- read_newest_calls --
-- The last $1 calls, the newest first: the columns of find_calls, then [key of the job, is it in hand].
select
    calls.no, calls.job_id, calls.fingerprint, calls.ordinal, calls.state, calls.token, calls.run_id, calls.day, calls.task,
    calls.provider, calls.model, calls.begun_at, calls.ended_at, calls.reserved_micros, calls.reserved_tokens,
    calls.used_micros, calls.used_tokens, calls.bought, calls.reused, calls.resent, calls.estimated, calls.doubts,
    calls.doubt_micros, calls.doubt_tokens, calls.app, jobs.key,
    calls.ended_at is null and exists (
        select 1 from penstock.hot where hot.job_id = calls.job_id and hot.row_state = 4 and hot.token = calls.token
    )
from penstock.calls left join penstock.jobs on jobs.id = calls.job_id order by calls.no desc limit $1

-- read_call_answer --
-- The answer of a call by its key: [status, headers, body, 2 × used, input, output].
select answers.status, answers.headers, answers.body, answers.used_micros, answers.used_tokens, answers.input_tokens,
    answers.output_tokens
from penstock.calls join penstock.answers on answers.call = calls.no
where calls.job_id = $1 and calls.fingerprint = $2 and calls.ordinal = $3

-- sum_calls_of --
-- Sums over the calls of a job: [bought, reused, in doubt, micros, tokens, resent, estimated, 2 × doubt].
select
    coalesce(sum(bought), 0)::bigint, coalesce(sum(reused), 0)::bigint, coalesce(sum(doubts + is_doubtful), 0)::bigint,
    coalesce(sum(used_micros), 0)::bigint, coalesce(sum(used_tokens), 0)::bigint, coalesce(sum(resent), 0)::bigint,
    coalesce(sum(estimated), 0)::bigint, coalesce(sum(doubt_micros + is_doubtful * reserved_micros), 0)::bigint,
    coalesce(sum(doubt_tokens + is_doubtful * reserved_tokens), 0)::bigint
from (
    select *, (ended_at is null and not exists (
        select 1 from penstock.hot where hot.job_id = calls.job_id and hot.row_state = 4 and hot.token = calls.token
    ))::int as is_doubtful from penstock.calls where job_id = $1
) as found

-- read_call_counts --
-- Sums over all calls that are kept, from the counters.
select state, sum(n)::bigint from (
    select state, n from penstock.counters where scope = 'calls' and name = ''
    union all
    select state, n from penstock.changes where scope = 'calls' and name = ''
) as counts group by state

-- sum_in_hand --
-- Calls begun by the present leases of their jobs and not ended: [run, day, task, provider, model, app, count, 2 × reserved].
select
    found.run_id, found.day, found.task, found.provider, found.model, found.app, count(*), sum(found.reserved_micros)::bigint,
    sum(found.reserved_tokens)::bigint
from penstock.hot cross join lateral (
    select * from penstock.calls
    where calls.job_id = hot.job_id and calls.token = hot.token and calls.ended_at is null
) as found where hot.row_state = 4
group by found.run_id, found.day, found.task, found.provider, found.model, found.app

-- doubtful_calls --
-- The unended calls of an app that no present lease has in hand, held until the commit; the columns of find_calls.
select
    no, job_id, fingerprint, ordinal, state, token, run_id, day, task, provider, model, begun_at, ended_at,
    reserved_micros, reserved_tokens, used_micros, used_tokens, bought, reused, resent, estimated,
    doubts, doubt_micros, doubt_tokens, app
from penstock.calls where app = $1 and ended_at is null and not exists (
    select 1 from penstock.hot where hot.job_id = calls.job_id and hot.row_state = 4 and hot.token = calls.token
) order by job_id, fingerprint, ordinal for update of calls

-- doubt_calls --
-- The reserves of calls become doubts; $1 = [[call, 2 × doubt], …].
update penstock.calls set
    reserved_micros = 0, reserved_tokens = 0, doubt_micros = (call ->> 1)::bigint, doubt_tokens = (call ->> 2)::bigint
from jsonb_array_elements($1::jsonb) as call where no = (call ->> 0)::bigint

-- reset_accounts --
-- Accounts begin at zero, but for what is reserved; $1 = [[scope, period, span, app], …].
update penstock.accounts set
    spent_micros = 0, spent_tokens = 0, bought = 0, reused = 0, resent = 0, estimated = 0, doubt_micros = 0,
    doubt_tokens = 0
from jsonb_array_elements($1::jsonb) as account
where span = account ->> 2 and period = account ->> 1 and scope = account ->> 0 and app = account ->> 3

-- calls_of_jobs --
-- The first $2 calls of jobs, held until the commit; $1 = [job, …].
select no from penstock.calls where job_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))
order by job_id, fingerprint, ordinal limit $2 for update

-- unended_calls --
-- Those of calls that have not ended; $1 = [call, …]; the columns of find_calls.
select
    no, job_id, fingerprint, ordinal, state, token, run_id, day, task, provider, model, begun_at, ended_at,
    reserved_micros, reserved_tokens, used_micros, used_tokens, bought, reused, resent, estimated,
    doubts, doubt_micros, doubt_tokens, app
from penstock.calls where no = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb))) and ended_at is null

-- sum_calls --
-- $1 = [call, …]: [bought, reused, micros, tokens, resent, estimated, doubts, 2 × doubt].
select
    coalesce(sum(bought), 0)::bigint, coalesce(sum(reused), 0)::bigint, coalesce(sum(used_micros), 0)::bigint,
    coalesce(sum(used_tokens), 0)::bigint, coalesce(sum(resent), 0)::bigint, coalesce(sum(estimated), 0)::bigint,
    coalesce(sum(doubts), 0)::bigint, coalesce(sum(doubt_micros), 0)::bigint, coalesce(sum(doubt_tokens), 0)::bigint
from penstock.calls where no = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))

-- drop_calls --
-- $1 = [call, …].
delete from penstock.calls where no = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))

-- jobs_with_calls --
-- The next $3 jobs with calls above an id, by skip-scan: [job, has it ended before $2, or is it not there, and
-- is it of app $4].
with recursive found (job_id, n) as (
    (select job_id, 1 from penstock.calls where job_id > $1 order by job_id limit 1)
    union all
    select following.job_id, found.n + 1 from found cross join lateral (
        select job_id from penstock.calls where calls.job_id > found.job_id order by job_id limit 1
    ) as following where found.n < $3
)
select job_id, (select 1 from penstock.hot where hot.job_id = found.job_id) is null and coalesce(
    (select finished_at from penstock.ended where ended.job_id = found.job_id) < $2, true
) and coalesce((select jobs.app = $4::bigint from penstock.jobs where jobs.id = found.job_id), true) from found

-- save_run --
-- A run is told of; the one that was told of for the first time last has begun last.
insert into penstock.runs (run_id, turn) values ($1, nextval('penstock.turns'))
on conflict (run_id) do nothing

-- save_run_part --
-- What a worker says of its part of a run: the last word counts.
insert into penstock.run_parts (run_id, worker, saved_at, document) values ($1, $2, $3, $4)
on conflict (run_id, worker) do update set saved_at = excluded.saved_at, document = excluded.document

-- old_runs --
-- Runs but for the last $1 and those that go on; not those that somebody else is at.
select run_id from penstock.runs
where run_id = any(array(select run_id from penstock.runs order by turn desc offset $1))
    and run_id <> all(array(select run_id from penstock.workers where ended_at is null))
for update skip locked

-- forget_run_parts --
-- $1 = [run, …].
delete from penstock.run_parts where run_id = any(array(select jsonb_array_elements_text($1::jsonb)))

-- forget_run_accounts --
-- What runs spent, but for accounts of which something is still reserved or not merged; $1 = [run, …].
delete from penstock.accounts where span = any(array(select jsonb_array_elements_text($1::jsonb)))
    and period = 'run' and reserved_micros = 0 and reserved_tokens = 0 and not exists (
        select 1 from penstock.account_changes where account_changes.span = accounts.span
            and account_changes.period = accounts.period and account_changes.scope = accounts.scope
            and account_changes.app = accounts.app
    )

-- has_old_days --
-- True if there are accounts of days before $1.
select exists (select 1 from penstock.accounts where span < $1 and period = 'day')
    or exists (select 1 from penstock.account_changes where span < $1 and period = 'day')

-- forget_day_accounts --
-- What was spent on days before $1, but for accounts of which something is still reserved or not merged.
delete from penstock.accounts where span < $1 and period = 'day' and reserved_micros = 0 and reserved_tokens = 0
    and not exists (
        select 1 from penstock.account_changes where account_changes.span = accounts.span
            and account_changes.period = accounts.period and account_changes.scope = accounts.scope
            and account_changes.app = accounts.app
    )

-- forget_runs --
-- $1 = [run, …].
delete from penstock.runs where run_id = any(array(select jsonb_array_elements_text($1::jsonb)))

-- list_runs --
-- The last $1 runs, the newest first.
select run_id from penstock.runs order by turn desc limit $1

-- read_run_parts --
-- What the workers of a run say: [worker, saved_at, document].
select worker, saved_at, document from penstock.run_parts where run_id = $1 order by worker

-- hold_units --
-- Jobs by key that have not ended and do not run; nobody leases or ends them before we are done. Those that run are
-- not waited for: so who arms does not wait for ticks.
select hot.job_id from penstock.jobs join penstock.hot on hot.job_id = jobs.id
where jobs.key = any($1::text[]) and jobs.app = $2 and hot.row_state + 0 <> 4 order by hot.job_id for update of hot

-- hold_ended_units --
-- Jobs by key that have ended; nobody puts them back before we are done.
select ended.job_id from penstock.jobs join penstock.ended on ended.job_id = jobs.id
where jobs.key = any($1::text[]) and jobs.app = $2 order by ended.job_id for update of ended

-- find_units --
-- Jobs of app $2 by key, as units if they are some; $1 = array of keys: [key, job, lane, row_state, due_at, partition, payload, app,
-- timing, last_due_at, retired_at, available_at].
select
    jobs.key, jobs.id, jobs.lane_id, now_.row_state, now_.due_at, jobs.partition, jobs.payload, units.app, units.timing,
    units.last_due_at, units.retired_at, now_.available_at
from penstock.jobs
join lateral (
    select row_state, due_at, available_at from penstock.hot where hot.job_id = jobs.id
    union all
    select row_state, due_at, available_at from penstock.ended where ended.job_id = jobs.id
) as now_ on true
left join penstock.units on units.job_id = jobs.id
where jobs.key = any($1::text[]) and jobs.app = $2

-- insert_units --
-- Jobs are units from now on; $1 = [[job, key, timing], …], $2 = app.
insert into penstock.units (job_id, key, app, timing)
select (unit ->> 0)::bigint, unit ->> 1, $2::text, unit ->> 2 from jsonb_array_elements($1::jsonb) as unit

-- change_units --
-- Known units are armed as they are planned now; $1 = [[job, timing], …], $2 = app.
update penstock.units set app = $2::text, timing = armed.value ->> 1, retired_at = null
from jsonb_array_elements($1::jsonb) as armed where units.job_id = (armed.value ->> 0)::bigint

-- replan_jobs --
-- What a unit's job is planned as, when it does not run; $1 = [[job, lane, partition, payload], …].
with armed as materialized (
    select (job ->> 0)::bigint as id, (job ->> 1)::bigint as lane_id, job ->> 2 as partition, job ->> 3 as payload
    from jsonb_array_elements($1::jsonb) as job
), moved as (
    update penstock.hot set lane_id = armed.lane_id, bytes = octet_length(armed.payload)
    from armed where hot.job_id = armed.id
)
update penstock.jobs set lane_id = armed.lane_id, partition = armed.partition, payload = armed.payload
from armed where jobs.id = armed.id

-- start_units --
-- Units that have not ended start afresh; $1 = [[job, row_state, due_at, available_at], …], $2 = now.
update penstock.hot set
    row_state = (armed.value ->> 1)::smallint, due_at = (armed.value ->> 2)::bigint,
    available_at = (armed.value ->> 3)::bigint, attempts = 0, crashes = 0, losses = 0, deferred_since = null, error = null,
    updated_at = $2::bigint
from jsonb_array_elements($1::jsonb) as armed where hot.job_id = (armed.value ->> 0)::bigint

-- revive_units --
-- The same for those that have ended. The row of an end is the history of its attempt: it is kept.
with armed as materialized (
    select
        (job ->> 0)::bigint as job_id, (job ->> 1)::smallint as row_state, (job ->> 2)::bigint as due_at,
        (job ->> 3)::bigint as available_at
    from jsonb_array_elements($1::jsonb) as job
), gone as (
    delete from penstock.ended using armed where ended.job_id = armed.job_id
    returning ended.*, armed.row_state as first_state, armed.due_at as first_at, armed.available_at as tried_at
), kept as (
    insert into penstock.attempts (job_id, token, worker, outcome, started_at, ended_at, error)
    select
        job_id, token, worker, case row_state when 5 then 'done' when 6 then 'skipped' else 'error' end, started_at,
        finished_at, error
    from gone where worker is not null
    on conflict do nothing
)
insert into penstock.hot (
    job_id, lane_id, rank, bytes, row_state, token, ended_token, due_at, available_at, started_at, updated_at, result
)
select
    gone.job_id, jobs.lane_id, -greatest(jobs.priority, -9223372036854775807), octet_length(jobs.payload), gone.first_state,
    gone.token, gone.ended_token, gone.first_at, gone.tried_at, gone.started_at, $2::bigint, gone.result
from gone join penstock.jobs on jobs.id = gone.job_id

-- hasten_units --
-- Units that wait are tried earlier; $1 = [[job, available_at], …], $2 = now.
update penstock.hot set available_at = (sooner.value ->> 1)::bigint, updated_at = $2::bigint
from jsonb_array_elements($1::jsonb) as sooner where hot.job_id = (sooner.value ->> 0)::bigint and row_state + 0 = 1

-- cancel_units --
-- Units that do not run end, so that nobody leases them; $1 = [job, …], $2 = now.
with gone as (
    delete from penstock.hot
    where job_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb))) and row_state + 0 < 4
    returning *
)
insert into penstock.ended (
    job_id, row_state, token, ended_token, attempts, crashes, deferred_since, due_at, available_at, started_at,
    finished_at, updated_at, result, error
)
select
    job_id, 8, token, ended_token, attempts, crashes, deferred_since, due_at, available_at, started_at, $2::bigint,
    $2::bigint, result, error
from gone

-- cancel_failed --
-- Units that had failed for good are cancelled, so that no retry puts them back; $1 = [job, …], $2 = now.
update penstock.ended set row_state = 8, finished_at = $2, updated_at = $2
where job_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb))) and row_state + 0 = 7

-- retire_units --
-- $1 = [job, …], $2 = now.
update penstock.units set retired_at = $2
where job_id = any(array(select value::bigint from jsonb_array_elements_text($1::jsonb)))

-- add_pause --
-- A unit, or all of a schedule, of app $1 is paused, unless it is.
insert into penstock.pauses (app, name, paused_at) values ($1, $2, $3) on conflict do nothing

-- drop_pause --
-- The pause of a name of app $1 ends.
delete from penstock.pauses where app = $1 and name = $2

-- find_pauses --
-- Those of the names $1 = [name, …] of app $2 that are paused. Differs from sqlite because nobody may end such a pause
-- before what was leased is laid aside: it would stay there.
select name from penstock.pauses
where app = $2 and name = any(array(select jsonb_array_elements_text($1::jsonb))) order by name for share

-- list_pauses --
-- What is paused of an app, or of all, by name; at most $2.
select distinct name from penstock.pauses where $1::bigint is null or app = $1 order by name limit $2

-- copy_pauses --
-- What is paused of app $1 is paused of app $2.
insert into penstock.pauses (app, name, paused_at)
select $2::bigint, name, paused_at from penstock.pauses where app = $1 on conflict do nothing

-- drop_pauses --
-- Nothing of an app is paused.
delete from penstock.pauses where app = $1

-- lay_aside --
-- Units that were leased just now wait, since they are paused; $1 = ids, $2 = now.
update penstock.hot set row_state = 0, worker = null, solo = false, cell = 0, updated_at = $2
where job_id = any($1::bigint[]) and row_state + 0 = 4

-- resume_units --
-- The unit, or all units of the schedule, $1 of app $2 that wait are due again; $3 = now. Answers their lanes.
update penstock.hot set row_state = 1, updated_at = $3 where row_state + 0 = 0 and job_id in (
    select units.job_id from penstock.units join penstock.jobs on jobs.id = units.job_id
    join penstock.lanes on lanes.id = jobs.lane_id
    where units.key >= $1 and units.key < $1 || ';' and jobs.app = $2 and $1 in (units.key, lanes.task)
) returning lane_id

-- forget_cursors --
-- $1 = [name, …].
delete from penstock.cursors where name = any(array(select jsonb_array_elements_text($1::jsonb)))

-- count_ticks --
-- How the ticks of units went; $1 = [[job, ticks, missed, failed, last_tick_at, last_due_at], …].
update penstock.units set
    ticks = ticks + (went.value ->> 1)::bigint, missed = missed + (went.value ->> 2)::bigint,
    failed = failed + (went.value ->> 3)::bigint, last_tick_at = coalesce((went.value ->> 4)::bigint, last_tick_at),
    last_due_at = coalesce((went.value ->> 5)::bigint, last_due_at)
from jsonb_array_elements($1::jsonb) as went where units.job_id = (went.value ->> 0)::bigint

-- bound_history --
-- Keeps the newest $2 rows of the history of those jobs that are units; $1 = [job, …].
delete from penstock.attempts using (
    select units.job_id, (
        select token from penstock.attempts where attempts.job_id = units.job_id order by token desc limit 1 offset $2
    ) as last
    from jsonb_array_elements_text($1::jsonb) as grown (job_id)
    join penstock.units on units.job_id = grown.job_id::bigint
) as bound where attempts.job_id = bound.job_id and attempts.token <= bound.last

-- leased_units --
-- Units that run now.
select hot.job_id from penstock.hot join penstock.units on units.job_id = hot.job_id where hot.row_state = 4

-- purge_units --
-- Units whose jobs go; $1 = [[job, …], …].
delete from penstock.units
where job_id = any(array(select (job ->> 0)::bigint from jsonb_array_elements($1::jsonb) as job))

-- list_units --
-- Units of an app above a key, at most $3.
select * from penstock.unit_rows where app = $1 and key > $2 order by key limit $3

-- list_all_units --
-- Units above a key, about $2: all that share the last key.
select * from penstock.unit_rows where key > $1 and key <= (
    select max(key) from (select key from penstock.units where key > $1 order by key limit $2) as page
) order by key, app

-- read_unit --
-- Units by key, of an app or of all.
select * from penstock.unit_rows where key = $1
    and ($2::bigint is null or app = (
        select units.app from penstock.jobs join penstock.units on units.job_id = jobs.id
        where jobs.key = $1 and jobs.app = $2
    )) order by app

-- read_cursors --
-- Durable values, by name; $1 = [name, …].
select name, value from penstock.cursors where name = any(array(select jsonb_array_elements_text($1::jsonb)))

-- keep_preflights --
-- What checks came to, the last word on each; $1 = [[unit, name, partition, value, error, checked_at], …], $2 = app.
insert into penstock.preflights (unit, app, name, partition, value, error, checked_at)
select one ->> 0, $2::text, one ->> 1, one ->> 2, one ->> 3, one ->> 4, (one ->> 5)::bigint
from jsonb_array_elements($1::jsonb) as one
on conflict (app, unit) do update set
    name = excluded.name, partition = excluded.partition, value = excluded.value,
    error = excluded.error, checked_at = excluded.checked_at

-- list_preflights --
-- What checks of an app came to, above a unit, at most $3: [unit, name, partition, value, error, checked_at].
select unit, name, partition, value, error, checked_at from penstock.preflights
where app = $1 and unit > $2 order by unit limit $3

-- read_preflights --
-- What some checks of an app came to; $2 = [unit, …]: [unit, name, partition, value, error, checked_at].
select unit, name, partition, value, error, checked_at from penstock.preflights
where app = $1 and unit = any(array(select jsonb_array_elements_text($2::jsonb)))

-- list_failed_preflights --
-- Checks of all apps that did not pass, at most $1: [unit, name, partition, value, error, checked_at].
select unit, name, partition, null::text, error, checked_at from penstock.preflights
where error is not null order by unit limit $1

-- forget_preflights --
-- What was checked before a time.
delete from penstock.preflights where app = $1 and checked_at < $2

-- read_task_counts --
-- Counters by task, of an app or of all.
select name, state, sum(n)::bigint from (
    select no, name, state, n from penstock.app_counts where $1::bigint is null or no = $1
) as counts group by name, state having sum(n) <> 0

-- read_group_names --
-- About the first $2 groups with jobs in a state. Differs from sqlite because a group may stand in changes only.
with net as materialized (
    select name, sum(n) as n from penstock.changes where scope = 'group' and state = $1 group by name
)
select name from (
    (
        select name from penstock.counters where scope = 'group' and state = $1 and n > 0
            and not exists (select 1 from net where net.name = counters.name and net.n + counters.n <= 0)
        order by name limit $2
    )
    union
    select name from net where n + coalesce((
        select n from penstock.counters where scope = 'group' and state = $1 and counters.name = net.name
    ), 0) > 0
) as names order by name limit $2

-- read_group_counts --
-- Counters of groups; $1 = [group, …], $2 = [state, …].
select name, state, sum(n)::bigint from (
    select name, state, n from penstock.counters
    where scope = 'group' and state = any(array(select jsonb_array_elements_text($2::jsonb)))
        and name = any(array(select jsonb_array_elements_text($1::jsonb)))
    union all
    select name, state, n from penstock.changes
    where scope = 'group' and state = any(array(select jsonb_array_elements_text($2::jsonb)))
        and name = any(array(select jsonb_array_elements_text($1::jsonb)))
) as counts group by name, state having sum(n) <> 0

-- count_groups --
-- How many groups have or had jobs; no more than 100,001 are counted.
select count(*) from (
    select distinct name from (
        select name from penstock.counters where scope = 'group'
        union all
        select name from penstock.changes where scope = 'group'
    ) as names limit 100001
) as few

-- oldest_ready --
-- When the longest waiting ready job fell due: the first of each lane and priority, by skip-scan; no more than $1
-- of them are asked.
with recursive firsts (lane_id, rank, available_at, n) as (
    (
        select lane_id, rank, available_at, 1 from penstock.hot where row_state = 2
        order by lane_id, rank, available_at, job_id limit 1
    )
    union all
    select following.lane_id, following.rank, following.available_at, firsts.n + 1
    from firsts cross join lateral (
        (
            select lane_id, rank, available_at, 0 as place from penstock.hot
            where row_state = 2 and lane_id = firsts.lane_id and rank > firsts.rank
            order by rank, available_at, job_id limit 1
        )
        union all
        (
            select lane_id, rank, available_at, 1 from penstock.hot
            where row_state = 2 and lane_id > firsts.lane_id
            order by lane_id, rank, available_at, job_id limit 1
        )
        order by place limit 1
    ) as following where firsts.n < $1::bigint
)
select min(available_at) from firsts

-- count_workers --
-- Workers that are alive.
select count(*) from penstock.workers where ended_at is null and boot_id = $1 and expires_at > $2

-- tasks_elsewhere --
-- What other live workers of app $4 know, or of all.
select tasks from penstock.workers where ended_at is null and boot_id = $1 and expires_at > $2 and id <> $3
    and ($4::bigint is null or app = $4)

-- read_run_counts --
-- How many leases ended for good in a run, by end; $2 = [state, …].
select state, sum(n)::bigint from (
    select state, n from penstock.counters
    where scope = 'run' and state = any(array(select jsonb_array_elements_text($2::jsonb))) and name = $1
    union all
    select state, n from penstock.changes
    where scope = 'run' and state = any(array(select jsonb_array_elements_text($2::jsonb))) and name = $1
) as counts group by state

-- anything_to_lease --
-- True if a lease call would find something; $1 = now, $2, $3 = the server's life and time, $4 = app.
select
    exists (select 1 from penstock.ready_lanes where parked_on is null and app = $4)
    or exists (select 1 from penstock.hot where row_state = 1 and available_at <= $1)
    or exists (
        select 1 from penstock.hot join penstock.lanes on lanes.id = hot.lane_id
        where hot.row_state = 3 and lanes.app = $4
    )
    or exists (select 1 from penstock.open_keys) or exists (select 1 from penstock.settling)
    or exists (select 1 from penstock.reviving) or exists (select 1 from penstock.revivable)
    or exists (select 1 from penstock.meta where name = 'retries' and value <> '[]')
    or exists (select 1 from penstock.workers where ended_at is null and (boot_id <> $2 or expires_at <= $3))

-- read_job --
-- Jobs for people, by key, of an app or of all.
select * from penstock.job_rows where key = $1 and ($2::bigint is null or app_no = $2) order by id

-- list_jobs --
-- Jobs for people with ids above $1 up to $2; $3, $4 = bounds of row_state, $5 = task, $6 = most, $7 = app.
select * from penstock.job_rows
where id > $1 and id <= $2 and row_state between $3 and $4 and ($5::text is null or task = $5)
    and ($7::bigint is null or app_no = $7)
order by id limit $6

-- window_end --
-- The id of the last of the next $2 jobs above an id.
select max(id) from (select id from penstock.jobs where id > $1 order by id limit $2) as few

-- end_window --
-- The end of the last of the next $3 jobs that ended after the mark $1, $2: [finished_at, id].
select finished_at, job_id from (
    select finished_at, job_id from penstock.ended where (finished_at, job_id) > ($1, $2) order by finished_at, job_id limit $3
) as few order by finished_at desc, job_id desc limit 1

-- list_results --
-- Done jobs of task $5 that ended after the mark $1, $2 up to $3, $4, of app $6, at most $7, and as many as have $8 bytes of
-- results and one more: [id, finished_at, key, result].
select job_id, finished_at, key, result from (
    select ended.job_id, ended.finished_at, jobs.key, ended.result, sum(coalesce(octet_length(ended.result), 0)) over (
        order by ended.finished_at, ended.job_id rows between unbounded preceding and 1 preceding
    ) as bytes_before
    from penstock.ended join penstock.jobs on jobs.id = ended.job_id join penstock.lanes on lanes.id = jobs.lane_id
    where (ended.finished_at, ended.job_id) > ($1, $2) and (ended.finished_at, ended.job_id) <= ($3, $4)
        and ended.row_state = 5 and lanes.task = $5 and ($6::bigint is null or jobs.app = $6)
) as found where coalesce(bytes_before, 0) <= $8 order by finished_at, job_id limit $7

-- list_upstream --
-- What a job was enqueued after and what it returned, in that order: [key, task, row_state, result].
select parent.key, lanes.task, states.row_state, coalesce(ended.result, hot.result)
from penstock.edges join penstock.jobs as parent on parent.id = edges.parent_id
join penstock.lanes on lanes.id = parent.lane_id join penstock.states on states.job_id = parent.id
left join penstock.ended on ended.job_id = parent.id left join penstock.hot on hot.job_id = parent.id
where edges.child_id = $1 order by edges.ordinal, edges.parent_id

-- list_unhappy --
-- Jobs for people above an id that ended otherwise than done; $2 = row_state, $3 = task, $4 = most, $5 = app.
select job_rows.* from (
    select ended.job_id from penstock.ended join penstock.jobs on jobs.id = ended.job_id
    join penstock.lanes on lanes.id = jobs.lane_id
    where ended.row_state >= 6 and ended.row_state = $2 and ended.job_id > $1 and ($3::text is null or lanes.task = $3)
        and ($5::bigint is null or jobs.app = $5)
    order by ended.job_id limit $4
) as wanted join penstock.job_rows on job_rows.id = wanted.job_id order by job_rows.id

-- next_waiting --
-- The first waiting job above an id.
select min(job_id) from penstock.hot where row_state = 0 and job_id > $1

-- next_queued --
-- The first queued job above an id.
select min(job_id) from penstock.hot where row_state between 1 and 3 and job_id > $1

-- next_in_progress --
-- The first job above an id that is in progress.
select min(job_id) from penstock.hot where row_state = 4 and job_id > $1

-- keys_between --
-- The first keys from $1 to before $2.
select distinct key from penstock.jobs where key >= $1 and key < $2 order by key limit $3

-- read_attempts --
-- The history of a job, by id. Differs from sqlite because the row of its end is the history of its last attempt.
select history.token, coalesce(workers.id, 'worker ' || history.worker), history.outcome, history.started_at,
    history.ended_at, history.error
from penstock.jobs cross join lateral (
    select token, worker, outcome, started_at, ended_at, error from penstock.attempts where attempts.job_id = jobs.id
    union all
    select token, worker, case row_state when 5 then 'done' when 6 then 'skipped' else 'error' end, started_at,
        finished_at, error
    from penstock.ended where ended.job_id = jobs.id and ended.worker is not null and not exists (
        select 1 from penstock.attempts where attempts.job_id = ended.job_id and attempts.token = ended.token
    )
) as history left join penstock.workers on workers.no = history.worker
where jobs.id = $1 order by history.token

-- read_dependencies --
-- What a job waits for or waited for, open ones first, at most $2: [key, kind, row_state, open].
select jobs.key, edges.kind, states.row_state, edges.open
from penstock.edges join penstock.jobs on jobs.id = edges.parent_id
join penstock.states on states.job_id = edges.parent_id
where edges.child_id = $1 order by edges.open desc, edges.parent_id limit $2

-- read_skipped_by --
-- The job because of which a job was skipped.
select jobs.key from penstock.ended join penstock.jobs on jobs.id = ended.skipped_by where ended.job_id = $1

-- read_detached --
-- Workers that may still run a body of a job under a lease that is over.
select workers.id from penstock.detached join penstock.workers on workers.no = detached.worker
where detached.job_id = $1

-- read_holders --
-- Leases that hold a limit key, at most $2: [job, worker, leased at, is detached].
select jobs.key, workers.id, case when detached.job_id is null then hot.updated_at end, detached.job_id is not null
from penstock.held join penstock.jobs on jobs.id = held.job_id
left join penstock.hot on hot.job_id = held.job_id
left join penstock.detached on detached.job_id = held.job_id and detached.token = held.token
left join penstock.workers on workers.no = coalesce(detached.worker, hot.worker)
where held.limit_key = $1 order by held.job_id + 0, held.token limit $2

-- check_task_counts --
-- Counters that are not a count: [task, state, counted, kept].
select name, state, sum(counted)::bigint, sum(kept)::bigint from (
    select case lanes.app when 1 then 'task' else 'task:' || lanes.app end as scope, lanes.task as name, case when row_state = 0 then 'waiting' when row_state < 4 then 'queued'
        when row_state = 4 then 'in_progress' when row_state = 5 then 'done' when row_state = 6 then 'skipped'
        when row_state = 7 then 'error' else 'cancelled' end as state, count(*) as counted, 0 as kept
    from penstock.states join penstock.jobs on jobs.id = states.job_id join penstock.lanes on lanes.id = jobs.lane_id
    group by 1, 2, 3
    union all
    select scope, name, state, 0, n from penstock.counters where scope = 'task' or starts_with(scope, 'task:')
    union all
    select scope, name, state, 0, n from penstock.changes where scope = 'task' or starts_with(scope, 'task:')
) as counts group by scope, name, state having sum(counted) <> sum(kept)

-- check_group_counts --
-- Counters that are not a count: [group, state, counted, kept].
select name, state, sum(counted)::bigint, sum(kept)::bigint from (
    select lanes.grp as name, case when row_state = 0 then 'waiting' when row_state < 4 then 'queued'
        when row_state = 4 then 'in_progress' when row_state = 5 then 'done' when row_state = 6 then 'skipped'
        when row_state = 7 then 'error' else 'cancelled' end as state, count(*) as counted, 0 as kept
    from penstock.states join penstock.jobs on jobs.id = states.job_id join penstock.lanes on lanes.id = jobs.lane_id
    group by 1, 2
    union all
    select name, state, 0, n from penstock.counters where scope = 'group'
    union all
    select name, state, 0, n from penstock.changes where scope = 'group'
) as counts group by name, state having sum(counted) <> sum(kept)

-- check_heads --
-- Lanes with ready jobs that no lease would find. Differs from sqlite because lanes know no head.
select spec from penstock.lanes
where exists (select 1 from penstock.hot where row_state = 2 and hot.lane_id = lanes.id)
    and not exists (select 1 from penstock.ready_lanes where ready_lanes.lane_id = lanes.id)

-- check_held --
-- Holders that are not leases of limited jobs, and leases that hold nothing; leases that are detached without a worker.
select 'holder of ' || held.limit_key || ' is not a lease: ' || held.job_id from penstock.held
where not exists (
    select 1 from penstock.hot where hot.job_id = held.job_id and hot.token = held.token and hot.row_state = 4
) and not exists (
    select 1 from penstock.detached where detached.job_id = held.job_id and detached.token = held.token
)
union all
select 'a lease is detached though its worker is gone: ' || detached.job_id from penstock.detached
where not exists (select 1 from penstock.workers where workers.no = detached.worker and workers.ended_at is null)
union all
select 'lease of a limited job holds nothing: ' || hot.job_id
from penstock.hot join penstock.lanes on lanes.id = hot.lane_id
where hot.row_state = 4 and lanes.limit_keys <> '[]'
    and not exists (select 1 from penstock.held where held.job_id = hot.job_id and held.token = hot.token)

-- check_pending --
-- Jobs whose open dependencies are not what they say.
select jobs.key from penstock.hot join penstock.jobs on jobs.id = hot.job_id where hot.pending <> (
    select count(*) from penstock.edges where child_id = hot.job_id and open
)

-- check_waiting --
-- Jobs that wait for nobody, or do not wait although they must.
select jobs.key from penstock.hot join penstock.jobs on jobs.id = hot.job_id
where (hot.row_state = 0) <> (hot.pending > 0)
and not exists (select 1 from penstock.units where units.job_id = hot.job_id)

-- check_workers --
-- Jobs whose worker does not fit their state, and leases of workers that are gone.
select jobs.key from penstock.hot join penstock.jobs on jobs.id = hot.job_id
where (hot.row_state = 4) <> (hot.worker is not null) or (hot.row_state = 4 and not exists (
    select 1 from penstock.workers where workers.no = hot.worker and workers.ended_at is null
))

-- check_parked --
-- Lanes that nobody will wake: parked on a key that nobody holds and that is not noted as open.
select lanes.spec from penstock.ready_lanes join penstock.lanes on lanes.id = ready_lanes.lane_id
where parked_on is not null
    and not exists (select 1 from penstock.held where held.limit_key = ready_lanes.parked_on)
    and not exists (select 1 from penstock.open_keys where open_keys.limit_key = ready_lanes.parked_on)
    and parked_seq <> 0

-- check_calls --
-- Calls that contradict themselves.
select no || ' of job ' || job_id || ' (' || state || ')' from penstock.calls
where (state in ('open', 'held')) <> (ended_at is null)
    or (state = 'answered') <> exists (select 1 from penstock.answers where answers.call = calls.no)
    or (ended_at is not null and (reserved_micros <> 0 or reserved_tokens <> 0))
union all
select call || ', which is forgotten,' from penstock.answers where not exists (select 1 from penstock.calls where calls.no = answers.call)

-- check_reserves --
-- Accounts whose reserve is not that of their calls: [app, scope, period, span, counted, kept].
with unended as materialized (
    select * from penstock.calls where ended_at is null
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
    select app, scope, period, span, 0, 0, reserved_micros, reserved_tokens from penstock.accounts
    union all
    select app, scope, period, span, 0, 0, reserved_micros, reserved_tokens from penstock.account_changes
) as sums group by app, scope, period, span having sum(micros) <> sum(kept_micros) or sum(tokens) <> sum(kept_tokens)

-- check_call_counts --
-- Figures of all calls that are not a count: [figure, counted, kept].
select state, sum(counted)::bigint, sum(kept)::bigint from (
    select 'bought' as state, coalesce(sum(bought), 0) as counted, 0 as kept from penstock.calls
    union all
    select 'reused', coalesce(sum(reused), 0), 0 from penstock.calls
    union all
    select 'micros', coalesce(sum(used_micros), 0), 0 from penstock.calls
    union all
    select 'tokens', coalesce(sum(used_tokens), 0), 0 from penstock.calls
    union all
    select 'resent', coalesce(sum(resent), 0), 0 from penstock.calls
    union all
    select 'estimated', coalesce(sum(estimated), 0), 0 from penstock.calls
    union all
    select 'doubts', coalesce(sum(doubts), 0), 0 from penstock.calls
    union all
    select 'doubt_micros', coalesce(sum(doubt_micros), 0), 0 from penstock.calls
    union all
    select 'doubt_tokens', coalesce(sum(doubt_tokens), 0), 0 from penstock.calls
    union all
    select 'unended', count(*), 0 from penstock.calls where ended_at is null
    union all
    select 'open_micros', coalesce(sum(reserved_micros), 0), 0 from penstock.calls where ended_at is null
    union all
    select 'open_tokens', coalesce(sum(reserved_tokens), 0), 0 from penstock.calls where ended_at is null
    union all
    select state, 0, n from penstock.counters where scope = 'calls'
    union all
    select state, 0, n from penstock.changes where scope = 'calls'
) as counts group by state having sum(counted) <> sum(kept)

-- check_units --
-- Units that contradict themselves or their jobs.
select 'Unit ' || units.key || ' has no job' from penstock.units
where not exists (select 1 from penstock.jobs where jobs.id = units.job_id and jobs.key = units.key)
union all
select 'Unit ' || key || ' waits, and is not paused' from penstock.unit_rows where row_state = 0 and paused_at is null
union all
select 'Unit ' || units.key || ' was retired, and may tick'
from penstock.units join penstock.states on states.job_id = units.job_id
where units.retired_at is not null and (states.row_state < 5 or states.row_state = 7)
union all
select 'Unit ' || units.key || ' is due at a time that ended well before'
from penstock.units join penstock.hot on hot.job_id = units.job_id where hot.due_at <= units.last_due_at
union all
select 'Unit ' || key || ' has other counts than times' from penstock.units
where (ticks > 0) <> (last_tick_at is not null) or (last_tick_at is null) <> (last_due_at is null)
union all
select 'Unit ' || units.key || ' has too much history' from penstock.units
where (select count(*) from penstock.attempts where attempts.job_id = units.job_id) > 20

-- check_datasets --
-- Slices, commits, plans and locks that contradict each other.
select 'Level ' || level || ' of plan ' || plan_id || ' is committed, but there is no such plan' from penstock.commits
where not exists (select 1 from penstock.plans where plans.id = commits.plan_id)
union all
select 'Slice ' || dataset || '@' || at || ' has two rows of one commit' from (
    select dataset, at, coalesce(manifests.seq, commits.seq) as number
    from penstock.manifests
    left join penstock.commits on commits.plan_id = manifests.plan_id and commits.level = manifests.level
) as visible where number is not null group by dataset, at, number having count(*) > 1
union all
select 'Slice ' || dataset || '@' || at || ' has basis ' || basis || ' and number ' || number from (
    select dataset, at, basis, coalesce(manifests.seq, commits.seq) as number
    from penstock.manifests
    left join penstock.commits on commits.plan_id = manifests.plan_id and commits.level = manifests.level
) as visible
where number <= basis or number > (select value::bigint from penstock.meta where name = 'commit_seq')
union all
select 'Plan ' || id || ' is ' || state || ', but its run holds no lock' from penstock.plans
where state in ('draft', 'running') and not exists (select 1 from penstock.locks where locks.run_id = plans.run_id)
union all
select 'Plan ' || id || ' is ' || state || ' and ended at ' || coalesce(ended_at::text, 'no time') from penstock.plans
where (state in ('ended', 'abandoned')) <> (ended_at is not null)
union all
select 'Plan ' || id || ' is running, but never began' from penstock.plans
where state = 'running' and begun_at is null

-- check_places --
-- Jobs that lie in both places, or in none.
select key from penstock.jobs where (
    select count(*) from penstock.states where states.job_id = jobs.id
) <> 1

-- count_dead --
-- How many rows are dead where rows come and go with every job: [dead, live, deaths so far, seconds since they were
-- removed, may this user do so].
select
    coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint,
    coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint,
    coalesce(
        extract(epoch from clock_timestamp() - max(greatest(last_vacuum, last_autovacuum))), 1000000000
    )::float8,
    coalesce(bool_and(
        case when current_setting('server_version_num')::integer >= 170000
            then has_table_privilege(relid, 'maintain') else pg_has_role(relowner, 'usage') end
        or pg_has_role((select datdba from pg_database where datname = current_database()), 'usage')
    ), false)
from pg_stat_user_tables join pg_class on pg_class.oid = relid
where schemaname = 'penstock' and pg_class.relname in (
    'hot', 'held', 'ready_lanes', 'settling', 'changes', 'counters', 'account_changes', 'accounts'
)

-- remove_dead --
-- Removes them. Without the lock that giving space back to the disk would need, not where somebody else is at it, and by
-- one process of the server.
vacuum (skip_locked, truncate false, parallel 0)
    penstock.hot, penstock.held, penstock.ready_lanes, penstock.settling, penstock.changes, penstock.counters,
    penstock.account_changes, penstock.accounts

-- doctor_settings --
-- What decides whether a commit survives a power cut.
select name, setting from pg_settings where name in ('fsync', 'full_page_writes')

-- doctor_connections --
-- How many connections are in use, of how many.
select count(*), current_setting('max_connections')::integer from pg_stat_activity where backend_type = 'client backend'

-- doctor_may_create --
-- Tells whether this user may make the store's schema, or fill the one that is there.
select has_database_privilege(current_database(), 'create') or (
    to_regnamespace('penstock') is not null and has_schema_privilege('penstock', 'create')
)

-- doctor_rights --
-- The tables, and whether this user may use each: [table, may it].
select relname, has_table_privilege(oid, 'select, insert, update, delete')
from pg_class where relnamespace = to_regnamespace('penstock') and relkind = 'r' and relname <> 'schema_versions'

-- doctor_oldest --
-- The oldest transaction of this database but ours: [sessions that cannot be seen, its age, whose it is].
select
    (select count(*) from pg_stat_activity
        where datname = current_database() and backend_type = 'client backend' and state is null),
    (extract(epoch from clock_timestamp() - oldest.xact_start))::float8,
    oldest.usename || ' (' || oldest.application_name || ', pid ' || oldest.pid || ')'
from (select 1) as one left join lateral (
    select xact_start, usename, application_name, pid from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
        and (backend_xid is not null or backend_xmin is not null)
    order by xact_start limit 1
) as oldest on true

-- doctor_dead --
-- Dead and live rows of the hot table, as the server counts them.
select coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint from pg_stat_user_tables
where schemaname = 'penstock' and relname = 'hot'

-- check_apps --
-- Jobs and lanes that belong to different apps, or to none.
select jobs.key from penstock.jobs join penstock.lanes on lanes.id = jobs.lane_id
where jobs.app <> lanes.app or not exists (select 1 from penstock.apps where apps.no = jobs.app)
union all
select jobs.key from penstock.hot join penstock.jobs on jobs.id = hot.job_id where hot.lane_id <> jobs.lane_id

-- list_apps --
-- Apps, by name: [number, name, last seen, workers that are alive]; $1, $2 = the server's life and time.
select no, name, greatest(
    coalesce(seen_at, 0), coalesce((select max(started_at) from penstock.workers where workers.app = apps.no), 0)
), (
    select count(*) from penstock.workers
    where workers.app = apps.no and ended_at is null and boot_id = $1 and expires_at > $2
)
from penstock.apps order by name

-- read_app --
-- The number of an app.
select no from penstock.apps where name = $1

-- add_app --
-- An app signs on for the first time.
insert into penstock.apps (no, name) select 1 + max(no), $1 from penstock.apps on conflict (name) do nothing

-- name_app --
-- Gives an app another name.
update penstock.apps set name = $2 where no = $1

-- see_app --
-- An app has signed on.
update penstock.apps set seen_at = $2 where no = $1

-- rename_units --
-- Units of an app under its new name.
update penstock.units set app = $2 where app = $1

-- rename_preflights --
-- What was checked for an app, under its new name; what that one has checked itself stays.
update penstock.preflights set app = $2 where app = $1
    and not exists (select 1 from penstock.preflights as other where other.app = $2 and other.unit = preflights.unit)

-- rename_plans --
-- Plans of an app under its new name.
update penstock.plans set app = $2 where app = $1

-- is_app_named --
-- True if the store names another app than $1 that something belongs to.
select exists (select 1 from penstock.apps where name not in ('', $1))
    or exists (select 1 from penstock.units where app <> $1) or exists (select 1 from penstock.plans where app <> $1)

-- movable_jobs --
-- The next jobs of app $1 above an id that belong to another app, by unit or plan, or are of its tasks $4, or of any if that is
-- null: [id, key, lane, row_state, task, group, limit_keys, kind]. $2 = above, $3 = the last to look at, $5 = the name of the
-- other. Nobody leases, ends or puts them back before we are done.
select jobs.id, jobs.key, jobs.lane_id, states.row_state, lanes.task, lanes.grp, lanes.limit_keys, lanes.kind
from penstock.jobs join penstock.lanes on lanes.id = jobs.lane_id join penstock.states on states.job_id = jobs.id
where jobs.id > $2 and jobs.id <= $3 and jobs.app = $1 and (
    $4::jsonb is null
    or lanes.kind = 'tick' and exists (select 1 from penstock.units where units.job_id = jobs.id and units.app = $5)
    or lanes.kind in ('slice', 'step') and exists (
        select 1 from penstock.plans where plans.id = jobs.plan_id and plans.app = $5
    )
    or lanes.kind not in ('tick', 'slice', 'step')
    and lanes.task = any(array(select jsonb_array_elements_text($4::jsonb)))
) order by jobs.id

-- hold_movable --
-- Jobs of app $1 from above $2 to $3 that have not ended; nobody leases or ends them before we are done.
select hot.job_id from penstock.hot join penstock.jobs on jobs.id = hot.job_id
where jobs.app = $1 and hot.job_id > $2 and hot.job_id <= $3 order by hot.job_id for update of hot

-- is_named_in --
-- True if units or plans of the app of name $2 have jobs of app $1.
select exists (
    select 1 from penstock.units join penstock.jobs on jobs.id = units.job_id where units.app = $2 and jobs.app = $1
) or exists (
    select 1 from penstock.plans join penstock.jobs on jobs.plan_id = plans.id where plans.app = $2 and jobs.app = $1
)

-- taken_keys --
-- Of these keys, those that app $2 has; $1 = [key, …].
select key from penstock.jobs where key = any(array(select jsonb_array_elements_text($1::jsonb))) and app = $2

-- move_jobs --
-- Jobs go to another app; $1 = [[job, lane], …], $2 = app.
with moved as materialized (
    select (job ->> 0)::bigint as id, (job ->> 1)::bigint as lane_id from jsonb_array_elements($1::jsonb) as job
), placed as (
    update penstock.hot set lane_id = moved.lane_id from moved where hot.job_id = moved.id
)
update penstock.jobs set app = $2, lane_id = moved.lane_id from moved where jobs.id = moved.id

-- common_key --
-- The first key that two apps both have.
select jobs.key from penstock.jobs join penstock.jobs as other on other.key = jobs.key and other.app = $2
where jobs.app = $1 limit 1

-- list_kept_ends --
-- What the last plans of schedules of datasets have left: [name, value].
select name, value from penstock.cursors where left(value, 19) = '{"type":"kept_end",' order by name

-- cursors_and_datasets --
-- The names of all cursors, and those of all datasets with slices: [name, is it a dataset].
select name, 0 from penstock.cursors union all select distinct dataset, 1 from penstock.manifests

-- move_cursor --
-- A cursor goes to another app, unless it has one.
update penstock.cursors set name = $2
where name = $1 and not exists (select 1 from penstock.cursors as other where other.name = $2)

-- move_slices --
-- Slices of a dataset go to another app, at most $3.
update penstock.manifests set dataset = $2
where id in (select id from penstock.manifests where dataset = $1 limit $3)

-- app_counts --
-- Counters by app: [app, task, state, jobs].
select no, name, state, sum(n)::bigint from penstock.app_counts group by no, name, state having sum(n) <> 0

-- rename_calls --
-- Calls of an app under its new name.
update penstock.calls set app = $2 where app = $1

-- rename_accounts --
-- What an app has spent counts under its new name, beside what was spent there.
insert into penstock.accounts (
    scope, period, span, app, spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent,
    estimated, doubt_micros, doubt_tokens
)
select
    scope, period, span, $2::text, spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent,
    estimated, doubt_micros, doubt_tokens
from penstock.accounts where app = $1
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
delete from penstock.accounts where app = $1

-- rename_account_changes --
-- Changes of accounts that are not merged yet, under the new name of their app.
update penstock.account_changes set app = $2 where app = $1
