-- SPDX-License-Identifier: Apache-2.0
-- Slices of datasets, the commits that make them visible, plans and locks. A slice is visible if it has a number or its
-- level is in commits. No release has written a manifest, so that table is made anew. expires_at of a lock is boot time.
drop table manifests;
create table manifests (
    id integer primary key autoincrement,
    dataset text not null,
    at integer not null,
    version text not null,
    basis integer not null,
    seq integer,
    plan_id text not null,
    level integer not null,
    job_id integer not null,
    document text not null
) strict;
create index manifests_slices on manifests (dataset, at, seq, basis, version);
create index manifests_files on manifests (dataset, id);
create index manifests_staged on manifests (plan_id, level) where seq is null;

create table commits (
    plan_id text not null,
    level integer not null,
    seq integer not null,
    primary key (plan_id, level)
) strict, without rowid;

create table plans (
    no integer primary key autoincrement,
    id text not null unique,
    app text not null,
    digest text not null,
    state text not null,
    run_id text not null,
    root text not null,
    document text not null,
    levels integer not null,
    jobs integer not null,
    created_at integer not null,
    begun_at integer,
    ended_at integer
) strict;
create index plans_open on plans (run_id) where ended_at is null;
create index plans_ended on plans (ended_at) where ended_at is not null;

create table locks (
    name text primary key,
    run_id text,
    mark text not null,
    token integer not null,
    boot_id text not null,
    expires_at integer not null,
    taken_at integer not null
) strict, without rowid;
create index locks_run on locks (run_id) where run_id is not null;

create index jobs_plan_open on jobs (plan_id, id, level, row_state) where plan_id is not null and row_state < 5;
create index jobs_plan_unhappy on jobs (plan_id, id, level, row_state) where plan_id is not null and row_state >= 6;
insert into meta (name, value) values ('commit_seq', '0');
