//! The members of a cluster: the list that its authority has signed, and the admission of peers by it.
//!
//! ```text
//! {"format":2, ... ,"dropped":[]}                     the list, as the authority signs it
//! {"format":2, ... ,"dropped":[],"signature":"HEX"}   the file: the same, and the signature before the last brace
//! ```
//!
//! Invariant: a list is valid only if the authority's key has signed exactly its bytes. A certificate is accepted only
//! if the list has its id, in its role, with the SHA-256 of its public key. A link lives only as long as the id that
//! its peer proved is listed. One exception lets jobs between hosts outlive a renewal: a link with a host that was
//! renewed stays for [`RENEWAL_SECONDS`] at most, and once the host has shown its new certificate no new requests are
//! accepted on it.
//! Non-goals: which of two lists is newer; rights of members.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use ring::digest::{SHA256, digest};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use thalweg_api::{ClusterFile, May, from_json, to_json};
use thalweg_base::clock::now_ns;

use crate::authority::Authority;
use crate::hello::{Id, Role};
use crate::identity::{IdentityError, Named};
use crate::link::Watched;

/// The text between a list and its signature.
const MARK: &str = ",\"signature\":\"";
/// Precedes the list in the signed bytes, so that the signature fits nothing else.
const PURPOSE: &[u8] = b"thalweg cluster file\0";

/// How long a link with a renewed host stays open.
const RENEWAL_SECONDS: u64 = 60;

/// Signs a cluster file.
pub fn sign(file: &ClusterFile, authority: &Authority) -> Result<String, IdentityError> {
    let list = to_json(file);
    let signature = authority.sign(&signed(&list))?;
    let open = list.strip_suffix('}').expect("a list is an object");
    Ok(format!("{open}{MARK}{}\"}}\n", hex(&signature)))
}

/// Why a cluster file is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum NotVerified {
    /// It has no signature.
    #[error(
        "it is not signed; in the owner's directory thalweg cluster renew signs it, and install brings it"
    )]
    Unsigned,
    /// Its signature is not the authority's.
    #[error(
        "its signature is not the authority's; bring the owner's file again with thalweg cluster install"
    )]
    Forged,
    /// The certificate of the authority cannot be parsed.
    #[error("the authority's certificate: {0}")]
    Authority(webpki::Error),
    /// What the authority signed is not a list of members.
    #[error("{0}")]
    Unreadable(String),
}

/// Verifies the signature of a cluster file and parses it.
pub fn verify(text: &str, authority: &CertificateDer<'_>) -> Result<ClusterFile, NotVerified> {
    use NotVerified::{Forged, Unsigned};
    // Nothing may follow the verified bytes, because the text is stored and passed on as it is.
    let whole = text.strip_suffix('\n').unwrap_or(text);
    let (open, rest) = whole.rsplit_once(MARK).ok_or(Unsigned)?;
    let signature = rest.strip_suffix("\"}").and_then(bytes_of).ok_or(Forged)?;
    let list = format!("{open}}}");
    let authority = webpki::EndEntityCert::try_from(authority).map_err(NotVerified::Authority)?;
    authority
        .verify_signature(webpki::ring::ECDSA_P256_SHA256, &signed(&list), &signature)
        .map_err(|_| Forged)?;
    from_json(&list).map_err(NotVerified::Unreadable)
}

fn signed(list: &str) -> Vec<u8> {
    [PURPOSE, list.as_bytes()].concat()
}

/// The SHA-256 of the public key in a certificate (PEM), as in cluster files; `None` if it cannot be parsed.
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

/// The standing of the owner of a certificate that the authority has signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Listed,
    Dropped,
    Unlisted,
}

/// The members of a cluster. Clones share one list, which may change while links use it. The default has no list: then
/// the authority's signature is enough.
#[derive(Clone, Default)]
pub struct Members(Arc<Mutex<Roll>>);

