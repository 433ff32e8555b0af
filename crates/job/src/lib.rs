//! Jobs on several nodes: sorts, shuffles, merges, joins and partitions, checks, plans and the measurements behind
//! them.
//!
//! Model: a coordinator asks each node to take part ([`JobService`]), has them sample, gives them split points, and has
//! the outputs named when all proofs hold. The coordinator is the client ([`run`]) or one of the nodes ([`detach`]),
//! whose hosts then vote on each attempt and elect a successor when it is lost. Participants of one process
//! ([`run_in_process`]) are coordinated by calls. A participant sorts what a river brings it.
//! Invariant: nothing gets its name before every node has written its range and the proofs of all of them hold
//! together.
//! Non-goals: how a range is sorted, which is the engine's; daemons, commands and transfers.

mod agreement;
mod check;
mod client;
mod client_served;
mod coordinator;
mod error;
mod exchange;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod in_process;
mod inbox;
mod job_options;
mod jobs;
mod local;
mod naming;
mod node;
mod participant;
mod participations;
mod plan;
mod probe;
mod ranges;
mod rates;
mod rivers;
mod routes;
mod service;
mod settle;
mod successor;
mod volumes;
mod vote;
#[cfg(test)]
mod votes_test;

pub use check::check;
pub use client::{Cluster, detach, plan, run};
pub use error::Refused;
pub use exchange::exchange;
pub use in_process::run_in_process;
pub use jobs::{ENDED_MAX, ENDED_SECONDS, Job, Jobs, RUNNING_MAX, begun, failed};
pub use node::Node;
pub use rates::probe;
pub use service::JobService;
