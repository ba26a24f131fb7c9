-- SPDX-License-Identifier: Apache-2.0
-- Apps: several may share a store. A job belongs to its app by its lane and by its key, which is unique inside the app. What was
-- there before has no owner: it is of app 1, which has no name until an app that serves its tasks takes it over.
create table apps (
    no integer primary key,
    name text not null unique,
    seen_at integer
) strict;
insert into apps (no, name) values (1, '');

alter table lanes add column app integer not null default 1;
drop index lanes_ready;
create index lanes_ready on lanes (app, grp, head_priority desc, head_at, head_id)
    where head_id is not null and parked_on is null;
alter table workers add column app integer not null default 1;

-- A table whose key is unique by its definition has to be written anew.
drop view job_rows;
drop view unit_rows;
alter table jobs rename to old_jobs;
create table jobs (
    id integer primary key,
    app integer not null,
    key text not null,
    lane_id integer not null,
    partition text,
    priority integer not null,
    payload text not null,
    row_state integer not null,
    token integer not null default 0,
    ended_token integer not null default 0,
    worker integer,
    solo integer not null default 0,
    attempts integer not null default 0,
    crashes integer not null default 0,
    losses integer not null default 0,
    deferred_since integer,
    due_at integer not null,
    available_at integer not null,
    pending integer not null default 0,
    plan_id text,
    level integer,
    result text,
    error text,
    skipped_by integer,
    created_at integer not null,
    updated_at integer not null,
    started_at integer,
    finished_at integer
) strict;
insert into jobs
select
    id, 1, key, lane_id, partition, priority, payload, row_state, token, ended_token, worker, solo, attempts, crashes, losses,
    deferred_since, due_at, available_at, pending, plan_id, level, result, error, skipped_by, created_at, updated_at,
    started_at, finished_at
from old_jobs order by id;
drop table old_jobs;
create unique index jobs_key on jobs (key, app);
create index jobs_ready on jobs (lane_id, priority desc, available_at, id) where row_state = 2;
create index jobs_due on jobs (available_at) where row_state = 1;
create index jobs_suspect on jobs (id) where row_state = 3;
create index jobs_leased on jobs (worker) where row_state = 4;
create index jobs_ended on jobs (finished_at) where row_state >= 5;
create index jobs_unhappy on jobs (row_state, id) where row_state >= 6;
create index jobs_plan on jobs (plan_id, level) where plan_id is not null;
create index jobs_plan_open on jobs (plan_id, id, level, row_state) where plan_id is not null and row_state < 5;
create index jobs_plan_unhappy on jobs (plan_id, id, level, row_state) where plan_id is not null and row_state >= 6;

alter table units rename to old_units;
create table units (
    job_id integer primary key,
    key text not null,
    app text not null,
    timing text not null,
    ticks integer not null default 0,
    missed integer not null default 0,
    failed integer not null default 0,
    last_tick_at integer,
    last_due_at integer,
    retired_at integer,
    unique (key, app)
) strict;
insert into units
select job_id, key, app, timing, ticks, missed, failed, last_tick_at, last_due_at, retired_at from old_units;
drop table old_units;
create index units_app on units (app, key);

alter table preflights rename to old_preflights;
create table preflights (
    app text not null,
    unit text not null,
    name text not null,
    partition text not null,
    value text,
    error text,
    checked_at integer not null,
    primary key (app, unit)
) strict, without rowid;
insert into preflights select app, unit, name, partition, value, error, checked_at from old_preflights;
drop table old_preflights;

-- A job as people see it.
create view job_rows as
select
    jobs.id, jobs.key, lanes.task, lanes.grp, jobs.partition, lanes.limit_keys, jobs.priority, jobs.payload,
    jobs.row_state, jobs.token, workers.id as worker, jobs.attempts, jobs.crashes, jobs.deferred_since,
    jobs.available_at, jobs.pending, jobs.plan_id, jobs.level, jobs.result, jobs.error, jobs.created_at,
    jobs.updated_at, jobs.started_at, jobs.finished_at, lanes.kind, apps.name as app, jobs.app as app_no
from jobs join lanes on lanes.id = jobs.lane_id join apps on apps.no = jobs.app
left join workers on workers.no = jobs.worker;

-- A unit as people see it.
create view unit_rows as
select
    units.key, units.app, lanes.task, jobs.partition, units.timing, jobs.row_state, jobs.due_at, jobs.available_at,
    jobs.attempts, jobs.deferred_since, jobs.error, units.ticks, units.missed, units.failed, units.last_tick_at,
    units.retired_at
from units cross join jobs on jobs.id = units.job_id cross join lanes on lanes.id = jobs.lane_id;
-- Quarantine: suspects of one cell run together; in cell 0, as until now, each runs alone.
alter table jobs add column cell integer not null default 0;
-- Money: earlier sends of a call whose fate is unknown stay counted, apart from what calls in flight have reserved.
alter table calls add column doubts integer not null default 0;
alter table calls add column doubt_micros integer not null default 0;
alter table calls add column doubt_tokens integer not null default 0;
insert into counters (scope, state, name, n)
select 'calls', 'open_micros', '', coalesce(sum(reserved_micros), 0) from calls where ended_at is null
union all
select 'calls', 'open_tokens', '', coalesce(sum(reserved_tokens), 0) from calls where ended_at is null;
-- Money: budgets are per app, and totals outlive runs and days. Totals begin at zero, but for what is still reserved: it is
-- given back there as well.
alter table calls add column app text not null default '';
alter table accounts rename to accounts_before;
create table accounts (
    scope text not null,
    period text not null,
    span text not null,
    app text not null,
    spent_micros integer not null,
    spent_tokens integer not null,
    reserved_micros integer not null,
    reserved_tokens integer not null,
    bought integer not null,
    reused integer not null,
    resent integer not null,
    estimated integer not null,
    doubt_micros integer not null,
    doubt_tokens integer not null,
    primary key (span, period, scope, app)
) strict, without rowid;
insert into accounts
select
    scope, period, span, '', spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused, resent,
    estimated, 0, 0
from accounts_before;
drop table accounts_before;
insert into accounts
with unended as (
    select * from calls where ended_at is null
), scopes as (
    select 'all' as scope, reserved_micros, reserved_tokens from unended
    union all
    select 'provider:' || provider, reserved_micros, reserved_tokens from unended
    union all
    select 'model:' || provider || '/' || model, reserved_micros, reserved_tokens from unended
    union all
    select 'task:' || task, reserved_micros, reserved_tokens from unended
)
select scope, 'total', 'total', '', 0, 0, sum(reserved_micros), sum(reserved_tokens), 0, 0, 0, 0, 0, 0
from scopes group by scope;
