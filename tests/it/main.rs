//! The black-box tests: the real binary, real redis-servers, real HTTP.
//!
//! Every test starts processes of its own (`support`), so tests neither share state nor need an order.
#![allow(clippy::disallowed_methods)] // Black-box tests judge by the machine's own clock.

#[allow(dead_code, unused_imports, reason = "a kit: not every tool is in use in every state of the suite")]
mod support;

mod api;
mod api_batch;
mod api_limits;
mod api_queues;
mod api_tasks;
mod brake;
mod canaries;
mod cases_books;
mod cases_cancel;
#[cfg(target_os = "linux")]
mod cases_clock;
#[cfg(target_os = "linux")]
mod cases_damage;
#[cfg(target_os = "linux")]
mod cases_growth;
mod cases_health;
mod cases_hooks;
mod cases_ids;
mod cases_leases;
mod cases_names;
mod cases_outage;
mod cases_payload;
mod cases_records;
#[cfg(target_os = "linux")]
mod cases_redis;
mod cases_retry;
mod cases_shutdown;
mod cases_time;
mod cases_tls;
#[cfg(target_os = "linux")]
mod cases_wire;
mod cli;
mod config;
mod deliveries;
#[cfg(target_os = "linux")]
mod descriptors;
mod documents;
mod durability;
mod embedded;
mod embedded_kit;
mod errors;
mod fsck;
mod full;
mod hook_holds;
mod hook_secrets;
mod lifecycle;
mod limits;
mod lost_answers;
mod main_job;
mod model;
mod pressure;
mod pull;
mod pull_waiting;
mod redis_errors;
mod rollback;
mod rooms;
mod statuses;
mod store;
mod store_brief;
mod store_damage;
mod store_edits;
mod store_enqueue;
#[allow(dead_code, reason = "a kit")]
mod store_kit;
mod store_list;
mod store_notes;
mod store_plain;
mod store_pull;
mod store_pull_kit;
#[allow(dead_code, reason = "a kit")]
mod store_raw;
mod store_renew;
mod store_retention;
mod store_revive;
mod store_settle;
mod store_visit;
mod store_wake;
mod support_works;
mod topology_cluster;
#[allow(dead_code, reason = "a kit")]
mod topology_kit;
mod topology_sentinel;
mod traces;
mod worker;
mod worker_visits;
