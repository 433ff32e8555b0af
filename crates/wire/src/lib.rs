//! Links between authenticated peers, and the services of a host on them.
//!
//! Model: a [`Link`] carries streams of blocks in both directions over one socket. An [`Outgoing`] is a sink and an
//! [`Incoming`] a source, so the pump moves blocks between machines as it does between disks. A link sends frames
//! ([`frame`]), [`core`] decides which frames are allowed, and a carrier transports the bytes, encrypted as TLS 1.3
//! records. On top of links are a [`Client`], which dials hosts, and a [`Host`], which keeps links with the other hosts
//! of its cluster and gives each stream to the [`Service`] that it names.
//! Invariant: nothing is accepted from an unauthenticated peer. A block is sent only into a buffer that its receiver
//! has reserved. A link delivers what was sent, in order, or an error.
//! Non-goals: the meaning of payloads; what services do.

mod audit;
mod authority;
mod carrier;
mod client;
pub mod cluster;
mod cluster_error;
pub mod core;
mod datagram;
mod error;
mod export;
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
mod temporary_identity;
pub mod threads;
mod tls;

pub use audit::{Audit, Entry, Who};
pub use authority::{Authority, CERTIFICATE_DAYS, Issued, ends_at, is_host_name, new_id};
pub use client::{Cancel, Client};
pub use cluster_error::{BadFile, BadHost, ClusterError, ClusterResult, Rejected};
pub use core::Timeouts;
pub use datagram::{
    DATAGRAM_EXTRA_BYTES, DATAGRAM_HEAD_BYTES, DATAGRAM_SECRET_BYTES, DatagramOpening, DatagramSealing,
    Dropped, datagram_session, multicast_datagrams,
};
pub use error::{LinkError, Result, What};
pub use export::EXPORTED_KEY_BYTES;
pub use hello::{Hello, HelloError, Id, Role, VERSIONS, Versions};
pub use host::{Host, MAY_ONLY_LOOK};
pub use identity::{
    AUTHORITY_FILE, CERTIFICATE_FILE, CLUSTER_FILE, Identity, IdentityError, KEY_FILE, Named, read_cluster,
    read_unsigned,
};
pub use link::Link;
pub use local::pair;
pub use log::log;
pub use members::{Members, NotVerified, key_of, sign, verify};
pub use pipes::{Heard, Pipes};
pub use renew::Agreed;
pub use service::{Access, Method, Metric, Peer, Reply, Route, Service, Streams};
pub use stream::{Gift, Incoming, News, Outgoing, Quit};
pub use temporary_identity::{TemporaryIdentity, listen};
pub use tls::{ALPN_HTTP, ALPN_LINK, Credentials, HANDSHAKE_SECONDS, Terms, node_of, refusal, unreachable};
