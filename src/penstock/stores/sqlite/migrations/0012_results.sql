-- SPDX-License-Identifier: Apache-2.0
-- The place of an edge in the order that a job named what it runs after.
alter table edges add column ordinal integer not null default 0;
