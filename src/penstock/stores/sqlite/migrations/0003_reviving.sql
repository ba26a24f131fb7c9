-- SPDX-License-Identifier: Apache-2.0
-- What a retry has still to do: jobs that were put back whose skipped dependants are not all collected, and
-- dependants that are not judged yet.
create table reviving (
    job_id integer primary key,
    after_id integer not null
) strict;

create table revivable (
    job_id integer primary key
) strict;
