//! Framed links between peers that have proved who they are, and what a host offers and reaches over them.
//!
//! Model: a [`Link`] carries streams of blocks both ways over one socket. Each [`Outgoing`] is a sink and each
//! [`Incoming`] a source, so the pump's loop moves blocks between machines as it does between disks. Frames
//! ([`frame`]) are what goes over the wire, [`core`] is what may go when, a carrier brings bytes across, sealed as TLS
//! 1.3 records.
//! Invariant: nothing is taken from a peer that has not proved who it is; a block is sent only into a buffer that its
//! receiver has reserved; what comes back from a link is what was put in, in its order, or an error.
//! On these stand a [`Client`], which dials hosts, and a [`Host`], which keeps links with the others of its cluster and
//! serves each stream by the [`Service`] that it names.
//! Non-goals: what a payload means; what services do.

mod audit;
mod authority;
mod carrier;
mod client;
pub mod cluster;
mod cluster_error;
pub mod core;
mod error;
mod export;
mod fleeting;
pub mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod hello;
mod host;
mod identity;
mod link;
mod local;
mod log;
mod members;
pub mod mesh;
pub mod message;
mod pipes;
mod renew;
mod seal;
mod service;
#[cfg(test)]
mod sim_test;
mod stream;
pub mod threads;
mod tls;

pub use audit::{Audit, Entry, Who};
pub use authority::{Authority, CERTIFICATE_DAYS, Issued, ends_at, is_host_name, new_id};
pub use client::{Cancel, Client};
pub use cluster_error::{BadFile, BadHost, ClusterError, ClusterResult, Rejected};
pub use core::Patience;
pub use error::{LinkError, Result, What};
pub use export::EXPORTED_KEY_BYTES;
pub use fleeting::{Fleeting, listen};
pub use hello::{Hello, HelloError, Id, Role, VERSION};
pub use host::{Host, MAY_ONLY_LOOK};
pub use identity::{
    AUTHORITY_FILE, CERTIFICATE_FILE, CLUSTER_FILE, Identity, IdentityError, KEY_FILE, Named, read_cluster,
    read_unsigned,
};
pub use link::Link;
pub use local::pair;
pub use log::log;
pub use members::{Members, key_of, sign, verify};
pub use pipes::{Heard, Pipes};
pub use renew::Agreed;
pub use service::{Access, Method, Metric, Peer, Reply, Route, Service, Streams};
pub use stream::{Gift, Incoming, News, Outgoing, Quit};
pub use tls::{ALPN_HTTP, ALPN_LINK, Credentials, HANDSHAKE_SECONDS, Terms, node_of, refusal, unreachable};
