//! The files of a cluster, which the owner creates and changes.
//!
//! Model: the owner's directory holds the cluster file, the authority with its key, and a client's certificate. Below
//! it, `hosts/NAME` holds the identity of each host and `clients/NAME` that of another person or program: a
//! certificate, its key, and the same cluster file.
//! Invariant: the authority's key stays in the owner's directory and signs every cluster file. Every change increments
//! the epoch; a node accepts only a cluster file with a larger epoch than its own. Changes exclude each other
//! ([`LOCK`]), so no epoch has two files.
//! Non-goals: copying files to hosts.

use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use thalweg_api::{ClusterClient, ClusterFile, ClusterHost, DroppedHost, Links, May};
use thalweg_base::clock::wall_seconds;
use thalweg_base::names;
use thalweg_base::units::Size;
use thalweg_io::small;

use crate::cluster_error::{BadFile, BadHost, ClusterError as Error, ClusterResult as Result, Rejected};
use crate::{
    AUTHORITY_FILE, Authority, CERTIFICATE_DAYS, CERTIFICATE_FILE, CLUSTER_FILE, Credentials, Id, Identity,
    IdentityError, Issued, KEY_FILE, Named, Role, is_host_name, key_of, new_id, read_cluster, read_unsigned,
    sign, verify,
};

/// The default port of a node.
pub const PORT: u16 = 7171;
/// The authority's key.
const AUTHORITY_KEY_FILE: &str = "authority.key";
/// Locked during a change of the cluster.
const LOCK: &str = "cluster.lock";
/// The directory of the hosts' identities.
const HOSTS: &str = "hosts";
/// The directory of the identities of clients other than the owner.
const CLIENTS: &str = "clients";
/// The owner's own name as a client.
const OWNER: &str = "client";
/// How often, and at which interval, to check whether a key and its certificate match: their files are written in turn.
const RENEWAL_LOOKS: usize = 20;
const RENEWAL_LOOK: Duration = Duration::from_millis(10);
/// The most hosts of a cluster.
pub const HOSTS_MAX: usize = 1024;
/// The longest name of a new cluster.
pub(crate) const CLUSTER_NAME_BYTES_MAX: usize = 64;
/// The silence in milliseconds after which a peer may be said to count as dead. A shorter one would end links to hosts
/// that are only busy.
pub(crate) const DEAD_MS: RangeInclusive<u64> = 400..=600_000;
/// The most clients of a cluster.
pub const CLIENTS_MAX: usize = 256;
/// The most dropped members that are remembered. Older ones are refused as not listed.
const DROPPED_MAX: usize = 1024;
/// How long before a certificate's end to warn.
const WARNING_SECONDS: u64 = 30 * DAY_SECONDS;
const DAY_SECONDS: u64 = 86_400;

/// The directory of the hosts' identities, below the owner's.
pub fn hosts_directory(owner: &Path) -> PathBuf {
    owner.join(HOSTS)
}

/// The directory of a host's identity, below the owner's.
pub fn host_directory(owner: &Path, host: &str) -> PathBuf {
    hosts_directory(owner).join(host)
}

/// The directory of a client's identity, below the owner's.
pub fn client_directory(owner: &Path, client: &str) -> PathBuf {
    owner.join(CLIENTS).join(client)
}

/// Prefixes of paths with another meaning, such as `volume:`; no host may have such a name.
const SCHEMES: [&str; 6] = ["volume", "table", "nodes", "client", "null", "zero"];

