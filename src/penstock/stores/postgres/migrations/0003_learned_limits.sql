-- SPDX-License-Identifier: Apache-2.0
-- What runs have learned about the limits of providers, for the runs after them.
create table penstock.learned_limits (
    provider text not null,
    model text not null,
    document text not null,
    learned_at bigint not null,
    primary key (provider, model)
) with (fillfactor = 50);
