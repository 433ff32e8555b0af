//! Fleeting identities: two processes that can already tell each other something in secret prove to each other over
//! sockets who they are, once.
//!
//! Model: each side makes an authority of its own, which signs one certificate for it and is forgotten. What the sides
//! tell each other is the certificate of that authority; keys stay where they were made.
//! Invariant: who does not hold the key that was made for this one meeting is no peer.
//! Non-goals: the secret way on which authorities are told; anything on a disk.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::authority::{Authority, new_id};
use crate::hello::{Id, Role};
use crate::identity::{Identity, IdentityError, Named};
use crate::members::Members;
use crate::tls::Credentials;

/// How long a certificate holds; shorter than a day clocks would have to agree.
const DAYS: i64 = 1;

/// This side of a meeting.
pub struct Fleeting {
    meeting: Id,
    role: Role,
    authority: Authority,
}

impl Fleeting {
    /// One of the two who meet under this id.
    pub fn new(meeting: Id, role: Role) -> Result<Fleeting, IdentityError> {
        Ok(Fleeting { meeting, role, authority: Authority::new(meeting)? })
    }

    /// What the other side is to be told: a certificate, in which nothing is secret.
    pub fn authority(&self) -> String {
        self.authority.kept().certificate
    }

    /// Ready to meet, as `name`, the side that told `theirs`, and nobody else.
    pub fn meets(&self, name: &str, theirs: &str) -> Result<Credentials, IdentityError> {
        let wrong = |why: String| IdentityError::Certificate(why);
        let (cluster, role, node) = (self.meeting, self.role, new_id());
        let issued = self.authority.issue(&Named { host: name.to_string(), node, cluster, role }, DAYS)?;
        let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).map_err(|e| wrong(e.to_string()))?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate(theirs)?).map_err(|e| wrong(e.to_string()))?;
        Credentials::of(Identity {
            cluster,
            node,
            name: name.to_string(),
            role,
            members: Members::default(),
            ends: [u64::MAX; 2],
            chain: vec![certificate(&issued.certificate)?],
            key: Arc::new(key),
            roots: Arc::new(roots),
        })
    }
}

fn certificate(pem: &str) -> Result<CertificateDer<'static>, IdentityError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| IdentityError::Certificate(e.to_string()))
}

/// Listens at this address of the machine, at a port that the system chooses.
#[allow(clippy::disallowed_methods)] // This crate is the address of sockets.
pub fn listen(at: IpAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::new(at, 0))
}