/// Parses a host: `NAME`, `NAME=ADDRESS` or `NAME=ADDRESS:PORT`, perhaps followed by `@WORD,WORD`; each word is a role,
/// `data=DIR`, `memory=SIZE` or `resp=PORT`. A comma may stand for the `@`.
fn host_of(typed: &str) -> Result<ClusterHost> {
    let (typed, words) = typed.split_once(['@', ',']).unwrap_or((typed, ""));
    let (mut roles, mut data, mut memory_bytes, mut resp) = (Vec::new(), Vec::new(), None, None);
    for word in words.split(',').filter(|word| !word.is_empty()) {
        match word.split_once('=') {
            Some(("data", directory)) if directory.starts_with('/') => data.push(directory.to_string()),
            Some(("data", _)) => return Err(BadHost::Data(word.into()).into()),
            Some(("memory", size)) => match size.parse() {
                Ok(Size::Bytes(bytes)) => memory_bytes = Some(bytes),
                _ => return Err(BadHost::Memory(word.into()).into()),
            },
            Some(("resp", port)) => match port.parse() {
                Ok(port) if port > 0 => resp = Some(port),
                _ => return Err(BadHost::Resp(word.into()).into()),
            },
            None if is_host_name(word) && !word.contains('.') => roles.push(word.to_string()),
            _ => return Err(BadHost::Role(word.into()).into()),
        }
    }
    let (name, address) = typed.split_once('=').unwrap_or((typed, typed));
    if !is_host_name(name) {
        return Err(BadHost::Name(name.into()).into());
    }
    if SCHEMES.contains(&name) {
        return Err(BadHost::Reserved(name.into()).into());
    }
    let address = address_as(address).ok_or_else(|| BadHost::Address(address.into()))?;
    if let Some(port) = resp.filter(|port| address.ends_with(&format!(":{port}"))) {
        return Err(BadHost::RespOfNode(port).into());
    }
    let id = new_id().to_string();
    Ok(ClusterHost { name: name.into(), address, id, key: String::new(), roles, data, memory_bytes, resp })
}

/// Completes an address: a name or an IP address, with or without a port.
fn address_as(typed: &str) -> Option<String> {
    if let Ok(ip) = typed.parse::<std::net::IpAddr>() {
        return Some(SocketAddr::new(ip, PORT).to_string());
    }
    if typed.parse::<SocketAddr>().is_ok_and(|address| address.port() > 0) {
        return Some(typed.into());
    }
    let (host, port) =
        typed.rsplit_once(':').map_or((typed, Some(PORT)), |(host, port)| (host, port.parse().ok()));
    let port = port.filter(|port| *port > 0)?;
    is_host_name(host).then(|| format!("{host}:{port}"))
}

/// The name in the description of a host.
pub fn name_of(typed: &str) -> &str {
    typed.split(['=', '@', ',']).next().unwrap_or(typed)
}

/// Resolves the address of a host's node.
pub fn address_of(host: &ClusterHost) -> Result<SocketAddr> {
    let found = host.address.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| Error::UnknownAddress { host: host.name.clone(), address: host.address.clone() })
}

/// Makes a cluster in `owner`, which must not hold one. A peer counts as dead after a silence of `dead_after`; without it
/// after that of [`Timeouts::default`].
pub fn init(owner: &Path, name: &str, hosts: &[String], dead_after: Option<Duration>) -> Result<ClusterFile> {
    if !names::is_plain(name, CLUSTER_NAME_BYTES_MAX) {
        return Err(Error::BadClusterName(name.into()));
    }
    is_free(owner)?;
    let cluster = new_id();
    let hosts = hosts.iter().map(|typed| host_of(typed)).collect::<Result<Vec<_>>>()?;
    let owner_client =
        ClusterClient { name: OWNER.into(), id: new_id().to_string(), key: String::new(), may: May::All };
    let mut file = ClusterFile {
        format: 2,
        name: name.into(),
        id: cluster.to_string(),
        epoch: 1,
        links: Links::Sealed,
        hosts,
        clients: vec![owner_client],
        dead_ms: dead_after.map(|time| time.as_millis() as u64),
        dropped: Vec::new(),
    };
    is_sound(&file)?;
    let authority = Authority::new(cluster)?;
    small::make_durable_directory(owner)?;
    is_own(owner)?;
    let _alone = small::lock(&owner.join(LOCK))?;
    is_free(owner)?;
    let kept = authority.kept();
    small::write(&owner.join(AUTHORITY_KEY_FILE), kept.key.as_bytes())?;
    small::write(&owner.join(AUTHORITY_FILE), kept.certificate.as_bytes())?;
    issue_to_client(owner, &authority, cluster, &mut file.clients[0])?;
    for host in &mut file.hosts {
        issue_to(owner, &authority, cluster, host)?;
    }
    publish(owner, &file, &authority)?;
    Ok(file)
}

