//! The daemon on every host, and its clients: commands, control over HTTP, transfers, installation.
//!
//! Model: a node is a process with an identity and one port ([`run`]). The caller gives it its services, of which
//! [`ExecService`] and [`TransferService`] are in this crate. A client has its own identity and connects to the nodes
//! directly: by links to run commands ([`exec`]) and copy files ([`pump`]), by HTTP for everything else ([`control`]).
//! Invariant: nothing is listed, read, run or written for a peer that has not proved its membership of the cluster.
//! Non-goals: printing, what a command does, choosing hosts for work.

pub mod control;
mod daemon;
mod ends;
mod error;
mod exec;
mod exec_service;
mod exec_session;
pub mod fleet;
mod greeting;
mod guard;
mod http;
pub mod installer;
mod join;
mod pump;
mod relay;
mod ssh;
mod ssh_between;
mod ssh_serve;
mod ssh_stderr;
mod tls_records;
mod to_node;
mod transfers;

pub use daemon::{CONNECTIONS_MAX, HANDSHAKES_MAX, NodeOptions, Services, Stop, run};
pub use error::{Error, NoAnswer, Result};
pub use exec::{Channel, ExecOptions, exec, ping};
pub use exec_service::ExecService;
pub use greeting::SERVE;
pub use guard::{Ended, Forward, guard, is_guarded};
pub use join::Join;
pub use pump::{pump, pump_over_ssh};
pub use ssh::SshOptions;
pub use ssh_serve::serve;
pub use transfers::TransferService;
