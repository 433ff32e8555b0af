//! Redis clients of the tables of a cluster: a node serves them if the cluster file has a port for that.
//!
//! Model: some servers (server.rs), each with a thread, listen on the port and share its clients. A command waits for
//! the nodes, so the other clients of the same server wait too.
//! Invariant: clients of other machines need the password that is in the file [`PASSWORD_FILE`] beside the node's
//! identity, and see the node's certificate. Without a password, only a loopback address is served.
//! Non-goals: the commands.

use std::net::SocketAddr;
use std::sync::Arc;

use thalweg_api::ClusterHost;
use thalweg_io::small;
use thalweg_wire::threads::spawn;
use thalweg_wire::{Host, cluster};

use super::expiry;
use super::front::{Front, Memory};
use crate::listen::{Options, Place};
use crate::server::{Server, Stop, now_ms};
use crate::socket::Tls;

/// The servers of a node.
const SERVERS: usize = 8;
/// The file with the password, in its first line.
const PASSWORD_FILE: &str = "resp-password";
/// The memory of a server for records, of which it has none.
const MEMORY: usize = 1 << 20;

/// Begins to serve Redis clients, if this node is to.
pub(crate) fn serve(host: &Arc<Host>, memory: Memory) -> Result<Vec<Stop>, String> {
    let (Some(directory), Some(declared)) = (host.directory(), host.declared()) else {
        return Ok(Vec::new());
    };
    let Some(port) = declared.resp else { return Ok(Vec::new()) };
    let options =
        options(directory, &declared, port).map_err(|why| format!("cannot serve Redis clients: {why}"))?;
    let front = Arc::new(Front::load(directory, memory)?);
    let servers = Server::bind_on_cluster(&options, &front, SERVERS);
    let servers = servers.map_err(|why| why.to_string())?;
    let stops = servers.iter().map(Server::stop).collect();
    for server in servers {
        // A server ends when it is stopped, or when the system fails it; then its clients are disconnected.
        if !spawn("resp", move || _ = server.run()) {
            return Err("this node has no thread left for Redis clients".into());
        }
    }
    let host = Arc::clone(host);
    match spawn("expiry", move || expiry::sweep_until_stopped(&host, &front, now_ms)) {
        true => Ok(stops),
        false => Err("this node has no thread left to remove expired strings".into()),
    }
}

fn options(directory: &std::path::Path, declared: &ClusterHost, port: u16) -> Result<Options, String> {
    let address = cluster::address_of(declared).map_err(|why| why.to_string())?;
    let address = SocketAddr::new(address.ip(), port);
    let path = directory.join(PASSWORD_FILE);
    let password = match small::read(&path) {
        Ok(_) if small::is_open_to_others(&path) => {
            return Err(format!("{}: others may read this password: chmod 600 it", path.display()));
        }
        Ok(text) => {
            text.split(|byte| *byte == b'\n').next().map(<[u8]>::to_vec).filter(|line| !line.is_empty())
        }
        Err(why) if why.source.kind() == std::io::ErrorKind::NotFound => None,
        Err(why) => return Err(why.to_string()),
    };
    let tls = match (address.ip().is_loopback(), &password) {
        (true, _) => None,
        (false, Some(_)) => {
            let read = |name: &str| small::read(&directory.join(name)).map_err(|why| why.to_string());
            Some(Tls::from_pem(&read(thalweg_wire::CERTIFICATE_FILE)?, &read(thalweg_wire::KEY_FILE)?)?)
        }
        (false, None) => {
            let path = path.display();
            return Err(format!(
                "other machines could reach {address}; put a password into the first line of {path}"
            ));
        }
    };
    Ok(Options { place: Place::Tcp(address), memory: MEMORY, password, tls })
}