#[derive(Default)]
struct Roll {
    epoch: u64,
    listed: Option<BTreeMap<Id, Member>>,
    dropped: BTreeSet<Id>,
    /// Links with peers that were listed when the links were opened.
    links: Vec<Held>,
}

struct Held {
    id: Id,
    name: String,
    role: Role,
    link: Watched,
    /// When the link will be closed, if its host was renewed.
    until_ns: Option<u64>,
    /// Whether its host has shown its new certificate.
    is_superseded: bool,
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
    /// The members in a cluster file.
    pub(crate) fn of(file: &ClusterFile) -> Members {
        let members = Members::default();
        members.set(file);
        members
    }

    /// Takes the members of this file, unless a newer file is already set, and closes the links of all others.
    pub fn set(&self, file: &ClusterFile) {
        let member =
            |name: &str, key: &str, role, may| Member { name: name.into(), role, key: key.into(), may };
        let hosts = file.hosts.iter().map(|h| (&h.id, member(&h.name, &h.key, Role::Node, May::All)));
        let clients = file.clients.iter().map(|c| (&c.id, member(&c.name, &c.key, Role::Client, c.may)));
        let with_ids = hosts.chain(clients).filter_map(|(id, member)| Some((id.parse().ok()?, member)));
        let listed: BTreeMap<Id, Member> = with_ids.collect();
        let mut roll = self.0.lock().expect("no holder panics");
        if roll.listed.is_some() && file.epoch <= roll.epoch {
            return;
        }
        let since = roll.epoch;
        let was_dropped =
            |name: &str| file.dropped.iter().any(|gone| gone.name == name && gone.epoch > since);
        let until_ns = now_ns() + RENEWAL_SECONDS * 1_000_000_000;
        let stays = |held: &mut Held| {
            let is_host = |member: &Member| (&member.name, member.role) == (&held.name, Role::Node);
            let is_renewed = || listed.values().any(is_host) && !was_dropped(&held.name);
            if listed.contains_key(&held.id) {
                return true;
            }
            held.until_ns.get_or_insert(until_ns);
            held.role == Role::Node && is_renewed()
        };
        let (mut links, mut gone) = (Vec::new(), Vec::new());
        for mut held in std::mem::take(&mut roll.links).into_iter().filter(|held| !held.link.has_gone()) {
            if stays(&mut held) { &mut links } else { &mut gone }.push(held);
        }
        *roll = Roll {
            epoch: file.epoch,
            listed: Some(listed),
            dropped: file.dropped.iter().filter_map(|gone| gone.id.parse().ok()).collect(),
            links,
        };
        drop(roll);
        gone.iter().for_each(|held| held.link.close());
    }

    /// Closes links with renewed hosts whose time is over.
    pub fn close_old(&self) {
        self.close_old_at(now_ns());
    }

    fn close_old_at(&self, now_ns: u64) {
        let mut roll = self.0.lock().expect("no holder panics");
        let is_old = |held: &Held| held.until_ns.is_some_and(|until_ns| until_ns <= now_ns);
        let (old, links): (Vec<Held>, Vec<Held>) =
            std::mem::take(&mut roll.links).into_iter().partition(is_old);
        roll.links = links;
        drop(roll);
        old.iter().for_each(|held| held.link.close());
    }

    /// The epoch of the list.
    pub fn epoch(&self) -> u64 {
        self.0.lock().expect("no holder panics").epoch
    }

    /// Whether this id is listed, or there is no list.
    pub fn has(&self, id: Id) -> bool {
        self.0.lock().expect("no holder panics").listed.as_ref().is_none_or(|listed| listed.contains_key(&id))
    }

