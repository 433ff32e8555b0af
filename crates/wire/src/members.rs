//! The members of a cluster: the list that its authority has signed, and who is let in by it.
//!
//! ```text
//! {"format":2, ... ,"dropped":[]}                        the list, as the authority signs it
//! {"format":2, ... ,"dropped":[],"signature":"HEX"}      the file: the same bytes, and the signature before the last brace
//! ```
//!
//! Law: a list counts only if the authority's key has signed exactly its bytes. A certificate counts only if the list
//! has its id, in its role, with the SHA-256 of its public key. A link lives only as long as its peer's name is listed; a peer that
//! was renewed meanwhile keeps the links that it has, and one that was dropped none.
//! Non-goals: which of two lists is the newer; what members may ask.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use thalweg_api::{ClusterFile, May, from_json, to_json};

use crate::authority::Authority;
use crate::hello::{Id, Role};
use crate::identity::{IdentityError, Named};
use crate::link::Watched;

/// What stands between a list and its signature.
const MARK: &str = ",\"signature\":\"";
/// Before the list in what is signed, so that it is no signature of anything else.
const PURPOSE: &[u8] = b"thalweg cluster file\0";

/// The text of a cluster file, signed.
pub fn sign(file: &ClusterFile, authority: &Authority) -> Result<String, IdentityError> {
    let list = to_json(file);
    let signature = authority.sign(&signed(&list))?;
    let open = list.strip_suffix('}').expect("a list is an object");
    Ok(format!("{open}{MARK}{}\"}}\n", hex(&signature)))
}

/// The cluster file that this text is, if this authority has signed it.
pub fn verify(text: &str, authority: &CertificateDer<'_>) -> Result<ClusterFile, String> {
    let unsigned =
        "it is not signed; in the owner's directory thalweg cluster renew signs it, and install brings it";
    let forged =
        "its signature is not the authority's; bring the owner's file again with thalweg cluster install";
    let (open, rest) = text.trim_end().rsplit_once(MARK).ok_or(unsigned)?;
    let signature = rest.strip_suffix("\"}").and_then(bytes_of).ok_or(forged)?;
    let list = format!("{open}}}");
    let authority = webpki::EndEntityCert::try_from(authority).map_err(|e| format!("{AUTHORITY}: {e}"))?;
    authority
        .verify_signature(webpki::ring::ECDSA_P256_SHA256, &signed(&list), &signature)
        .map_err(|_| forged)?;
    from_json(&list)
}

const AUTHORITY: &str = "the authority's certificate";

fn signed(list: &str) -> Vec<u8> {
    [PURPOSE, list.as_bytes()].concat()
}

/// The SHA-256 of the public key in a certificate (PEM), as cluster files have it; `None` if it is none.
pub fn key_of(certificate: &str) -> Option<String> {
    key_in(&CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?)
}

fn key_in(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    Some(hex(digest(&SHA256, &certificate.subject_public_key_info()).as_ref()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(pair).collect())?
}

/// What becomes of somebody who shows a certificate of the authority's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Listed,
    Dropped,
    Unlisted,
}

/// Who is of the cluster. All clones are one list, which may change while links use it. The default has no list: then
/// all are whom the authority has signed.
#[derive(Clone, Default)]
pub struct Members(Arc<Mutex<Roll>>);

#[derive(Default)]
struct Roll {
    epoch: u64,
    listed: Option<BTreeMap<Id, Member>>,
    dropped: BTreeSet<Id>,
    /// Links with peers that were listed when they were opened.
    links: Vec<Held>,
}

struct Held {
    id: Id,
    name: String,
    role: Role,
    link: Watched,
}

struct Member {
    name: String,
    role: Role,
    key: String,
    may: May,
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Members(epoch {})", self.epoch())
    }
}

impl Members {
    /// Those of a cluster file.
    pub(crate) fn of(file: &ClusterFile) -> Members {
        let members = Members::default();
        members.set(file);
        members
    }

    /// They are those of this file from now on. Links with all others are closed.
    pub fn set(&self, file: &ClusterFile) {
        let member =
            |name: &str, key: &str, role, may| Member { name: name.into(), role, key: key.into(), may };
        let hosts = file.hosts.iter().map(|h| (&h.id, member(&h.name, &h.key, Role::Node, May::All)));
        let clients = file.clients.iter().map(|c| (&c.id, member(&c.name, &c.key, Role::Client, c.may)));
        let with_ids = hosts.chain(clients).filter_map(|(id, member)| Some((id.parse().ok()?, member)));
        let listed: BTreeMap<Id, Member> = with_ids.collect();
        let mut roll = self.0.lock().expect("no holder panics");
        let since = roll.epoch;
        let was_dropped =
            |name: &str| file.dropped.iter().any(|gone| gone.name == name && gone.epoch > since);
        let stays = |held: &Held| {
            let is_renewed =
                || listed.values().any(|member| (&member.name, member.role) == (&held.name, held.role));
            listed.contains_key(&held.id) || (is_renewed() && !was_dropped(&held.name))
        };
        let links = std::mem::take(&mut roll.links).into_iter().filter(|held| !held.link.has_gone());
        let (links, gone): (Vec<Held>, Vec<Held>) = links.partition(stays);
        *roll = Roll {
            epoch: file.epoch,
            listed: Some(listed),
            dropped: file.dropped.iter().filter_map(|gone| gone.id.parse().ok()).collect(),
            links,
        };
        drop(roll);
        gone.iter().for_each(|held| held.link.close());
    }

    /// Of the list.
    pub fn epoch(&self) -> u64 {
        self.0.lock().expect("no holder panics").epoch
    }

    /// Whether this id is listed, or there is no list.
    pub fn has(&self, id: Id) -> bool {
        self.0.lock().expect("no holder panics").listed.as_ref().is_none_or(|listed| listed.contains_key(&id))
    }

    /// What a peer may ask: as the list has it, under another id if it was renewed since its link was opened. Who is not
    /// listed may not more than look, until its link is closed.
    pub fn may(&self, id: Id) -> May {
        let roll = self.0.lock().expect("no holder panics");
        let Some(listed) = &roll.listed else { return May::All };
        let renewed = || {
            let held = roll.links.iter().find(|held| held.id == id)?;
            listed.values().find(|member| (&member.name, member.role) == (&held.name, held.role))
        };
        listed.get(&id).or_else(renewed).map_or(May::Status, |member| member.may)
    }

    pub(crate) fn standing(&self, certificate: &CertificateDer<'_>) -> Standing {
        let roll = self.0.lock().expect("no holder panics");
        let Some(listed) = &roll.listed else { return Standing::Listed };
        let Some(named) = Named::of(certificate) else { return Standing::Unlisted };
        let shown = key_in(certificate);
        match listed.get(&named.node) {
            Some(member) if member.role == named.role && Some(&member.key) == shown.as_ref() => {
                Standing::Listed
            }
            None if roll.dropped.contains(&named.node) => Standing::Dropped,
            _ => Standing::Unlisted,
        }
    }

    /// Closes this link once its peer is listed no longer; that may have come about since it was let in.
    pub(crate) fn watch(&self, peer: &Named, link: Watched) {
        let mut roll = self.0.lock().expect("no holder panics");
        if roll.listed.as_ref().is_some_and(|listed| !listed.contains_key(&peer.node)) {
            drop(roll);
            return link.close();
        }
        roll.links.retain(|held| !held.link.has_gone());
        roll.links.push(Held { id: peer.node, name: peer.host.clone(), role: peer.role, link });
    }
}
