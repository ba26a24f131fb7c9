-- SPDX-License-Identifier: Apache-2.0
-- Calls that cost money, their answers, what was spent, and what runs tell of themselves. A call has not ended as long as
-- ended_at is null: then its reserve counts in the accounts of its run, day, task, provider and model.
create table calls (
    no integer primary key,
    job_id integer not null,
    fingerprint text not null,
    ordinal integer not null,
    state text not null,
    token integer not null,
    run_id text not null,
    day text not null,
    task text not null,
    provider text not null,
    model text not null,
    begun_at integer not null,
    ended_at integer,
    reserved_micros integer not null,
    reserved_tokens integer not null,
    used_micros integer not null default 0,
    used_tokens integer not null default 0,
    bought integer not null default 0,
    reused integer not null default 0,
    unique (job_id, fingerprint, ordinal)
) strict;

create table answers (
    call integer primary key,
    status integer not null,
    headers text not null,
    body blob not null,
    used_micros integer not null,
    used_tokens integer not null,
    input_tokens integer not null,
    output_tokens integer not null
) strict;

create table accounts (
    scope text not null,
    period text not null,
    span text not null,
    spent_micros integer not null,
    spent_tokens integer not null,
    reserved_micros integer not null,
    reserved_tokens integer not null,
    bought integer not null,
    reused integer not null,
    primary key (span, period, scope)
) strict, without rowid;

create table runs (
    run_id text primary key,
    turn integer not null unique
) strict, without rowid;

create table run_parts (
    run_id text not null,
    worker text not null,
    saved_at integer not null,
    document text not null,
    primary key (run_id, worker)
) strict, without rowid;
