-- SPDX-License-Identifier: Apache-2.0
-- Schedules, and units of them, that an operator has paused, by name: known or not, a pause ends when it is resumed.
create table penstock.pauses (
    app bigint not null,
    name text collate "C" not null,
    paused_at bigint not null,
    primary key (app, name)
);

-- A unit as people see it.
create or replace view penstock.unit_rows as
select
    units.key, units.app, lanes.task, jobs.partition, units.timing, now_.row_state, now_.due_at, now_.available_at,
    now_.attempts, now_.deferred_since, now_.error, units.ticks, units.missed, units.failed, units.last_tick_at,
    units.retired_at, coalesce(whole.name, own.name) as paused_by, coalesce(whole.paused_at, own.paused_at) as paused_at
from penstock.units
join penstock.jobs on jobs.id = units.job_id
join penstock.lanes on lanes.id = jobs.lane_id
join lateral (
    select row_state, due_at, available_at, attempts, deferred_since, error from penstock.hot
    where hot.job_id = units.job_id
    union all
    select row_state, due_at, available_at, attempts, deferred_since, error from penstock.ended
    where ended.job_id = units.job_id
) as now_ on true
left join penstock.pauses as whole on whole.app = jobs.app and whole.name = lanes.task
left join penstock.pauses as own on own.app = jobs.app and own.name = units.key;