    /// The rights of a peer in the list. A host that was renewed since its link was opened keeps its rights until it
    /// has shown its new certificate; a peer that is not listed has status rights until its link is closed.
    pub fn may(&self, id: Id) -> May {
        let roll = self.0.lock().expect("no holder panics");
        let Some(listed) = &roll.listed else { return May::All };
        let goes_on = || roll.links.iter().any(|held| held.id == id && !held.is_superseded);
        match listed.get(&id) {
            Some(member) => member.may,
            None if goes_on() => May::All,
            None => May::Status,
        }
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

    /// Whether a certificate belongs to the host of this name, or there is no list.
    pub(crate) fn is_host(&self, certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
        let roll = self.0.lock().expect("no holder panics");
        let Some(listed) = &roll.listed else { return true };
        let member = Named::of(certificate).and_then(|named| listed.get(&named.node));
        member.is_some_and(|member| {
            member.role == Role::Node && ServerName::try_from(&*member.name).is_ok_and(|host| host == *name)
        })
    }

    /// Registers a link, which is closed once its peer is no longer listed; that may have happened since the handshake.
    pub(crate) fn watch(&self, peer: &Named, link: Watched) {
        let mut roll = self.0.lock().expect("no holder panics");
        if roll.listed.as_ref().is_some_and(|listed| !listed.contains_key(&peer.node)) {
            drop(roll);
            return link.close();
        }
        roll.links.retain(|held| !held.link.has_gone());
        for held in roll.links.iter_mut().filter(|held| held.until_ns.is_some() && held.name == peer.host) {
            held.is_superseded = true;
        }
        let (id, name, role) = (peer.node, peer.host.clone(), peer.role);
        roll.links.push(Held { id, name, role, link, until_ns: None, is_superseded: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Link;
    use crate::tls::Terms;

    fn cluster(epoch: u64, host: u128, client: u128) -> ClusterFile {
        let text = format!(
            r#"{{"format":2,"name":"x","id":"{:032x}","epoch":{epoch},"links":"sealed","hosts":[{{"name":"n1",
            "address":"n1:1","id":"{host:032x}","key":"","roles":[],"data":[]}}],"clients":[{{"name":"ada",
            "id":"{client:032x}","key":"","may":"all"}}],"dropped":[]}}"#,
            9
        );
        from_json(&text).unwrap()
    }

    /// What went wrong: of two files that arrived at the same time the older one was set last, and brought back a
    /// client that the newer one had dropped.
    #[test]
    fn an_older_list_that_is_set_late_changes_nothing() {
        let members = Members::of(&cluster(1, 1, 2));
        members.set(&cluster(3, 1, 4));
        members.set(&cluster(2, 1, 2));
        assert_eq!((members.epoch(), members.has(Id(2)), members.has(Id(4))), (3, false, true));
    }

    /// What went wrong: a link that was opened with the old key was compared with the list by its name, and kept all
    /// rights. Principle: a link belongs to the id that it proved.
    #[test]
    fn a_link_of_before_a_renewal_ends_with_it_or_of_a_host_within_a_minute() {
        let members = Members::of(&cluster(1, 1, 2));
        let named =
            |host: &str, node: u128, role| Named { host: host.into(), node: Id(node), cluster: Id(9), role };
        let mut others = Vec::new();
        let mut watched = |named: &Named| -> Link {
            let (near, far) = crate::pair(Terms::default()).unwrap();
            others.push(far);
            members.watch(named, near.watch());
            near
        };
        let client = watched(&named("ada", 2, Role::Client));
        let host = watched(&named("n1", 1, Role::Node));
        members.set(&cluster(2, 3, 4));
        assert!(!client.is_open() && host.is_open());
        assert_eq!((members.may(Id(2)), members.may(Id(1))), (May::Status, May::All));
        // It has shown its new certificate: no new requests on the old link.
        let renewed = watched(&named("n1", 3, Role::Node));
        assert_eq!((members.may(Id(1)), members.may(Id(3))), (May::Status, May::All));
        members.set(&cluster(3, 3, 4));
        let soon = now_ns() + 59 * 1_000_000_000;
        members.close_old_at(soon);
        assert!(host.is_open(), "what runs on it goes on");
        members.close_old_at(soon + 2_000_000_000);
        assert!(!host.is_open() && renewed.is_open());
    }
}
