-- SPDX-License-Identifier: Apache-2.0
-- The sum of all migrations (a test compares them). row_state: 0 waiting, 1 delayed, 2 ready, 3 suspect, 4 in_progress, 5 done, 6 skipped,
-- 7 error, 8 cancelled. Times are microseconds since 1970 UTC; workers.expires_at and locks.expires_at are boot time.
create table meta (
    name text primary key,
    value text not null
) strict, without rowid;
insert into meta (name, value) values ('token_floor', '0'), ('purged_id', '0'), ('commit_seq', '0');

create table apps (
    no integer primary key,
    name text not null unique,
    seen_at integer
) strict;
insert into apps (no, name) values (1, '');

create table lanes (
    id integer primary key autoincrement,
    spec text not null unique,
    task text not null,
    grp text not null,
    limit_keys text not null,
    head_priority integer,
    head_at integer,
    head_id integer,
    parked_on text,
    parked_seq integer
, kind text not null default 'job', app integer not null default 1) strict;
create index lanes_ready on lanes (app, grp, head_priority desc, head_at, head_id)
    where head_id is not null and parked_on is null;
create index lanes_parked on lanes (parked_on, parked_seq) where parked_on is not null;

create table jobs (
    id integer primary key,
    app integer not null,
    key text not null,
    lane_id integer not null,
    partition text,
    priority integer not null,
    payload text not null,
    row_state integer not null,
    token integer not null default 0,
    ended_token integer not null default 0,
    worker integer,
    solo integer not null default 0,
    attempts integer not null default 0,
    crashes integer not null default 0,
    losses integer not null default 0,
    deferred_since integer,
    due_at integer not null,
    available_at integer not null,
    pending integer not null default 0,
    plan_id text,
    level integer,
    result text,
    error text,
    skipped_by integer,
    created_at integer not null,
    updated_at integer not null,
    started_at integer,
    finished_at integer
, cell integer not null default 0) strict;
create unique index jobs_key on jobs (key, app);
create index jobs_ready on jobs (lane_id, priority desc, available_at, id) where row_state = 2;
create index jobs_due on jobs (available_at) where row_state = 1;
create index jobs_suspect on jobs (id) where row_state = 3;
create index jobs_leased on jobs (worker) where row_state = 4;
create index jobs_ended on jobs (finished_at) where row_state >= 5;
create index jobs_unhappy on jobs (row_state, id) where row_state >= 6;
create index jobs_plan on jobs (plan_id, level) where plan_id is not null;
create index jobs_plan_open on jobs (plan_id, id, level, row_state) where plan_id is not null and row_state < 5;
create index jobs_plan_unhappy on jobs (plan_id, id, level, row_state) where plan_id is not null and row_state >= 6;

create table edges (
    parent_id integer not null,
    child_id integer not null,
    kind text not null,
    open integer not null, ordinal integer not null default 0,
    primary key (parent_id, child_id)
) strict, without rowid;
create index edges_open on edges (parent_id) where open = 1;
create index edges_child on edges (child_id);

create table settling (
    job_id integer primary key
) strict;

create table reviving (
    job_id integer primary key,
    after_id integer not null
) strict;

create table revivable (
    job_id integer primary key
) strict;

create table held (
    job_id integer not null,
    token integer not null,
    limit_key text not null,
    primary key (job_id, token, limit_key)
) strict, without rowid;
create index held_by_key on held (limit_key);

create table detached (
    job_id integer not null,
    token integer not null,
    worker integer not null,
    primary key (job_id, token)
) strict, without rowid;
create index detached_by_worker on detached (worker);

create table open_keys (
    limit_key text primary key
) strict, without rowid;

create table limits (
    limit_key text primary key,
    cap integer not null
) strict, without rowid;

create table attempts (
    job_id integer not null,
    token integer not null,
    worker integer not null,
    outcome text not null,
    started_at integer,
    ended_at integer not null,
    error text,
    primary key (job_id, token)
) strict, without rowid;

