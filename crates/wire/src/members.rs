//! The members of a cluster: the list that its authority has signed, and who is let in by it.
//!
//! ```text
//! {"format":2, ... ,"dropped":[]}                        the list, as the authority signs it
//! {"format":2, ... ,"dropped":[],"signature":"HEX"}      the file: the same bytes, and the signature before the last brace
//! ```
//!
//! Invariant: a list counts only if the authority's key has signed exactly its bytes. A certificate counts only if the list
//! has its id, in its role, with the SHA-256 of its public key. A link lives only as long as the id that its peer proved is
//! listed. One exception lets jobs between hosts outlive a renewal: a link with a host that was renewed stays for
//! [`RENEWAL_SECONDS`] at most, and once the host has shown its new certificate nothing new may be asked on it.
//! Non-goals: which of two lists is the newer; what members may ask.

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

/// What stands between a list and its signature.
const MARK: &str = ",\"signature\":\"";
/// Before the list in what is signed, so that it is no signature of anything else.
const PURPOSE: &[u8] = b"thalweg cluster file\0";

/// How long a link stays with a host that was renewed since.
const RENEWAL_SECONDS: u64 = 60;

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
    // Nothing may stand behind what is verified: the text is kept and passed on as it came.
    let whole = text.strip_suffix('\n').unwrap_or(text);
    let (open, rest) = whole.rsplit_once(MARK).ok_or(unsigned)?;
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
    /// When it is to be closed, if its host was renewed.
    until_ns: Option<u64>,
    /// Its host has shown its new certificate.
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
    /// Those of a cluster file.
    pub(crate) fn of(file: &ClusterFile) -> Members {
        let members = Members::default();
        members.set(file);
        members
    }

    /// They are those of this file from now on, unless a newer one was set meanwhile. Links with all others are closed.
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

    /// Closes the links that have stayed long enough with hosts that were renewed.
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

    /// Of the list.
    pub fn epoch(&self) -> u64 {
        self.0.lock().expect("no holder panics").epoch
    }

    /// Whether this id is listed, or there is no list.
    pub fn has(&self, id: Id) -> bool {
        self.0.lock().expect("no holder panics").listed.as_ref().is_none_or(|listed| listed.contains_key(&id))
    }

    /// What a peer may ask: as the list has it. A host that was renewed since its link was opened may go on until it has shown its
    /// new certificate; who is not listed may not more than look, until its link is closed.
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

    /// Whether a certificate is that of the host of this name, or there is no list.
    pub(crate) fn is_host(&self, certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
        let roll = self.0.lock().expect("no holder panics");
        let Some(listed) = &roll.listed else { return true };
        let member = Named::of(certificate).and_then(|named| listed.get(&named.node));
        member.is_some_and(|member| {
            member.role == Role::Node && ServerName::try_from(&*member.name).is_ok_and(|host| host == *name)
        })
    }

    /// Closes this link once its peer is listed no longer; that may have come about since it was let in.
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

    /// What went wrong: of two files that came at once the older one was set last, and brought back a client that the newer one
    /// had dropped, until the next change.
    #[test]
    fn an_older_list_that_is_set_late_changes_nothing() {
        let members = Members::of(&cluster(1, 1, 2));
        members.set(&cluster(3, 1, 4));
        members.set(&cluster(2, 1, 2));
        assert_eq!((members.epoch(), members.has(Id(2)), members.has(Id(4))), (3, false, true));
    }

    /// What went wrong: a link that was opened with the old key was compared with the list by its name, and lived on with all
    /// rights. Principle: a link is of the id that it proved.
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
        // It has shown its new certificate: nothing new is asked on the old link.
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
