//! The authority of a cluster: makes the certificates that its hosts and clients show.
//!
//! Model: one key and a certificate for it, signed by itself. Each host and each client gets a certificate with a key of
//! its own and an id; renewing keeps the id, so who was dropped stays dropped.
//! Non-goals: keeping files (that is the node room's), and any cluster but its own.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use ring::rand::{SecureRandom, SystemRandom};
use thalweg_base::clock::wall_seconds;
use time::OffsetDateTime;

use crate::hello::Id;
use crate::identity::{IdentityError, Named};

/// How long the authority's own certificate holds.
const AUTHORITY_DAYS: i64 = 3650;
/// How long the others hold, unless said otherwise.
pub const CERTIFICATE_DAYS: i64 = 365;
/// Clocks may differ by so much.
const LEEWAY_SECONDS: i64 = 3600;

impl From<rcgen::Error> for IdentityError {
    fn from(e: rcgen::Error) -> IdentityError {
        IdentityError::Certificate(e.to_string())
    }
}

/// 128 random bits.
pub fn new_id() -> Id {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).expect("the kernel gives random numbers");
    Id(u128::from_be_bytes(bytes))
}

/// A certificate and its key, as PEM.
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The key. For a file that only its owner may read, and nothing else.
    pub key: String,
}

/// Makes certificates of one cluster.
pub struct Authority {
    cluster: Id,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// A new one, with a new key.
    pub fn new(cluster: Id) -> Result<Authority, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let params = authority_params(cluster)?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Authority { cluster, issuer: Issuer::new(params, key), certificate })
    }

    /// The one that was kept.
    pub fn load(cluster: Id, certificate: &str, key: &str) -> Result<Authority, IdentityError> {
        let issuer = Issuer::new(authority_params(cluster)?, KeyPair::from_pem(key)?);
        Ok(Authority { cluster, issuer, certificate: certificate.to_string() })
    }

    /// To be kept: its certificate and its key.
    pub fn kept(&self) -> Issued {
        Issued { certificate: self.certificate.clone(), key: self.issuer.key().serialize_pem() }
    }

    /// A certificate that holds for so many days from now; with a negative number it has expired.
    pub fn issue(&self, named: &Named, days: i64) -> Result<Issued, IdentityError> {
        assert_eq!(named.cluster, self.cluster, "an authority speaks for its own cluster");
        if !is_host_name(&named.host) {
            return Err(IdentityError::Name(named.host.clone()));
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(vec![named.host.clone(), named.text()])?;
        params.distinguished_name = common_name(&named.host);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = validity(days)?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// Whether a certificate can carry it.
pub fn is_host_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    // The second name takes 82 of the 253 bytes that one may have.
    name.len() <= 160 && (name.parse::<std::net::IpAddr>().is_ok() || name.split('.').all(label))
}

fn authority_params(cluster: Id) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = common_name(&format!("thalweg authority {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = validity(AUTHORITY_DAYS)?;
    Ok(params)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn validity(days: i64) -> Result<(OffsetDateTime, OffsetDateTime), IdentityError> {
    let now = wall_seconds() as i64;
    let at = |seconds| {
        OffsetDateTime::from_unix_timestamp(seconds).map_err(|e| IdentityError::Certificate(e.to_string()))
    };
    let end = now + days * 86_400;
    Ok((at(now.min(end) - LEEWAY_SECONDS)?, at(end)?))
}