create table counters (
    scope text not null,
    state text not null,
    name text not null,
    n integer not null,
    primary key (scope, state, name)
) strict, without rowid;

create table workers (
    no integer primary key autoincrement,
    id text not null unique,
    run_id text not null,
    boot_id text not null,
    expires_at integer not null,
    started_at integer not null,
    host text not null,
    pid integer not null,
    tasks text not null,
    status text,
    status_at integer,
    ended_at integer
, app integer not null default 1) strict;
create index workers_alive on workers (expires_at) where ended_at is null;

create table control (
    id integer primary key autoincrement,
    target text not null,
    job_id integer not null,
    token integer not null,
    asked_at integer not null,
    answer text,
    answered_at integer
) strict;
create index control_open on control (target) where answer is null;

create table learned_limits (
    provider text not null,
    model text not null,
    document text not null,
    learned_at integer not null,
    primary key (provider, model)
) strict, without rowid;

create table cooldowns (
    provider text not null,
    model text not null,
    account text not null,
    begun_at integer not null,
    until_at integer not null,
    probed_until integer not null,
    document text not null,
    primary key (provider, model, account)
) strict, without rowid;

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
    resent integer not null default 0,
    estimated integer not null default 0,
    doubts integer not null default 0,
    doubt_micros integer not null default 0,
    doubt_tokens integer not null default 0,
    app text not null default '',
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
    app text not null,
    spent_micros integer not null,
    spent_tokens integer not null,
    reserved_micros integer not null,
    reserved_tokens integer not null,
    bought integer not null,
    reused integer not null,
    resent integer not null,
    estimated integer not null,
    doubt_micros integer not null,
    doubt_tokens integer not null,
    primary key (span, period, scope, app)
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

create table units (
    job_id integer primary key,
    key text not null,
    app text not null,
    timing text not null,
    ticks integer not null default 0,
    missed integer not null default 0,
    failed integer not null default 0,
    last_tick_at integer,
    last_due_at integer,
    retired_at integer,
    unique (key, app)
) strict;
create index units_app on units (app, key);

create table pauses (
    app integer not null,
    name text not null,
    paused_at integer not null,
    primary key (app, name)
) strict, without rowid;

create table preflights (
    app text not null,
    unit text not null,
    name text not null,
    partition text not null,
    value text,
    error text,
    checked_at integer not null,
    primary key (app, unit)
) strict, without rowid;

create table cursors (
    name text primary key,
    value text not null
) strict, without rowid;

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

-- A job as people see it.
create view job_rows as
select
    jobs.id, jobs.key, lanes.task, lanes.grp, jobs.partition, lanes.limit_keys, jobs.priority, jobs.payload,
    jobs.row_state, jobs.token, workers.id as worker, jobs.attempts, jobs.crashes, jobs.deferred_since,
    jobs.available_at, jobs.pending, jobs.plan_id, jobs.level, jobs.result, jobs.error, jobs.created_at,
    jobs.updated_at, jobs.started_at, jobs.finished_at, lanes.kind, apps.name as app, jobs.app as app_no
from jobs join lanes on lanes.id = jobs.lane_id join apps on apps.no = jobs.app
left join workers on workers.no = jobs.worker;

-- A unit as people see it.
create view unit_rows as
select
    units.key, units.app, lanes.task, jobs.partition, units.timing, jobs.row_state, jobs.due_at, jobs.available_at,
    jobs.attempts, jobs.deferred_since, jobs.error, units.ticks, units.missed, units.failed, units.last_tick_at,
    units.retired_at, coalesce(whole.name, own.name) as paused_by, coalesce(whole.paused_at, own.paused_at) as paused_at
from units cross join jobs on jobs.id = units.job_id cross join lanes on lanes.id = jobs.lane_id
left join pauses as whole on whole.app = jobs.app and whole.name = lanes.task
left join pauses as own on own.app = jobs.app and own.name = units.key;
