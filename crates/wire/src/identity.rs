//! Identities: how a process proves who it is, and verifies its peers.
//!
//! Model: an identity is a directory of small files: the cluster file, the authority's certificate, a certificate and
//! its key. A certificate names its host, and in a second name the node, the cluster and the role.
//! Invariant: a peer is accepted only if the cluster's authority has signed its certificate, the certificate is valid
//! today, and the signed cluster file lists its id with its key. Keys are in files that only their owner may read, and
//! in no message.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thalweg_api::{ClusterFile, Links, from_json};
use thalweg_io::small;

use crate::authority::ends_at;
use crate::hello::{Id, Role};
use crate::members::{Members, verify};

/// The name of the cluster file in an identity's directory.
pub const CLUSTER_FILE: &str = "cluster.json";
/// The authority's certificate.
pub const AUTHORITY_FILE: &str = "authority.pem";
/// The identity's own certificate.
pub const CERTIFICATE_FILE: &str = "cert.pem";
/// The identity's key.
pub const KEY_FILE: &str = "key.pem";

/// Why an identity cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Io(#[from] thalweg_io::Error),
    /// The directory contains no cluster file.
    #[error("no cluster in {}: thalweg cluster init makes one", .0.display())]
    None(PathBuf),
    /// A file is invalid.
    #[error("{} cannot be used: {}", .0.display(), .1)]
    File(PathBuf, String),
    /// The cluster file asks for unencrypted links.
    #[error(
        "{} asks for links that are not sealed, and there are none any more; in the owner's directory thalweg \
         cluster renew seals them, and install brings it",
        .0.display()
    )]
    Clear(PathBuf),
    /// Other users can read a key.
    #[error("the key {} may be read by others; chmod 600 it, and if others may have read it renew it", .0.display())]
    Open(PathBuf),
    /// Other users can put another identity into the directory.
    #[error("others may write in {}, which has an identity; chmod 700 it, and see that what is in it is yours", .0.display())]
    Writable(PathBuf),
    /// A certificate cannot carry this name.
    #[error("'{0}' is not a name for a host: letters, digits, '-' and '.', or an IP address")]
    Name(String),
    /// A certificate could not be made or used.
    #[error("certificates: {0}")]
    Certificate(String),
    /// The key does not match the certificate, as for a moment while both are replaced.
    #[error("certificates: the key is not that of the certificate")]
    Mismatch,
}

/// The identity of a process.
#[derive(Clone)]
pub struct Identity {
    /// The cluster.
    pub cluster: Id,
    /// The node, or the client.
    pub node: Id,
    /// The host's name.
    pub name: String,
    /// The role.
    pub role: Role,
    /// The members of the cluster.
    pub members: Members,
    /// The ends of its certificate's and its authority's validity, in seconds since 1970.
    pub ends: [u64; 2],
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: Arc<PrivateKeyDer<'static>>,
    pub(crate) roots: Arc<RootCertStore>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({} of {}, {})", self.name, self.cluster, self.node)
    }
}

impl Identity {
    /// Reads the identity in this directory, and its cluster file.
    pub fn load(directory: &Path) -> Result<(Identity, ClusterFile), IdentityError> {
        let (file, cluster) = read_cluster(directory)?;
        let path = |name: &str| directory.join(name);
        let wrong = |name: &str, why: String| IdentityError::File(path(name), why);
        if small::is_open_to_others(&path(KEY_FILE)) {
            return Err(IdentityError::Open(path(KEY_FILE)));
        }
        if small::is_writable_by_others(directory) {
            return Err(IdentityError::Writable(directory.into()));
        }
        let authority = certificate_in(directory, AUTHORITY_FILE)?;
        let chain = vec![certificate_in(directory, CERTIFICATE_FILE)?];
        let key = PrivateKeyDer::from_pem_slice(&small::read(&path(KEY_FILE))?)
            .map_err(|_| wrong(KEY_FILE, "it is no key".into()))?;
        let ends = [ends_at(&chain[0]), ends_at(&authority)].map(|end| end.unwrap_or(u64::MAX));
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(|e| wrong(AUTHORITY_FILE, e.to_string()))?;
        let named = Named::of(&chain[0])
            .filter(|named| named.cluster == cluster)
            .ok_or_else(|| wrong(CERTIFICATE_FILE, "it is not of this cluster".into()))?;
        let identity = Identity {
            cluster,
            node: named.node,
            name: named.host,
            role: named.role,
            members: Members::of(&file),
            ends,
            chain,
            key: Arc::new(key),
            roots: Arc::new(roots),
        };
        Ok((identity, file))
    }
}

