-- SPDX-License-Identifier: Apache-2.0
-- Calls that cost money, their answers, what was spent, and what runs tell of themselves. A call has not ended as long as
-- ended_at is null: then its reserve counts in the accounts of its run, day, task, provider and model. No index has a
-- column that changes, so that a call ends in place.
create table penstock.calls (
    no bigint generated always as identity primary key,
    job_id bigint not null,
    fingerprint text collate "C" not null,
    ordinal bigint not null,
    state text not null,
    token bigint not null,
    run_id text not null,
    day text not null,
    task text not null,
    provider text not null,
    model text not null,
    begun_at bigint not null,
    ended_at bigint,
    reserved_micros bigint not null,
    reserved_tokens bigint not null,
    used_micros bigint not null default 0,
    used_tokens bigint not null default 0,
    bought bigint not null default 0,
    reused bigint not null default 0,
    unique (job_id, fingerprint, ordinal)
) with (fillfactor = 45);

-- Apart from calls, so that whoever reads those does not pass by bodies. They are compressed already.
create table penstock.answers (
    call bigint primary key,
    status bigint not null,
    headers text not null,
    body bytea not null,
    used_micros bigint not null,
    used_tokens bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null
);
alter table penstock.answers alter column body set storage external;

-- Accounts are kept as a sum and the changes since, as counters are: who adds a change waits for nobody.
create table penstock.accounts (
    scope text collate "C" not null,
    period text collate "C" not null,
    span text collate "C" not null,
    spent_micros bigint not null,
    spent_tokens bigint not null,
    reserved_micros bigint not null,
    reserved_tokens bigint not null,
    bought bigint not null,
    reused bigint not null,
    primary key (span, period, scope)
) with (fillfactor = 50);

create table penstock.account_changes (
    no bigint generated always as identity primary key,
    scope text collate "C" not null,
    period text collate "C" not null,
    span text collate "C" not null,
    spent_micros bigint not null,
    spent_tokens bigint not null,
    reserved_micros bigint not null,
    reserved_tokens bigint not null,
    bought bigint not null,
    reused bigint not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create index account_changes_of on penstock.account_changes (span, period, scope);

create table penstock.runs (
    run_id text primary key,
    turn bigint not null
) with (fillfactor = 50);
create index runs_by_turn on penstock.runs (turn);

create table penstock.run_parts (
    run_id text not null,
    worker text collate "C" not null,
    saved_at bigint not null,
    document text not null,
    primary key (run_id, worker)
) with (fillfactor = 50);
