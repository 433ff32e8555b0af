//! The clients that may use a part of a volume on a node.
//!
//! ```text
//! DIR/allowed    their names, a line each; without this file, all clients of the cluster
//! ```
//!
//! Model: store and manager each have the list, so a store also refuses a client that skips the manager. A certificate
//! identifies a client. The nodes of the cluster are always allowed, since they serve each other.
//! Invariant: a list that cannot be read is an error, never an empty one.
//! Non-goals: what an allowed client may do; see service.rs.

use std::path::Path;

use thalweg_io::small;
use thalweg_wire::{Link, Role};

use crate::{Error, Result};

const FILE: &str = "allowed";

/// The clients that may use a part of a volume: all, or those with these names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Allowed(Option<Vec<String>>);

impl Allowed {
    /// Lets only these clients (or all, if none is given) use the part in a new directory. Durable with the directory.
    pub(crate) fn write(dir: &Path, clients: &[String]) -> Result<()> {
        if clients.is_empty() {
            return Ok(());
        }
        Ok(small::write(&dir.join(FILE), (clients.join("\n") + "\n").as_bytes())?)
    }

    /// Reads which clients may use the part in a directory.
    pub(crate) fn read(dir: &Path) -> Result<Allowed> {
        match small::read(&dir.join(FILE)) {
            Ok(text) => Ok(Allowed(Some(String::from_utf8_lossy(&text).lines().map(String::from).collect()))),
            Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => Ok(Allowed(None)),
            Err(e) => Err(e.into()),
        }
    }

    /// An error if the part is for certain clients: for whom a node asks that takes part in a job, nobody here can
    /// tell.
    pub(crate) fn check_for_job(&self) -> Result<()> {
        match &self.0 {
            Some(clients) => Err(Error::system(
                libc::EACCES,
                format!(
                    "the volume is only for {}, and nodes would use it for anybody; do it without --cluster, as one of these",
                    clients.join(", ")
                ),
            )),
            None => Ok(()),
        }
    }

    /// An error if the peer of a link may not use the part.
    pub(crate) fn check(&self, peer: &Link) -> Result<()> {
        let hello = peer.hello();
        let may = |clients: &Vec<String>| {
            hello.is_local() || hello.role == Role::Node || clients.iter().any(|name| name == peer.peer())
        };
        match &self.0 {
            Some(clients) if !may(clients) => Err(Error::system(
                libc::EACCES,
                format!("the volume is only for {}, and this is {}", clients.join(", "), peer.peer()),
            )),
            _ => Ok(()),
        }
    }
}
