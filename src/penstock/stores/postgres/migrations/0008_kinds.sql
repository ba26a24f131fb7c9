-- SPDX-License-Identifier: Apache-2.0
-- The kind of the jobs of a lane, until now told by how the name of its task begins.
alter table penstock.lanes add column kind text not null default 'job';
update penstock.lanes set kind = case
    when starts_with(task, 'schedule:') then 'tick'
    when starts_with(task, 'preflight:') then 'preflight'
    when starts_with(task, 'dataset:@') then 'step'
    else 'slice'
end
where starts_with(task, 'schedule:') or starts_with(task, 'preflight:') or starts_with(task, 'dataset:');

-- A job as people see it.
create or replace view penstock.job_rows as
select
    jobs.id, jobs.key, lanes.task, lanes.grp, jobs.partition, lanes.limit_keys, jobs.priority, jobs.payload,
    now_.row_state, now_.token, workers.id as worker, now_.attempts, now_.crashes, now_.deferred_since,
    now_.available_at, now_.pending, jobs.plan_id, jobs.level, now_.result, now_.error, jobs.created_at,
    now_.updated_at, now_.started_at, now_.finished_at, lanes.kind
from penstock.jobs
join penstock.lanes on lanes.id = jobs.lane_id
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

-- Leases that are over while their bodies still run are called detached.
alter table penstock.lingering rename to detached;
alter index penstock.lingering_pkey rename to detached_pkey;
alter index penstock.lingering_by_worker rename to detached_by_worker;
