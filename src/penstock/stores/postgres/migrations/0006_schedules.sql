-- SPDX-License-Identifier: Apache-2.0
-- Units of schedules, each with one job for ever, and what was checked before they may tick. last_due_at is the last
-- occurrence that ended well: due_at of the job is always later. A tick changes no column that an index has, so its
-- row is updated in place.
create table penstock.units (
    job_id bigint primary key,
    key text collate "C" not null unique,
    app text collate "C" not null,
    timing text not null,
    ticks bigint not null default 0,
    missed bigint not null default 0,
    failed bigint not null default 0,
    last_tick_at bigint,
    last_due_at bigint,
    retired_at bigint
) with (fillfactor = 50);
create index units_app on penstock.units (app, key);

create table penstock.preflights (
    unit text collate "C" primary key,
    app text collate "C" not null,
    name text not null,
    partition text not null,
    value text,
    error text,
    checked_at bigint not null
) with (fillfactor = 50);
create index preflights_app on penstock.preflights (app, unit);

-- A unit as people see it.
create view penstock.unit_rows as
select
    units.key, units.app, lanes.task, jobs.partition, units.timing, now_.row_state, now_.due_at, now_.available_at,
    now_.attempts, now_.deferred_since, now_.error, units.ticks, units.missed, units.failed, units.last_tick_at,
    units.retired_at
from penstock.units
join penstock.jobs on jobs.id = units.job_id
join penstock.lanes on lanes.id = jobs.lane_id
join lateral (
    select row_state, due_at, available_at, attempts, deferred_since, error from penstock.hot
    where hot.job_id = units.job_id
    union all
    select row_state, due_at, available_at, attempts, deferred_since, error from penstock.ended
    where ended.job_id = units.job_id
) as now_ on true;
