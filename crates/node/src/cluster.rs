//! A cluster's files: made by `cluster init`, changed by `add` and `drop`.
//!
//! Model: one directory is the owner's: the cluster file, the authority with its key, a client's certificate; below it
//! `hosts/NAME` is what goes to each host: its own certificate and key, and the same cluster file.
//! Law: the authority's key stays in the owner's directory. Every change grows the epoch by one; a node takes a cluster
//! file only if its epoch is larger than that of the one it has.
//! Non-goals: bringing files to hosts.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_api::{ClusterFile, ClusterHost, DroppedHost, Links, from_json, to_json};
use thalweg_base::units::Size;
use thalweg_io::small;
use thalweg_wire::{
    AUTHORITY_FILE, Authority, CERTIFICATE_DAYS, CERTIFICATE_FILE, CLUSTER_FILE, Hands, Id, Identity,
    IdentityError, Issued, KEY_FILE, Named, Role, is_host_name, new_id, read_cluster,
};

use crate::error::{Error, Result};

/// Where a node listens unless its host says otherwise.
pub const PORT: u16 = 7171;
/// The authority's key.
const AUTHORITY_KEY_FILE: &str = "authority.key";
/// What goes to the hosts.
const HOSTS: &str = "hosts";
/// How often to look, and when again, whether a key and its certificate belong together: one is written behind the other.
const RENEWAL_LOOKS: usize = 20;
const RENEWAL_LOOK: Duration = Duration::from_millis(10);
/// The most hosts of a cluster.
pub const HOSTS_MAX: usize = 1024;

/// The directory of a host's identity, below the owner's.
pub fn host_directory(owner: &Path, host: &str) -> PathBuf {
    owner.join(HOSTS).join(host)
}

/// A host as typed: `NAME` or `NAME=ADDRESS` or `NAME=ADDRESS:PORT`, and behind that perhaps `@WORD,WORD`: a role, or
/// `data=DIR`, or `memory=SIZE`.
fn host_of(typed: &str) -> Result<ClusterHost> {
    let (typed, words) = typed.split_once('@').unwrap_or((typed, ""));
    let (mut roles, mut data, mut memory_bytes) = (Vec::new(), Vec::new(), None);
    for word in words.split(',').filter(|word| !word.is_empty()) {
        match word.split_once('=') {
            Some(("data", directory)) if directory.starts_with('/') => data.push(directory.to_string()),
            Some(("data", _)) => {
                return Err(Error::Asked(format!("'{word}' is no directory for data: write data=/DIR")));
            }
            Some(("memory", size)) => match size.parse() {
                Ok(Size::Bytes(bytes)) => memory_bytes = Some(bytes),
                _ => return Err(Error::Asked(format!("'{word}' is no memory: write memory=2GiB"))),
            },
            None if is_host_name(word) && !word.contains('.') => roles.push(word.to_string()),
            _ => {
                return Err(Error::Asked(format!(
                    "'{word}' is not a role: write letters, digits and '-', or data=/DIR, or memory=SIZE"
                )));
            }
        }
    }
    let (name, address) = typed.split_once('=').unwrap_or((typed, typed));
    if !is_host_name(name) {
        return Err(Error::Asked(format!(
            "'{name}' is not a name for a host: write NAME or NAME=ADDRESS:PORT, perhaps with @ROLE behind it, with letters, digits, '-' and '.'"
        )));
    }
    let address = address_as(address).ok_or_else(|| {
        Error::Asked(format!(
            "'{address}' is no address: write a name or an address, perhaps with :PORT behind it"
        ))
    })?;
    let id = new_id().to_string();
    Ok(ClusterHost { name: name.into(), address, id, roles, data, memory_bytes })
}

/// Where a node listens, as typed: a name or an address, with a port or without.
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

/// The name of a host as typed.
pub fn name_of(typed: &str) -> &str {
    typed.split(['=', '@']).next().unwrap_or(typed)
}

/// Where a host's node listens.
pub fn address_of(host: &ClusterHost) -> Result<SocketAddr> {
    let found = host.address.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| {
        Error::Asked(format!("{}: the address '{}' is not known here", host.name, host.address))
    })
}

