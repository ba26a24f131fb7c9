-- SPDX-License-Identifier: Apache-2.0
-- How often a call in doubt was sent again, and how often an answer was settled by an estimate.
alter table penstock.calls add column resent bigint not null default 0, add column estimated bigint not null default 0;
alter table penstock.accounts add column resent bigint not null default 0, add column estimated bigint not null default 0;
alter table penstock.account_changes
    add column resent bigint not null default 0, add column estimated bigint not null default 0;
