//! Keys exported from a TLS session (RFC 8446, 7.5), for data that belongs to a link but travels elsewhere, such as
//! datagrams.
//!
//! ```text
//! exporter secret --label--> secret of the label --"exporter", hash of the context--> key
//! ```
//!
//! Invariant: both ends of a link derive the same key from the same label and context, and no third party can. Another
//! link, label or context gives another key.
//! Non-goals: the use of keys, nonces, and limits of use.

use ring::digest::digest;
use ring::hkdf::{self, HKDF_SHA256, HKDF_SHA384, Prk};

use crate::renew::{SECRET_BYTES_MAX, expand};

/// Bytes of an exported key, the key size of AES-256 and ChaCha20.
pub const EXPORTED_KEY_BYTES: usize = 32;

/// The exporter secret of one session.
pub(crate) struct Exporter {
    hash: hkdf::Algorithm,
    secret: Prk,
}

impl Exporter {
    /// `None` if it is not a secret of a cipher suite that is used here.
    pub(crate) fn new(secret: &[u8]) -> Option<Exporter> {
        let hash = match secret.len() {
            32 => HKDF_SHA256,
            48 => HKDF_SHA384,
            _ => return None,
        };
        Some(Exporter { hash, secret: Prk::new_less_safe(hash, secret) })
    }

    /// The key for this label and context.
    pub(crate) fn key(&self, label: &str, context: &[u8]) -> [u8; EXPORTED_KEY_BYTES] {
        let hash = self.hash.hmac_algorithm().digest_algorithm();
        let mut labelled = [0; SECRET_BYTES_MAX];
        let labelled = &mut labelled[..hash.output_len()];
        expand(&self.secret, label, digest(hash, &[]).as_ref(), labelled);
        let labelled = Prk::new_less_safe(self.hash, labelled);
        let mut key = [0; EXPORTED_KEY_BYTES];
        expand(&labelled, "exporter", digest(hash, context).as_ref(), &mut key);
        key
    }
}