/// Makes a cluster's files in `owner`, which holds none yet.
pub fn init(owner: &Path, name: &str, hosts: &[String], links: Links) -> Result<ClusterFile> {
    if small::read(&owner.join(CLUSTER_FILE)).is_ok() {
        return Err(Error::Asked(format!(
            "{} holds a cluster already; give another --identity, or thalweg cluster add HOST",
            owner.display()
        )));
    }
    let cluster = new_id();
    let hosts = hosts.iter().map(|typed| host_of(typed)).collect::<Result<Vec<_>>>()?;
    let file = ClusterFile {
        format: 1,
        name: name.into(),
        id: cluster.to_string(),
        epoch: 1,
        links,
        hosts,
        dropped: Vec::new(),
    };
    is_sound(&file)?;
    let authority = Authority::new(cluster)?;
    small::make_directory(owner)?;
    let kept = authority.kept();
    small::write(&owner.join(AUTHORITY_KEY_FILE), kept.key.as_bytes())?;
    small::write(&owner.join(AUTHORITY_FILE), kept.certificate.as_bytes())?;
    let client = Named { host: "client".into(), node: new_id(), cluster, role: Role::Client };
    write_issued(owner, &authority.issue(&client, CERTIFICATE_DAYS)?)?;
    for host in &file.hosts {
        issue_to(owner, &authority, cluster, host)?;
    }
    publish(owner, &file)?;
    Ok(file)
}

/// Takes hosts in.
pub fn add(owner: &Path, hosts: &[String]) -> Result<ClusterFile> {
    let (mut file, cluster, authority) = open(owner)?;
    let added = hosts.iter().map(|typed| host_of(typed)).collect::<Result<Vec<_>>>()?;
    for host in &added {
        if let Some(there) = file.hosts.iter().find(|there| there.name == host.name) {
            return Err(Error::Asked(format!(
                "'{}' is a host of cluster {} already, at {}; give the new one another name, or thalweg cluster drop {0} first",
                there.name, file.name, there.address
            )));
        }
    }
    file.hosts.extend(added.iter().cloned());
    file.epoch += 1;
    is_sound(&file)?;
    for host in &added {
        issue_to(owner, &authority, cluster, host)?;
    }
    publish(owner, &file)?;
    Ok(file)
}

/// Puts a host out: its certificate is refused from now on.
pub fn drop_host(owner: &Path, host: &str) -> Result<ClusterFile> {
    let (mut file, ..) = open(owner)?;
    let at = file.hosts.iter().position(|h| h.name == host).ok_or_else(|| unknown(&file, host))?;
    let gone = file.hosts.remove(at);
    file.epoch += 1;
    file.dropped.push(DroppedHost { name: gone.name, id: gone.id, epoch: file.epoch });
    publish(owner, &file)?;
    Ok(file)
}

/// Makes new certificates for these hosts, or for all and the client; ids stay.
pub fn renew(owner: &Path, hosts: &[String]) -> Result<ClusterFile> {
    let (file, cluster, authority) = open(owner)?;
    for name in hosts {
        file.hosts.iter().find(|h| h.name == *name).ok_or_else(|| unknown(&file, name))?;
    }
    for host in file.hosts.iter().filter(|host| hosts.is_empty() || hosts.contains(&host.name)) {
        issue_to(owner, &authority, cluster, host)?;
    }
    if hosts.is_empty() {
        let (identity, _) = Identity::load(owner)?;
        let named = Named { host: identity.name, node: identity.node, cluster, role: identity.role };
        write_issued(owner, &authority.issue(&named, CERTIFICATE_DAYS)?)?;
    }
    publish(owner, &file)?;
    Ok(file)
}

/// That there is no such host, or none with such a role.
pub(crate) fn unknown(file: &ClusterFile, host: &str) -> Error {
    if let Some(role) = host.strip_prefix('@') {
        let mut roles: Vec<&str> = file.hosts.iter().flat_map(|h| &h.roles).map(String::as_str).collect();
        roles.sort_unstable();
        roles.dedup();
        let roles = if roles.is_empty() { "none".into() } else { roles.join(", ") };
        return Error::Asked(format!("'{role}' is not a role of cluster {}, which has {roles}", file.name));
    }
    let names: Vec<&str> = file.hosts.iter().map(|h| h.name.as_str()).collect();
    Error::Asked(format!("'{host}' is not a host of cluster {}, which has {}", file.name, names.join(", ")))
}

