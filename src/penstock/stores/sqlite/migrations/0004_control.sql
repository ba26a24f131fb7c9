-- SPDX-License-Identifier: Apache-2.0
-- Questions to workers that run, and what they answer; each is kept for a minute.
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
