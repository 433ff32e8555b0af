//! What sessions may report of the files that they have written.
//!
//! Invariant: no file has a strip that neither the manager nor a store knows.
//! Non-goals: what a report changes; see server.rs.

use crate::manager::Written;
use crate::opened::SessionId;
use crate::server::Server;
use crate::stores::Target;
use crate::{Error, Result};

impl Server {
    pub(crate) fn may_write(&self, session: SessionId, inode: u64) -> bool {
        self.state().files.get(&inode).is_some_and(|file| file.writers.contains(&session))
    }

    /// An error if a session that is no writer of a file reports strips of it which are nowhere. It could not join this
    /// server as a writer, and the file was settled without what it had written. Who only syncs what others have written
    /// reports strips, too.
    pub(crate) fn may_report(&self, session: SessionId, written: &Written) -> Result<()> {
        if written.strips == 0 || self.may_write(session, written.inode) {
            return Ok(());
        }
        let inode = self.manager.inode(written.inode)?;
        let unknown = written.strips & !(inode.strips | inode.unsynced);
        let Some(target) = Target::of(&inode).filter(|_| unknown != 0) else { return Ok(()) };
        let (_, found) = self.stores.extent(&target)?;
        if unknown & !found == 0 {
            return Ok(());
        }
        let why =
            format!("what was written to inode {} before its manager was restarted is lost", written.inode);
        Err(Error::system(libc::EIO, why))
    }
}