/// Fails if the directory belongs to another user, who could replace the identities.
fn is_own(owner: &Path) -> Result<()> {
    match small::is_of_another(owner) {
        true => Err(Error::NotOwned(owner.into())),
        false => Ok(()),
    }
}

/// Fails if the directory already holds a cluster.
fn is_free(owner: &Path) -> Result<()> {
    if small::read(&owner.join(CLUSTER_FILE)).is_err() {
        return Ok(());
    }
    Err(Error::Exists(owner.into()))
}

/// Adds hosts.
pub fn add(owner: &Path, hosts: &[String]) -> Result<ClusterFile> {
    let (mut file, cluster, authority, _alone) = open(owner)?;
    let mut added = hosts.iter().map(|typed| host_of(typed)).collect::<Result<Vec<_>>>()?;
    for host in &added {
        if let Some(there) = file.hosts.iter().find(|there| there.name == host.name) {
            return Err(Error::HostExists {
                host: there.name.clone(),
                cluster: file.name.clone(),
                address: there.address.clone(),
            });
        }
    }
    file.epoch += 1;
    is_sound(&ClusterFile { hosts: file.hosts.iter().chain(&added).cloned().collect(), ..file.clone() })?;
    for host in &mut added {
        issue_to(owner, &authority, cluster, host)?;
    }
    file.hosts.extend(added);
    publish(owner, &file, &authority)?;
    Ok(file)
}

/// Adds a client: makes a certificate for a person or a program, in a directory of its own.
pub fn client(owner: &Path, name: &str, may: May) -> Result<ClusterFile> {
    let (mut file, cluster, authority, _alone) = open(owner)?;
    if !is_host_name(name) {
        return Err(Error::BadClientName(name.into()));
    }
    let mut client = ClusterClient { name: name.into(), id: new_id().to_string(), key: String::new(), may };
    file.clients.push(client.clone());
    file.epoch += 1;
    is_sound(&file)?;
    issue_to_client(owner, &authority, cluster, &mut client)?;
    *file.clients.last_mut().expect("it was pushed") = client;
    publish(owner, &file, &authority)?;
    Ok(file)
}

/// Drops hosts and clients: their certificates are refused from now on.
pub fn drop_named(owner: &Path, names: &[String]) -> Result<ClusterFile> {
    let (mut file, _, authority, _alone) = open(owner)?;
    file.epoch += 1;
    for name in names {
        let id = if let Some(at) = file.hosts.iter().position(|host| host.name == *name) {
            file.hosts.remove(at).id
        } else if let Some(at) = file.clients.iter().position(|client| client.name == *name) {
            if *name == OWNER {
                return Err(Error::OwnersCertificate(OWNER));
            }
            file.clients.remove(at).id
        } else {
            return Err(unknown(&file, name));
        };
        file.dropped.push(DroppedHost { name: name.clone(), id, epoch: file.epoch });
    }
    let beyond = file.dropped.len().saturating_sub(DROPPED_MAX);
    file.dropped.drain(..beyond);
    is_sound(&file)?;
    publish(owner, &file, &authority)?;
    Ok(file)
}

