//! The daemon on every host, and the client that talks to it.
//!
//! Model: a node is a process with an identity and one port ([`run`]). A client has an identity of its own and talks to
//! the nodes directly: over links to run commands ([`exec`]), over HTTP for the rest ([`control`]). What makes hosts a
//! cluster is a directory of small files ([`cluster`]).
//! Invariant: nothing is listed, read, run or written for a peer that has not proved that it is of the cluster.
//! Non-goals: printing, what a command does, choosing where work should go.

mod ask;
mod attempts;
mod audit;
mod check;
pub mod cluster;
mod command;
pub mod control;
mod cork;
mod daemon;
mod error;
mod exchange;
mod exec;
pub mod fleet;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod guard;
pub mod hosts;
mod http;
mod inbox;
mod job;
mod kept;
mod lent;
mod plan;
mod probe;
mod pump;
mod rates;
mod relay;
mod serving;
mod share;
mod sort;
mod ssh;
mod ssh_between;
mod ssh_said;
mod successor;
mod talk;
mod threads;
mod vote;

pub use check::check;
pub use daemon::{CONNECTIONS_MAX, HANDSHAKES_MAX, NodeOptions, Stop, run};
pub use error::{Error, Result};
pub use exchange::exchange;
pub use exec::{Cancel, Channel, ExecOptions, exec, ping};
pub use guard::{Ended, Forward, guard, is_guarded};
pub use plan::plan;
pub use pump::pump;
pub use rates::probe;
pub use serving::{SERVE, serve};
pub use sort::{Cluster, detach, run as work};
pub use ssh::{SshOptions, pump_over_ssh};
