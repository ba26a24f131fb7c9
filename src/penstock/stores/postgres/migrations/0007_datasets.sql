-- SPDX-License-Identifier: Apache-2.0
-- Slices of datasets, the commits that make them visible, plans and locks. A slice is visible if it has a number or its
-- level is in commits. No release has written a manifest, so that table is made anew. Jobs of a plan are found by their
-- ids, which follow each other, among those that have not ended, or not ended well.
drop table penstock.manifests;
create table penstock.manifests (
    id bigint generated always as identity primary key,
    dataset text collate "C" not null,
    at bigint not null,
    version text collate "C" not null,
    basis bigint not null,
    seq bigint,
    plan_id text collate "C" not null,
    level bigint not null,
    job_id bigint not null,
    document text not null
) with (fillfactor = 90);
create index manifests_slices on penstock.manifests (dataset, at, seq desc nulls last) include (basis, version);
create index manifests_files on penstock.manifests (dataset, (id + 0)); -- not for who looks for an id
create index manifests_staged on penstock.manifests (plan_id, level) where seq is null;

create table penstock.commits (
    plan_id text collate "C" not null,
    level bigint not null,
    seq bigint not null,
    primary key (plan_id, level)
);

create table penstock.plans (
    no bigint generated always as identity primary key,
    id text collate "C" not null unique,
    app text not null,
    digest text not null,
    state text not null,
    run_id text collate "C" not null,
    root text not null,
    document text not null,
    levels bigint not null,
    jobs bigint not null,
    created_at bigint not null,
    begun_at bigint,
    ended_at bigint
) with (fillfactor = 50);
create index plans_open on penstock.plans (run_id) where ended_at is null;
create index plans_ended on penstock.plans (ended_at) where ended_at is not null;

create table penstock.locks (
    name text collate "C" primary key,
    run_id text collate "C",
    mark text not null,
    token bigint not null,
    boot_id text not null,
    expires_at bigint not null,
    taken_at bigint not null
) with (fillfactor = 50);
create index locks_run on penstock.locks (run_id, name) where run_id is not null;

drop index penstock.jobs_plan;
create index jobs_plan on penstock.jobs (plan_id, id) include (level) where plan_id is not null;
insert into penstock.meta (name, value) values ('commit_seq', '0');