/// The signed cluster file in a directory, and the id of its cluster.
pub fn read_cluster(directory: &Path) -> Result<(ClusterFile, Id), IdentityError> {
    let (path, text) = cluster_text(directory)?;
    let file = signed(directory, &path, &text)?;
    match file.links {
        Links::Sealed => with_id(path, file),
        Links::Clear => Err(IdentityError::Clear(path)),
    }
}

/// Reads the cluster file for the owner, who is about to sign it: it may be from before cluster files were signed, or
/// links encrypted.
pub fn read_unsigned(directory: &Path) -> Result<(ClusterFile, Id), IdentityError> {
    let (path, text) = cluster_text(directory)?;
    let file = match from_json::<ClusterFile>(&text) {
        Ok(file) if file.format == 1 => file,
        _ => signed(directory, &path, &text)?,
    };
    with_id(path, file)
}

fn signed(directory: &Path, path: &Path, text: &str) -> Result<ClusterFile, IdentityError> {
    let authority = certificate_in(directory, AUTHORITY_FILE)?;
    verify(text, &authority).map_err(|why| IdentityError::File(path.to_path_buf(), why.to_string()))
}

fn cluster_text(directory: &Path) -> Result<(PathBuf, String), IdentityError> {
    let path = directory.join(CLUSTER_FILE);
    let bytes = small::read(&path).map_err(|why| match why.source.kind() {
        std::io::ErrorKind::NotFound => IdentityError::None(directory.to_path_buf()),
        _ => why.into(),
    })?;
    let text = String::from_utf8(bytes)
        .map_err(|_| IdentityError::File(path.clone(), "it is not readable text".into()))?;
    Ok((path, text))
}

fn with_id(path: PathBuf, file: ClusterFile) -> Result<(ClusterFile, Id), IdentityError> {
    let cluster = file.id.parse().map_err(|why| IdentityError::File(path, why))?;
    Ok((file, cluster))
}

/// The certificate in a file of an identity.
fn certificate_in(directory: &Path, name: &str) -> Result<CertificateDer<'static>, IdentityError> {
    let path = directory.join(name);
    CertificateDer::from_pem_slice(&small::read(&path)?)
        .map_err(|_| IdentityError::File(path, "it is no certificate".into()))
}

/// The names in a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The host.
    pub host: String,
    /// The node.
    pub node: Id,
    /// The cluster.
    pub cluster: Id,
    /// The role.
    pub role: Role,
}

const SUFFIX: &str = "thalweg";

impl Named {
    /// Parses a certificate; `None` if it is not one of a cluster.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Named> {
        let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
        certificate.valid_dns_names().find_map(Named::parse)
    }

    /// The second name of such a certificate; the host's name comes before it.
    pub(crate) fn text(&self) -> String {
        let role = self.role.name();
        // A label of a name has at most 63 bytes, and the name 253.
        format!("{}.{}.{role}.{}.{SUFFIX}", self.node, self.cluster, self.host.replace([':', '_'], "-"))
    }

    fn parse(text: &str) -> Option<Named> {
        let mut parts = text.strip_suffix(SUFFIX)?.strip_suffix('.')?.splitn(4, '.');
        let node = parts.next()?.parse().ok()?;
        let cluster = parts.next()?.parse().ok()?;
        let role = match parts.next()? {
            "node" => Role::Node,
            "client" => Role::Client,
            _ => return None,
        };
        Some(Named { host: parts.next()?.to_string(), node, cluster, role })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_certificate_names_comes_back() {
        let named = Named { host: "n1.example".into(), node: Id(1), cluster: Id(2), role: Role::Client };
        assert_eq!(Named::parse(&named.text()), Some(named));
        assert_eq!(Named::parse("n1.example"), None);
        assert_eq!(Named::parse("thalweg"), None);
    }
}
