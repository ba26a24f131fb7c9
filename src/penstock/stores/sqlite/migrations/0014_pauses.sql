-- SPDX-License-Identifier: Apache-2.0
-- Schedules, and units of them, that an operator has paused, by name: known or not, a pause ends when it is resumed.
create table pauses (
    app integer not null,
    name text not null,
    paused_at integer not null,
    primary key (app, name)
) strict, without rowid;

drop view unit_rows;

-- A unit as people see it.
create view unit_rows as
select
    units.key, units.app, lanes.task, jobs.partition, units.timing, jobs.row_state, jobs.due_at, jobs.available_at,
    jobs.attempts, jobs.deferred_since, jobs.error, units.ticks, units.missed, units.failed, units.last_tick_at,
    units.retired_at, coalesce(whole.name, own.name) as paused_by, coalesce(whole.paused_at, own.paused_at) as paused_at
from units cross join jobs on jobs.id = units.job_id cross join lanes on lanes.id = jobs.lane_id
left join pauses as whole on whole.app = jobs.app and whole.name = lanes.task
left join pauses as own on own.app = jobs.app and own.name = units.key;
