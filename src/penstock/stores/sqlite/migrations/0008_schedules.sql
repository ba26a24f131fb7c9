-- SPDX-License-Identifier: Apache-2.0
-- Units of schedules, each with one job for ever, and what was checked before they may tick. last_due_at is the last
-- occurrence that ended well: due_at of the job is always later.
create table units (
    job_id integer primary key,
    key text not null unique,
    app text not null,
    timing text not null,
    ticks integer not null default 0,
    missed integer not null default 0,
    failed integer not null default 0,
    last_tick_at integer,
    last_due_at integer,
    retired_at integer
) strict;
create index units_app on units (app, key);

create table preflights (
    unit text primary key,
    app text not null,
    name text not null,
    partition text not null,
    value text,
    error text,
    checked_at integer not null
) strict, without rowid;
create index preflights_app on preflights (app, unit);

-- A unit as people see it.
create view unit_rows as
select
    units.key, units.app, lanes.task, jobs.partition, units.timing, jobs.row_state, jobs.due_at, jobs.available_at,
    jobs.attempts, jobs.deferred_since, jobs.error, units.ticks, units.missed, units.failed, units.last_tick_at,
    units.retired_at
from units cross join jobs on jobs.id = units.job_id cross join lanes on lanes.id = jobs.lane_id;