/// Makes new certificates, keys and ids for these hosts and clients, or for all. Hosts that have the new cluster file
/// refuse the old certificates. A file from before cluster files were signed, or links encrypted, is brought up to
/// date.
pub fn renew(owner: &Path, names: &[String]) -> Result<ClusterFile> {
    let (mut file, cluster, authority, _alone) = opened(owner, read_unsigned)?;
    let is_known = |name: &&String| {
        file.hosts.iter().any(|h| h.name == **name) || file.clients.iter().any(|c| c.name == **name)
    };
    if let Some(name) = names.iter().find(|name| !is_known(name)) {
        return Err(unknown(&file, name));
    }
    // Files of format 1 contain no keys, so all members get one.
    let old = std::mem::replace(&mut file.format, 2) == 1;
    file.links = Links::Sealed;
    if file.clients.is_empty() {
        file.clients.push(ClusterClient {
            name: OWNER.into(),
            id: String::new(),
            key: String::new(),
            may: May::All,
        });
    }
    file.epoch += 1;
    is_sound(&file)?;
    let is_meant = |name: &String| old || names.is_empty() || names.contains(name);
    for host in file.hosts.iter_mut().filter(|host| is_meant(&host.name)) {
        host.id = new_id().to_string();
        issue_to(owner, &authority, cluster, host)?;
    }
    for client in file.clients.iter_mut().filter(|client| is_meant(&client.name)) {
        client.id = new_id().to_string();
        issue_to_client(owner, &authority, cluster, client)?;
    }
    publish(owner, &file, &authority)?;
    Ok(file)
}

/// A warning if a certificate has expired or expires soon.
pub fn ends_soon(whose: &str, ends: u64, remedy: &str) -> Option<String> {
    let now = wall_seconds();
    let days = ends.saturating_sub(now) / DAY_SECONDS;
    match ends {
        0 => None,
        _ if ends <= now => Some(format!("{whose} has expired; {remedy}")),
        _ if ends - now < WARNING_SECONDS => Some(format!("{whose} expires in {days} days; {remedy}")),
        _ => None,
    }
}

/// The error for an unknown host or role.
pub fn unknown(file: &ClusterFile, host: &str) -> Error {
    if let Some(role) = host.strip_prefix('@') {
        let mut roles: Vec<String> = file.hosts.iter().flat_map(|h| h.roles.clone()).collect();
        roles.sort_unstable();
        roles.dedup();
        return Error::UnknownRole { role: role.into(), cluster: file.name.clone(), roles };
    }
    let hosts = file.hosts.iter().map(|h| h.name.clone()).collect();
    Error::UnknownHost { host: host.into(), cluster: file.name.clone(), hosts }
}

/// Verifies a cluster file that was received or installed. Returns it if its epoch is larger than that of `ours`, and
/// `None` if it is the same file.
pub fn newer(directory: &Path, ours: &ClusterFile, text: &str) -> Result<Option<ClusterFile>> {
    let authority = certificate(&small::read(&directory.join(AUTHORITY_FILE))?)?;
    let theirs = verify(text, &authority).map_err(Rejected::NotVerified)?;
    if theirs.id != ours.id {
        return Err(Rejected::OtherCluster(theirs.id).into());
    }
    let (epoch, present) = (theirs.epoch, ours.epoch);
    if epoch < present {
        return Err(Rejected::Older { epoch, present }.into());
    }
    if epoch == present {
        return if theirs == *ours { Ok(None) } else { Err(Rejected::SameEpoch(epoch).into()) };
    }
    is_sound(&theirs)?;
    Ok(Some(theirs))
}

/// The text of the cluster file in a directory, with its signature.
pub fn text_in(directory: &Path) -> Result<String> {
    read_text(&directory.join(CLUSTER_FILE))
}

fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(small::read(path)?).map_err(|_| Error::NotText(path.into()))
}

fn certificate(pem: &[u8]) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem).map_err(|_| Error::Malformed("the certificate is not PEM".into()))
}

