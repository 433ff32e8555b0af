//! One-time identities: two processes that share a confidential channel prove to each other over sockets who they are.
//!
//! Model: each side makes an authority, which signs one certificate and is discarded. The sides exchange the
//! certificates of these authorities; keys stay where they were made.
//! Invariant: only the holder of the key that was made for this meeting is a peer.
//! Non-goals: the channel; anything on disk.

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

/// The validity of a certificate. A day, so that clocks need not agree.
const DAYS: i64 = 1;

/// One side of a meeting.
pub struct TemporaryIdentity {
    meeting: Id,
    role: Role,
    authority: Authority,
}

impl TemporaryIdentity {
    /// One of the two sides that meet under this id.
    pub fn new(meeting: Id, role: Role) -> Result<TemporaryIdentity, IdentityError> {
        Ok(TemporaryIdentity { meeting, role, authority: Authority::new(meeting)? })
    }

    /// The certificate for the other side; it contains no secret.
    pub fn authority(&self) -> String {
        self.authority.kept().certificate
    }

    /// Credentials that accept only the side that sent `theirs`, under this name.
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

/// Listens at this address, at a port that the system chooses.
#[allow(clippy::disallowed_methods)] // Only this crate opens sockets.
pub fn listen(at: IpAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::new(at, 0))
}
