-- SPDX-License-Identifier: Apache-2.0
-- Questions to workers that run, and what they answer; each is kept for a minute.
create table penstock.control (
    id bigint generated always as identity primary key,
    target text not null,
    job_id bigint not null,
    token bigint not null,
    asked_at bigint not null,
    answer text,
    answered_at bigint
) with (fillfactor = 50);
create index control_open on penstock.control (target) where answer is null;
