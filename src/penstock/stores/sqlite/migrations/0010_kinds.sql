-- SPDX-License-Identifier: Apache-2.0
-- The kind of the jobs of a lane, until now told by how the name of its task begins.
alter table lanes add column kind text not null default 'job';
update lanes set kind = case
    when task glob 'schedule:*' then 'tick'
    when task glob 'preflight:*' then 'preflight'
    when task glob 'dataset:@*' then 'step'
    else 'slice'
end
where task glob 'schedule:*' or task glob 'preflight:*' or task glob 'dataset:*';

drop view job_rows;
-- A job as people see it.
create view job_rows as
select
    jobs.id, jobs.key, lanes.task, lanes.grp, jobs.partition, lanes.limit_keys, jobs.priority, jobs.payload,
    jobs.row_state, jobs.token, workers.id as worker, jobs.attempts, jobs.crashes, jobs.deferred_since,
    jobs.available_at, jobs.pending, jobs.plan_id, jobs.level, jobs.result, jobs.error, jobs.created_at,
    jobs.updated_at, jobs.started_at, jobs.finished_at, lanes.kind
from jobs join lanes on lanes.id = jobs.lane_id left join workers on workers.no = jobs.worker;

-- Leases that are over while their bodies still run are called detached.
create table detached (
    job_id integer not null,
    token integer not null,
    worker integer not null,
    primary key (job_id, token)
) strict, without rowid;
insert into detached (job_id, token, worker) select job_id, token, worker from lingering;
drop table lingering;
create index detached_by_worker on detached (worker);
