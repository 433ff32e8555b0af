//! The authority of a cluster, which makes the certificates of its hosts and clients.
//!
//! Model: the authority is a key with a self-signed certificate. Each host and each client gets a certificate with its
//! own key and id. The authority also signs the cluster file, which lists the valid certificates.
//! Non-goals: storing files; other clusters.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SigningKey,
};
use ring::rand::{SecureRandom, SystemRandom};
use thalweg_base::clock::wall_seconds;
use time::OffsetDateTime;

use crate::hello::Id;
use crate::identity::{IdentityError, Named};

/// The validity of the authority's own certificate.
const AUTHORITY_DAYS: i64 = 3650;
/// The validity of other certificates, unless specified.
pub const CERTIFICATE_DAYS: i64 = 365;
/// The largest difference between clocks.
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
    /// The key. It belongs in a file that only its owner may read.
    pub key: String,
}

/// The authority of one cluster.
pub struct Authority {
    cluster: Id,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// A new authority with a new key.
    pub fn new(cluster: Id) -> Result<Authority, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let params = authority_params(cluster)?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Authority { cluster, issuer: Issuer::new(params, key), certificate })
    }

    /// The authority that was stored.
    pub fn load(cluster: Id, certificate: &str, key: &str) -> Result<Authority, IdentityError> {
        let issuer = Issuer::new(authority_params(cluster)?, KeyPair::from_pem(key)?);
        Ok(Authority { cluster, issuer, certificate: certificate.to_string() })
    }

    /// Its certificate and its key, to be stored.
    pub fn kept(&self) -> Issued {
        Issued { certificate: self.certificate.clone(), key: self.issuer.key().serialize_pem() }
    }

    /// Signs these bytes.
    pub(crate) fn sign(&self, bytes: &[u8]) -> Result<Vec<u8>, IdentityError> {
        Ok(self.issuer.key().sign(bytes)?)
    }

    /// Makes a certificate that is valid for `days` days from now; with a negative number it has expired.
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

/// The end of a certificate's validity, in seconds since 1970; `None` if it cannot be parsed.
pub fn ends_at(certificate: &[u8]) -> Option<u64> {
    let (SEQUENCE, inside, _) = element(certificate)? else { return None };
    let (SEQUENCE, mut rest, _) = element(inside)? else { return None };
    if *rest.first()? == VERSION {
        rest = element(rest)?.2;
    }
    // The serial number, the algorithm and the issuer; then the validity.
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (SEQUENCE, validity, _) = element(rest)? else { return None };
    let (kind, end, _) = element(element(validity)?.2)?;
    let digits = std::str::from_utf8(end).ok()?.strip_suffix('Z')?;
    let digits = match kind {
        UTC_TIME => format!("20{digits}"),
        GENERAL_TIME => digits.to_string(),
        _ => return None,
    };
    let number = |from: usize, to: usize| digits.get(from..to)?.parse::<u8>().ok();
    let month = time::Month::try_from(number(4, 6)?).ok()?;
    let day = time::Date::from_calendar_date(digits.get(..4)?.parse().ok()?, month, number(6, 8)?).ok()?;
    let at = day.with_hms(number(8, 10)?, number(10, 12)?, number(12, 14)?).ok()?;
    u64::try_from(at.assume_utc().unix_timestamp()).ok()
}

/// The DER tags (X.690) that matter here.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERAL_TIME: u8 = 0x18;

/// The first DER element of these bytes: its tag, its contents, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (inside, behind) = rest.split_at_checked(len)?;
    Some((tag, inside, behind))
}

/// Whether a certificate can carry this host name.
pub fn is_host_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    // The second name takes 82 of the 253 bytes of a name.
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
