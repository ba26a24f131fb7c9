-- SPDX-License-Identifier: Apache-2.0
-- Long cool-downs of providers: before which moment nothing is sent, in whose words, and until when somebody probes.
create table penstock.cooldowns (
    provider text not null,
    model text not null,
    account text not null,
    begun_at bigint not null,
    until_at bigint not null,
    probed_until bigint not null,
    document text not null,
    primary key (provider, model, account)
);
