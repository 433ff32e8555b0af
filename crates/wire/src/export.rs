//! Keys exported from a TLS session (RFC 8446, 7.5), for what belongs to a link and does not travel on it: datagrams, say.
//!
//! ```text
//! exporter secret --label--> secret of the label --"exporter", hash of the context--> key
//! ```
//!
//! Invariant: both ends of a link derive the same key from the same label and context, and nobody else does. Another link
//! has other keys, and so has another label or context.
//! Non-goals: who uses a key for what, nonces, and when a key is used up.

use ring::digest::digest;
use ring::hkdf::{self, HKDF_SHA256, HKDF_SHA384, Prk};

use crate::renew::{SECRET_BYTES_MAX, expand};

/// Bytes of an exported key: as many as AES-256 and ChaCha20 take.
pub const EXPORTED_KEY_BYTES: usize = 32;

/// The exporter secret of one session.
pub(crate) struct Exporter {
    hash: hkdf::Algorithm,
    secret: Prk,
}

impl Exporter {
    /// `None` if this is no secret of a cipher suite that is used here.
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
