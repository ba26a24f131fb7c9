-- SPDX-License-Identifier: Apache-2.0
-- How often a call in doubt was sent again, and how often an answer was settled by an estimate.
alter table calls add column resent integer not null default 0;
alter table calls add column estimated integer not null default 0;
alter table accounts add column resent integer not null default 0;
alter table accounts add column estimated integer not null default 0;