/// The credentials of the identity in this directory, and its cluster file. The files may be changing at this moment.
pub fn credentials_in(directory: &Path) -> Result<(Credentials, ClusterFile)> {
    let cannot = |path: PathBuf, why: Error| Error::Unusable { path, why: Box::new(why) };
    let mut looks = 1;
    loop {
        let (identity, file) = Identity::load(directory)?;
        is_sound(&file).map_err(|why| cannot(directory.join(CLUSTER_FILE), why))?;
        match Credentials::of(identity) {
            Ok(credentials) => return Ok((credentials, file)),
            Err(IdentityError::Mismatch) if looks < RENEWAL_LOOKS => looks += 1,
            Err(why) => return Err(cannot(directory.into(), why.into())),
        }
        std::thread::park_timeout(RENEWAL_LOOK);
    }
}

fn is_sound(file: &ClusterFile) -> Result<()> {
    let hosts = file.hosts.iter().map(|h| h.name.as_str());
    let names = hosts.chain(file.clients.iter().map(|c| c.name.as_str()));
    // Names in certificates are compared without regard to case.
    let mut names: Vec<(String, &str)> = names.map(|name| (name.to_ascii_lowercase(), name)).collect();
    names.sort_unstable();
    if let Some([(_, one), (_, other)]) = names.array_windows().find(|[one, other]| one.0 == other.0) {
        return Err(BadFile::SameName(one.to_string(), other.to_string()).into());
    }
    let mut addresses: Vec<&str> = file.hosts.iter().map(|h| h.address.as_str()).collect();
    addresses.sort_unstable();
    if let Some(twice) = addresses.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(BadFile::SameAddress(twice[0].into()).into());
    }
    let (hosts, clients) = (file.hosts.len(), file.clients.len());
    if hosts == 0 || hosts > HOSTS_MAX {
        return Err(BadFile::Hosts(hosts).into());
    }
    if clients > CLIENTS_MAX {
        return Err(BadFile::Clients(clients).into());
    }
    match file.dead_ms {
        Some(ms) if !DEAD_MS.contains(&ms) => Err(BadFile::DeadAfter { ms }.into()),
        _ => Ok(()),
    }
}

/// A cluster that is about to be changed: its file, its id, its authority, and the lock.
type Opened = (ClusterFile, Id, Authority, small::Locked);

fn open(owner: &Path) -> Result<Opened> {
    opened(owner, read_cluster)
}

type Read = fn(&Path) -> std::result::Result<(ClusterFile, Id), IdentityError>;

fn opened(owner: &Path, read: Read) -> Result<Opened> {
    // Fails before the lock file is created where there is no cluster.
    read(owner)?;
    let key = read_text(&owner.join(AUTHORITY_KEY_FILE))?;
    let alone = small::lock(&owner.join(LOCK))?;
    let (file, cluster) = read(owner)?;
    let authority = Authority::load(cluster, &read_text(&owner.join(AUTHORITY_FILE))?, &key)?;
    Ok((file, cluster, authority, alone))
}

/// Makes a host's certificate and records its key in the host's entry.
fn issue_to(owner: &Path, authority: &Authority, cluster: Id, host: &mut ClusterHost) -> Result<()> {
    let node = host.id.parse().map_err(Error::Malformed)?;
    let named = Named { host: host.name.clone(), node, cluster, role: Role::Node };
    host.key = issue(&host_directory(owner, &host.name), authority, &named)?;
    Ok(())
}

/// Makes a client's certificate and records its key in the client's entry.
fn issue_to_client(
    owner: &Path,
    authority: &Authority,
    cluster: Id,
    client: &mut ClusterClient,
) -> Result<()> {
    let node = client.id.parse().map_err(Error::Malformed)?;
    let named = Named { host: client.name.clone(), node, cluster, role: Role::Client };
    let directory =
        if client.name == OWNER { owner.to_path_buf() } else { client_directory(owner, &client.name) };
    client.key = issue(&directory, authority, &named)?;
    Ok(())
}

