-- SPDX-License-Identifier: Apache-2.0
-- A lease may be over while its body still runs (cancelled, revoked, given up): it lingers, and holds its limit keys
-- under its token until the body has ended.
create temp table held_before as
select held.job_id, jobs.token, held.limit_key from held join jobs on jobs.id = held.job_id;
drop table held;
create table held (
    job_id integer not null,
    token integer not null,
    limit_key text not null,
    primary key (job_id, token, limit_key)
) strict, without rowid;
create index held_by_key on held (limit_key);
insert into held (job_id, token, limit_key) select job_id, token, limit_key from held_before;
drop table held_before;

create table lingering (
    job_id integer not null,
    token integer not null,
    worker integer not null,
    primary key (job_id, token)
) strict, without rowid;
create index lingering_by_worker on lingering (worker);
