//! Framed links between peers that have proved who they are.
//!
//! Model: a [`Link`] carries streams of blocks both ways over one socket. Each [`Outgoing`] is a sink and each
//! [`Incoming`] a source, so the pump's loop moves blocks between machines as it does between disks. Frames
//! ([`frame`]) are what goes over the wire, [`core`] is what may go when, a carrier brings bytes across, sealed as TLS
//! 1.3 records.
//! Invariant: nothing is taken from a peer that has not proved who it is; a block is sent only into a buffer that its
//! receiver has reserved; what comes back from a link is what was put in, in its order, or an error.
//! Non-goals: what a payload means, who should talk to whom, opening a link again.

mod authority;
mod carrier;
pub mod core;
mod error;
mod fleeting;
pub mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod hello;
mod identity;
mod link;
mod local;
mod members;
mod pipes;
mod renew;
mod seal;
#[cfg(test)]
mod sim_test;
mod stream;
mod tls;

pub use authority::{Authority, CERTIFICATE_DAYS, Issued, ends_at, is_host_name, new_id};
pub use core::Patience;
pub use error::{LinkError, Result, What};
pub use fleeting::{Fleeting, listen};
pub use hello::{Hello, HelloError, Id, Role, VERSION};
pub use identity::{
    AUTHORITY_FILE, CERTIFICATE_FILE, CLUSTER_FILE, Identity, IdentityError, KEY_FILE, Named, read_cluster,
    read_unsigned,
};
pub use link::Link;
pub use local::pair;
pub use members::{Members, key_of, sign, verify};
pub use pipes::{Heard, Pipes};
pub use renew::Agreed;
pub use stream::{Gift, Incoming, News, Outgoing, Quit};
pub use tls::{ALPN_HTTP, ALPN_LINK, HANDSHAKE_SECONDS, Hands, Terms, node_of, refusal, unreachable};
