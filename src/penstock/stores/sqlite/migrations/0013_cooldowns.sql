-- SPDX-License-Identifier: Apache-2.0
-- Long cool-downs of providers: before which moment nothing is sent, in whose words, and until when somebody probes.
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