/// A cluster file as somebody sent it, if it may replace the one in `directory`.
pub(crate) fn newer(directory: &Path, text: &str) -> Result<ClusterFile> {
    let (ours, _) = read_cluster(directory)?;
    let theirs: ClusterFile = from_json(text).map_err(Error::Asked)?;
    if theirs.id != ours.id {
        return Err(Error::Asked(format!("a cluster file of another cluster, {}", theirs.id)));
    }
    if theirs.epoch < ours.epoch {
        let (epoch, ours) = (theirs.epoch, ours.epoch);
        return Err(Error::Asked(format!("a cluster file of epoch {epoch}, and this node is at {ours}")));
    }
    is_sound(&theirs)?;
    Ok(theirs)
}

/// The hands of the identity in this directory, and its cluster file. Somebody may have edited the files, or be renewing
/// them.
pub(crate) fn hands_in(directory: &Path) -> Result<(Hands, ClusterFile)> {
    let cannot = |path: &Path, why: &dyn std::fmt::Display| {
        Error::Asked(format!("{} cannot be used: {why}", path.display()))
    };
    let mut looks = 1;
    loop {
        let (identity, file) = Identity::load(directory)?;
        is_sound(&file).map_err(|why| cannot(&directory.join(CLUSTER_FILE), &why))?;
        match Hands::of(identity) {
            Ok(hands) => return Ok((hands, file)),
            Err(IdentityError::Mismatch) if looks < RENEWAL_LOOKS => looks += 1,
            Err(why) => return Err(cannot(directory, &why)),
        }
        std::thread::park_timeout(RENEWAL_LOOK);
    }
}

fn is_sound(file: &ClusterFile) -> Result<()> {
    let mut names: Vec<&str> = file.hosts.iter().map(|h| h.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::Asked(format!("host '{}' is there twice; names of hosts differ", twice[0])));
    }
    let mut addresses: Vec<&str> = file.hosts.iter().map(|h| h.address.as_str()).collect();
    addresses.sort_unstable();
    if let Some(twice) = addresses.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::Asked(format!("two hosts are at {}; give each a port of its own", twice[0])));
    }
    if names.is_empty() || names.len() > HOSTS_MAX {
        return Err(Error::Asked(format!("{} hosts, and a cluster has 1 to {HOSTS_MAX}", names.len())));
    }
    Ok(())
}

fn open(owner: &Path) -> Result<(ClusterFile, Id, Authority)> {
    let (file, cluster) = read_cluster(owner)?;
    let text = |name: &str| -> Result<String> {
        String::from_utf8(small::read(&owner.join(name))?)
            .map_err(|_| Error::Asked(format!("{} is not readable text", owner.join(name).display())))
    };
    let authority = Authority::load(cluster, &text(AUTHORITY_FILE)?, &text(AUTHORITY_KEY_FILE)?)?;
    Ok((file, cluster, authority))
}

fn issue_to(owner: &Path, authority: &Authority, cluster: Id, host: &ClusterHost) -> Result<()> {
    let node = host.id.parse().map_err(Error::Asked)?;
    let named = Named { host: host.name.clone(), node, cluster, role: Role::Node };
    let directory = host_directory(owner, &host.name);
    small::make_directory(&directory)?;
    small::write(&directory.join(AUTHORITY_FILE), authority.kept().certificate.as_bytes())?;
    write_issued(&directory, &authority.issue(&named, CERTIFICATE_DAYS)?)
}

fn write_issued(directory: &Path, issued: &Issued) -> Result<()> {
    small::write(&directory.join(KEY_FILE), issued.key.as_bytes())?;
    Ok(small::write(&directory.join(CERTIFICATE_FILE), issued.certificate.as_bytes())?)
}

/// Writes the cluster file where it is read, the owner's last: that is the one that counts.
fn publish(owner: &Path, file: &ClusterFile) -> Result<()> {
    let text = to_json(file) + "\n";
    for host in &file.hosts {
        small::write(&host_directory(owner, &host.name).join(CLUSTER_FILE), text.as_bytes())?;
    }
    Ok(small::write(&owner.join(CLUSTER_FILE), text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let wrong = [
            "n1=127.0.0.1:abc",
            "n1=a:99999",
            "n1=a:0",
            "n1=fe80::1%eth0",
            "n1=root@10.0.0.1",
            "n1@memory=lots",
            "n1@memory=10%",
            "n1@data=here",
            "n1@speed=9",
        ];
        for typed in ["", "a b", "../up", "-n", "n_1", "=1.2.3.4", "n1@a b"].into_iter().chain(wrong) {
            assert!(address(typed).is_err(), "{typed}");
        }
    }
}
