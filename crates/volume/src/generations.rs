//! The generations of a file: the manager begins one when a file is cut or a copy misses a write, and stores refuse
//! clients that do not know it.
//!
//! Invariant: a copy is marked stale only while the strip's other copy is current.
//! Non-goals: who may ask for it; see server.rs.

use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::manager::{Change, Inode};
use crate::opened::SessionId;
use crate::server::Server;
use crate::stores::Target;
use crate::{Error, Result};

/// How long a client waits until all stores have been told the generation of a file.
const TELLING: Duration = Duration::from_millis(500);

impl Server {
    /// An error if these strips have no other current copy: who does not know about the one stale copy may not mark the
    /// other.
    pub(crate) fn may_mark(&self, change: &Change) -> Result<()> {
        let Change::Stale(inode, copy, strips) = *change else { return Ok(()) };
        let others = self.manager.inode(inode)?.stale[usize::from(copy == 0)];
        match others & strips {
            0 => Ok(()),
            _ => Err(Error::system(libc::EIO, format!("the last current copy of inode {inode}"))),
        }
    }

    /// Makes a change that begins a generation, for example one that marks a copy stale. The stores of both copies then
    /// refuse clients that do not know it.
    pub(crate) fn begin_generation(&self, session: SessionId, change: &Change, strips: u64) -> Result<Inode> {
        let changed = self.manager.change(change)?;
        // A client raises a generation because of the second copy, so there is no waiting for its store.
        let is_raised = matches!(change, Change::Raise(..));
        let changed = if is_raised { changed } else { self.live_if_known(session, changed) };
        if let Some(target) = Target::of(&changed) {
            let len = changed.cut.unwrap_or(changed.size);
            let [first, second] = target.stale;
            let asked = [first, if is_raised { u64::MAX } else { second }];
            // A store that misses this refuses the new generation, and is told then.
            self.stores.raise(&Target { stale: asked, ..target }, strips, len);
            // The stores of other strips, and the one with the stale copy, may be lost for long.
            let (stores, everywhere) = (Arc::clone(&self.stores), Target { stale: [0; 2], ..target });
            self.aside(move || _ = stores.raise(&everywhere, u64::MAX, len));
        }
        Ok(changed)
    }

    /// Cuts all strips for the current generation of a file, also those that missed an earlier cut. Copies that cannot be
    /// cut become stale, which begins another generation.
    pub(crate) fn cut(&self, mut inode: Inode) -> Result<Inode> {
        loop {
            let Some(target) = Target::of(&inode) else { return Ok(inode) };
            let len = inode.cut.map_or(inode.size, |cut| cut.min(inode.size));
            let outcome = self.stores.raise(&target, u64::MAX, len);
            let stale: Vec<Change> = outcome.stale(inode.id).collect();
            for change in &stale {
                self.may_mark(change)?;
                inode = self.manager.change(change)?;
            }
            outcome.into_result()?;
            if stale.is_empty() {
                return self.manager.change(&Change::Cut(inode.id, inode.generation));
            }
        }
    }

    /// Cuts the strips for a client whose request was refused by a store that does not know the generation yet. If the
    /// file was not cut, nothing has to be removed, and the caller waits only a moment for stores that are lost: the
    /// client goes on with the other copies, and asks again if its store was not told.
    pub(crate) fn tell_generation(&self, inode: Inode) -> Result<Inode> {
        if inode.cut.is_some() {
            return self.cut(inode);
        }
        let (me, known) = (Weak::clone(&self.me), inode.clone());
        let (tell, told) = channel();
        self.aside(move || {
            // The caller may have gone on.
            me.upgrade().iter().for_each(|server| _ = tell.send(server.cut(known.clone())));
        });
        told.recv_timeout(TELLING).unwrap_or(Ok(inode))
    }
}
