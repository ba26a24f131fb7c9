-- SPDX-License-Identifier: Apache-2.0
-- Apps: several may share a store. A job belongs to its app by its lane and by its key, which is unique inside the app. What was
-- there before has no owner: it is of app 1, which has no name until an app that serves its tasks takes it over.
create table penstock.apps (
    no bigint primary key,
    name text collate "C" not null unique,
    seen_at bigint
);
insert into penstock.apps (no, name) values (1, '');

alter table penstock.lanes add column app bigint not null default 1;
alter table penstock.ready_lanes add column app bigint not null default 1;
drop index penstock.ready_lanes_open;
create index ready_lanes_open on penstock.ready_lanes (app, grp, turn, lane_id) where parked_on is null;
alter table penstock.workers add column app bigint not null default 1;
alter table penstock.jobs add column app bigint not null default 1;
create unique index jobs_key on penstock.jobs (key, app);
alter table penstock.jobs drop constraint jobs_key_key;
alter table penstock.units drop constraint units_key_key;
alter table penstock.units add constraint units_key unique (key, app);
alter table penstock.preflights drop constraint preflights_pkey;
alter table penstock.preflights add primary key (app, unit);
drop index penstock.preflights_app;

-- A job as people see it.
create or replace view penstock.job_rows as
select
    jobs.id, jobs.key, lanes.task, lanes.grp, jobs.partition, lanes.limit_keys, jobs.priority, jobs.payload,
    now_.row_state, now_.token, workers.id as worker, now_.attempts, now_.crashes, now_.deferred_since,
    now_.available_at, now_.pending, jobs.plan_id, jobs.level, now_.result, now_.error, jobs.created_at,
    now_.updated_at, now_.started_at, now_.finished_at, lanes.kind, apps.name as app, jobs.app as app_no
from penstock.jobs
join penstock.lanes on lanes.id = jobs.lane_id
join penstock.apps on apps.no = jobs.app
join lateral (
    select
        row_state, token, worker, attempts, crashes, deferred_since, available_at, pending, result, error, updated_at,
        started_at, null::bigint as finished_at
    from penstock.hot where hot.job_id = jobs.id
    union all
    select
        row_state, token, null, attempts, crashes, deferred_since, available_at, 0, result, error, updated_at,
        started_at, finished_at
    from penstock.ended where ended.job_id = jobs.id
) as now_ on true
left join penstock.workers on workers.no = now_.worker;

-- Counters of tasks, by app: those of app 1 have the name that they had.
create view penstock.app_counts as
select apps.no, counted.name, counted.state, counted.n
from penstock.apps cross join lateral (
    select name, state, n from penstock.counters
    where counters.scope = case apps.no when 1 then 'task' else 'task:' || apps.no end
    union all
    select name, state, n from penstock.changes
    where changes.scope = case apps.no when 1 then 'task' else 'task:' || apps.no end
) as counted;
-- Quarantine: suspects of one cell run together; in cell 0, as until now, each runs alone.
alter table penstock.hot add column cell bigint not null default 0;
-- Money: earlier sends of a call whose fate is unknown stay counted, apart from what calls in flight have reserved.
alter table penstock.calls
    add column doubts bigint not null default 0, add column doubt_micros bigint not null default 0,
    add column doubt_tokens bigint not null default 0;
alter table penstock.accounts
    add column doubt_micros bigint not null default 0, add column doubt_tokens bigint not null default 0;
alter table penstock.account_changes
    add column doubt_micros bigint not null default 0, add column doubt_tokens bigint not null default 0;
insert into penstock.counters (scope, state, name, n)
select 'calls', 'open_micros', '', coalesce(sum(reserved_micros), 0) from penstock.calls where ended_at is null
union all
select 'calls', 'open_tokens', '', coalesce(sum(reserved_tokens), 0) from penstock.calls where ended_at is null;
-- Money: budgets are per app, and totals outlive runs and days. Totals begin at zero, but for what is still reserved: it is
-- given back there as well.
alter table penstock.calls add column app text collate "C" not null default '';
alter table penstock.accounts add column app text collate "C" not null default '';
alter table penstock.account_changes add column app text collate "C" not null default '';
alter table penstock.accounts drop constraint accounts_pkey;
alter table penstock.accounts add primary key (span, period, scope, app);
insert into penstock.accounts (
    scope, period, span, app, spent_micros, spent_tokens, reserved_micros, reserved_tokens, bought, reused
)
with unended as (
    select * from penstock.calls where ended_at is null
), scopes as (
    select 'all' as scope, reserved_micros, reserved_tokens from unended
    union all
    select 'provider:' || provider, reserved_micros, reserved_tokens from unended
    union all
    select 'model:' || provider || '/' || model, reserved_micros, reserved_tokens from unended
    union all
    select 'task:' || task, reserved_micros, reserved_tokens from unended
)
select scope, 'total', 'total', '', 0, 0, sum(reserved_micros), sum(reserved_tokens), 0, 0
from scopes group by scope;