fn issue(directory: &Path, authority: &Authority, named: &Named) -> Result<String> {
    let issued: Issued = authority.issue(named, CERTIFICATE_DAYS)?;
    small::make_durable_directory(directory)?;
    small::write(&directory.join(AUTHORITY_FILE), authority.kept().certificate.as_bytes())?;
    small::write(&directory.join(KEY_FILE), issued.key.as_bytes())?;
    small::write(&directory.join(CERTIFICATE_FILE), issued.certificate.as_bytes())?;
    key_of(&issued.certificate).ok_or_else(|| Error::Malformed("the certificate has no key".into()))
}

/// Writes the cluster file into all directories, the owner's last, because that one is authoritative. If the directory
/// of a host or a client has been moved, it gets the file from a node.
fn publish(owner: &Path, file: &ClusterFile, authority: &Authority) -> Result<()> {
    let text = sign(file, authority)?;
    let hosts = file.hosts.iter().map(|host| host_directory(owner, &host.name));
    let clients = file.clients.iter().map(|client| client_directory(owner, &client.name));
    for directory in hosts.chain(clients).filter(|directory| directory.is_dir()) {
        small::write(&directory.join(CLUSTER_FILE), text.as_bytes())?;
    }
    Ok(small::write(&owner.join(CLUSTER_FILE), text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_ends_within_thirty_days_is_told() {
        let now = wall_seconds();
        let told = |days: u64| ends_soon("it", now + days * DAY_SECONDS + 60, "renew it");
        assert_eq!((told(30), told(31), told(3650), ends_soon("it", 0, "")), (None, None, None, None));
        assert_eq!(told(29).as_deref(), Some("it expires in 29 days; renew it"));
        assert_eq!(ends_soon("it", now - 1, "renew it").as_deref(), Some("it has expired; renew it"));
    }

    #[test]
    fn hosts_are_typed_with_or_without_where_they_listen() {
        let address = |typed: &str| host_of(typed).map(|host| (host.name, host.address));
        let is = |name: &str, address: &str| Some((name.to_string(), address.to_string()));
        assert_eq!(address("n1").ok(), is("n1", "n1:7171"));
        assert_eq!(address("n1=10.0.0.1").ok(), is("n1", "10.0.0.1:7171"));
        assert_eq!(address("n1=::1").ok(), is("n1", "[::1]:7171"));
        assert_eq!(address("n1=example.org:80").ok(), is("n1", "example.org:80"));
        assert_eq!(
            host_of("n1=10.0.0.1@io,sort").map(|host| host.roles).ok(),
            Some(vec!["io".into(), "sort".into()])
        );
        assert_eq!(["n1", "n1=10.0.0.1@io", "n1@io"].map(name_of), ["n1"; 3]);
        let declared = host_of("n1@io,memory=2GiB,data=/a,data=/b").unwrap();
        assert_eq!((declared.memory_bytes, declared.data.len(), declared.roles.len()), (Some(2 << 30), 2, 1));
        assert_eq!(host_of("n1=10.0.0.1,resp=6379").map(|host| host.resp).ok(), Some(Some(6379)));
        assert_eq!(name_of("n1,resp=6379"), "n1");
        let wrong = [
            "volume=10.0.0.1",
            "n1=127.0.0.1:abc",
            "n1=a:99999",
            "n1=a:0",
            "n1=fe80::1%eth0",
            "n1=root@10.0.0.1",
            "n1@memory=lots",
            "n1@memory=10%",
            "n1@data=here",
            "n1@speed=9",
            "n1@resp=0",
            "n1=a:7001,resp=7001",
        ];
        for typed in ["", "a b", "../up", "-n", "n_1", "=1.2.3.4", "n1@a b"].into_iter().chain(wrong) {
            assert!(address(typed).is_err(), "{typed}");
        }
    }
}
