//! A directory of the source, together with the one at the destination that it becomes.
//!
//! Model: work on an entry holds a reference to its directory. When the last reference is dropped, all entries exist,
//! and the directory gets its permissions and times. A directory refers to its parent, so this happens from the leaves
//! up.
//! Invariant: a directory of the destination is created by the first lane that needs it.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_io::extended::Extended;
use thalweg_io::tree::{self, Attributes, Dir, EntryKind};

use crate::choice::below;
use crate::claim::claim_directory;
use crate::left_out::End;
use crate::message::Message;
use crate::refused::Refused;
use crate::roots::Root;
use crate::shared::{Shared, count};
use crate::sources::Sources;
use crate::{Error, Result};

/// The destination of a directory.
pub(crate) enum Target {
    /// None: nothing is written.
    Nowhere,
    /// Another process.
    Peer,
    /// A directory that will be created in the parent's destination.
    ToMake,
    /// A directory.
    Open(Arc<dyn Dir>),
    /// It could not be created, and is left out with everything in it.
    LeftOut,
}

/// A directory; see the head of this file.
pub(crate) struct Directory<'a> {
    shared: &'a Shared<'a>,
    parent: Option<Arc<Directory<'a>>>,
    /// The directory that is read. The parent of the roots has none.
    source: Option<Sources>,
    /// The final attributes. The parent of the roots keeps its own.
    facts: Option<Attributes>,
    extended: Extended,
    /// Its current name at the destination.
    name: OsString,
    there: Mutex<Target>,
    /// Its path in the transfer, which begins with the name of the root.
    key: Vec<u8>,
    /// The index of its root, and how many bytes of the key lead to the root.
    pub(crate) top: (u64, usize),
    /// Whether the whole tree has a hidden name, so that its entries need none.
    pub(crate) staged: bool,
    /// The number under which the peer knows it, and how many of its names were sent.
    number: u64,
    sent: AtomicU64,
    /// The names in the source, as the peer reported them.
    named: Mutex<HashSet<OsString>>,
    /// Whether the source could not be listed to its end, or one of several is missing.
    is_partial: AtomicBool,
}

impl<'a> Directory<'a> {
    /// The directory that holds roots.
    pub(crate) fn of_roots(shared: &'a Shared<'a>, source: Option<Sources>, there: Target) -> Directory<'a> {
        Directory {
            shared,
            parent: None,
            source,
            facts: None,
            extended: Extended::default(),
            name: OsString::new(),
            there: Mutex::new(there),
            key: Vec::new(),
            top: (0, 0),
            staged: false,
            number: 0,
            sent: AtomicU64::new(0),
            named: Mutex::default(),
            is_partial: AtomicBool::new(false),
        }
    }

    /// A root directory. It is created as `name` in `parent`; its final name is `key`.
    pub(crate) fn root(
        parent: &Arc<Directory<'a>>,
        source: Sources,
        (name, key): (OsString, &OsStr),
        number: u64,
        staged: bool,
    ) -> Result<Directory<'a>> {
        let facts = source.attributes()?;
        count(&parent.shared.counts.found, 1);
        let extended = parent.shared.extended_of_dir(key.as_bytes(), &**source.dir());
        let place = Directory::under(
            parent,
            Some(source),
            (facts, extended),
            name,
            (root_key(key), root_top(key, number), staged),
        );
        place.tell(Some(number as u32))?;
        Ok(place)
    }

    /// A root directory that the peer sends, to be created in `parent`.
    pub(crate) fn came(
        parent: &Arc<Directory<'a>>,
        root: &Root,
        facts: (Attributes, Extended),
        number: u32,
    ) -> Directory<'a> {
        let key = &*root.there;
        let top = root_top(key, u64::from(number));
        Directory::under(parent, None, facts, root.name_for_now(), (root_key(key), top, root.is_new))
    }

    /// A directory in this one that the peer sends.
    pub(crate) fn came_below(
        self: &Arc<Directory<'a>>,
        name: OsString,
        facts: (Attributes, Extended),
    ) -> Directory<'a> {
        let key = self.key_of(&name);
        Directory::under(self, None, facts, name, (key, self.top, self.staged))
    }

    /// A directory in this one.
    pub(crate) fn below(self: &Arc<Directory<'a>>, name: OsString) -> Result<Directory<'a>> {
        let source = self.source().open_dir(&name)?;
        let key = self.key_of(&name);
        let facts = (source.attributes()?, self.shared.extended_of_dir(&key, &**source.dir()));
        let place = Directory::under(self, Some(source), facts, name, (key, self.top, self.staged));
        place.tell(None)?;
        Ok(place)
    }

    fn under(
        parent: &Arc<Directory<'a>>,
        source: Option<Sources>,
        (facts, extended): (Attributes, Extended),
        name: OsString,
        (key, top, staged): (Vec<u8>, (u64, usize), bool),
    ) -> Directory<'a> {
        let there = match &*parent.there.lock().expect("no lane panics") {
            Target::Nowhere => Target::Nowhere,
            Target::Peer => Target::Peer,
            Target::ToMake | Target::Open(_) | Target::LeftOut => Target::ToMake,
        };
        Directory {
            shared: parent.shared,
            parent: Some(Arc::clone(parent)),
            facts: Some(facts),
            extended,
            source,
            name,
            there: Mutex::new(there),
            key,
            top,
            staged,
            number: parent.shared.far.as_ref().map_or(0, |far| far.next_dir()),
            sent: AtomicU64::new(0),
            named: Mutex::default(),
            is_partial: AtomicBool::new(parent.shared.lacks_source),
        }
    }

    /// Announces it to the peer, if there is one.
    fn tell(&self, root: Option<u32>) -> Result<()> {
        let (Some(far), Some(parent), Some(facts)) = (&self.shared.far, &self.parent, self.facts) else {
            return Ok(());
        };
        parent.count_sent_name();
        let (name, extended) = (self.name.clone(), self.extended.clone());
        far.tell(&Message::Dir(self.number, parent.number, name, facts, extended, root))
    }

    /// The bytes of its key and its extended attributes.
    pub(crate) fn told_bytes(&self) -> usize {
        self.key.len() + self.extended.bytes()
    }

    /// The number under which the peer knows it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Counts a name that was sent to the peer.
    pub(crate) fn count_sent_name(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the source has this name.
    pub(crate) fn add_source_name(&self, name: OsString) {
        self.named.lock().expect("no lane panics").insert(name);
    }

    /// Whether anything is written.
    pub(crate) fn is_kept(&self) -> bool {
        !matches!(*self.there.lock().expect("no lane panics"), Target::Nowhere)
    }

    /// The directory that is read.
    pub(crate) fn source(&self) -> &Sources {
        self.source.as_ref().expect("names are read in directories that there are")
    }

    /// The path, in the transfer, of a name in this directory.
    pub(crate) fn key_of(&self, name: &OsStr) -> Vec<u8> {
        let mut key = self.key.clone();
        if !key.is_empty() {
            key.push(b'/');
        }
        key.extend_from_slice(name.as_bytes());
        key
    }

    /// The path of a name in this directory at the destination; its path in the transfer if that is elsewhere.
    pub(crate) fn path_there(&self, name: &OsStr) -> PathBuf {
        match self.target_for(name) {
            Ok(Some(dir)) => dir.path().join(name),
            _ => OsString::from_vec(self.key_of(name)).into(),
        }
    }

    /// Its path from the top of its tree.
    pub(crate) fn own_way(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.key.get(self.top.1..).unwrap_or_default()))
    }

    /// Its path for filter rules.
    pub(crate) fn way(&self) -> Vec<u8> {
        match self.facts {
            None => Vec::new(),
            Some(_) => {
                let root = &self.shared.ways[self.top.0 as usize];
                let own = self.own_way().as_os_str();
                if own.is_empty() { root.as_bytes().to_vec() } else { below(root.as_bytes(), own) }
            }
        }
    }

    /// Records that the source could not be listed to its end.
    pub(crate) fn is_listed_in_part(&self) {
        self.is_partial.store(true, Ordering::Relaxed);
    }

    /// The final attributes.
    pub(crate) fn facts(&self) -> Option<Attributes> {
        self.facts
    }

    /// The directory that is written, created if necessary; `None` if nothing is written. If it could not be created,
    /// it is listed as left out, and the error is that of an entry of this name.
    pub(crate) fn target_for(&self, name: &OsStr) -> Result<Option<Arc<dyn Dir>>> {
        let mut there = self.there.lock().expect("no lane panics");
        match &*there {
            Target::Nowhere | Target::Peer => return Ok(None),
            Target::Open(dir) => return Ok(Some(Arc::clone(dir))),
            Target::LeftOut => {}
            Target::ToMake => {
                if let Some(dir) = self.shared.left_out.or_none(End::Dest, self.create_target())? {
                    *there = dir.as_ref().map_or(Target::Nowhere, |dir| Target::Open(Arc::clone(dir)));
                    return Ok(dir);
                }
                *there = Target::LeftOut;
            }
        }
        Err(Error::NoDirectory(OsStr::from_bytes(&self.key_of(name)).into()))
    }

    fn create_target(&self) -> Result<Option<Arc<dyn Dir>>> {
        let parent = self.parent.as_ref().expect("only the parent of the roots has no parent");
        let Some(above) = parent.target_for(&self.name)? else { return Ok(None) };
        if self.shared.choice.only_looks() {
            let is_there = above.find(&self.name)?.is_some_and(|facts| facts.kind == EntryKind::Directory);
            let dir = if is_there { Some(above.open_dir(&self.name)?) } else { None };
            if let (Some(dir), false) = (&dir, self.shared.choice.asked.dry_run) {
                tree::open_up(&**dir)?;
            }
            return Ok(dir);
        }
        let dir = match self.is_staged_root() {
            true => {
                let journal = self.shared.journal.as_ref().expect("a transfer of a tree has a journal");
                claim_directory(&*above, &self.name, journal)?
            }
            false => {
                above.make_dir(&self.name)?;
                above.open_dir(&self.name).map_err(|why| match why.source.kind() {
                    ErrorKind::NotADirectory => {
                        Error::from(Refused::FileThere(above.path().join(&self.name)))
                    }
                    _ => why.into(),
                })?
            }
        };
        // It gets its permissions when everything in it exists.
        tree::open_up(&*dir)?;
        if self.is_staged_root() {
            let mut staged = self.shared.staged.lock().expect("no lane panics");
            staged.insert(self.top.0, (Arc::clone(&dir), Extended::default()));
        }
        if self.staged
            && self.shared.resume
            && let Some(source) = &self.source
        {
            // What cannot be looked at may be there.
            self.remove_strangers(&*dir, |name| !matches!(source.find(name), Ok(None)))?;
        }
        Ok(Some(dir))
    }

    /// Whether this is the directory that has the hidden name of the tree.
    fn is_staged_root(&self) -> bool {
        self.staged && self.parent.as_ref().is_some_and(|parent| parent.parent.is_none())
    }

    /// Sets the directory's attributes after all of its entries exist. A directory with a hidden name stays accessible
    /// to its creator alone until just before it is renamed.
    fn finish(&self, facts: &Attributes) -> Result<()> {
        if let Some(source) = &self.source
            && !source.attributes()?.is_same(facts)
        {
            // In a tree that is in use, names come and go all the time. Those that were listed are moved.
            if self.shared.strict {
                return Err(Error::Changed(source.path().to_path_buf()));
            }
            count(&self.shared.counts.changed_directories, 1);
        }
        let kept = || count(&self.shared.counts.directories, 1);
        if let Some(far) = &self.shared.far {
            kept();
            let is_whole = !self.is_partial.load(Ordering::Relaxed);
            return far.tell(&Message::DirEnd(self.number, self.sent.load(Ordering::Relaxed), is_whole));
        }
        let there = match self.target_for(OsStr::new("")) {
            Ok(Some(there)) => there,
            Ok(None) => {
                kept();
                return Ok(());
            }
            Err(Error::NoDirectory(_)) => return Ok(()),
            Err(e) => return Err(e),
        };
        if self.source.is_none() && self.staged && self.shared.resume && !self.shared.choice.only_looks() {
            let named = self.named.lock().expect("no lane panics");
            self.remove_strangers(&*there, |name| named.contains(name))?;
        }
        self.delete_others(&there)?;
        if self.shared.choice.asked.dry_run {
            kept();
            return Ok(());
        }
        if self.is_staged_root() {
            kept();
            let mut staged = self.shared.staged.lock().expect("no lane panics");
            staged.insert(self.top.0, (there, self.extended.clone()));
            return Ok(());
        }
        let set = there.set_attributes(facts).map_err(Error::from);
        let Some(()) = self.shared.left_out.or_none(End::Dest, set)? else { return Ok(()) };
        self.shared.set_extended_of_dir(&self.key, &*there, &self.extended);
        kept();
        Ok(())
    }

    /// Deletes what the source does not have, if that was asked for and all its names are known.
    fn delete_others(&self, there: &Arc<dyn Dir>) -> Result<()> {
        let shared = self.shared;
        if !shared.choice.asked.delete || self.staged || self.is_partial.load(Ordering::Relaxed) {
            return Ok(());
        }
        let way = self.way();
        let named = self.named.lock().expect("no lane panics");
        let is_at_source = |name: &OsStr| match &self.source {
            None => named.contains(name),
            // What cannot be looked at is there. What is hidden by a rule is not, unless that also protects it.
            Some(source) => source.find(name).map_or(true, |found| {
                found.is_some_and(|facts| !shared.hides(&below(&way, name), facts.kind))
            }),
        };
        shared.deleter.clear(there, &way, is_at_source, &mut |why| {
            count(&shared.counts.found, 1);
            shared.left_out.add(End::Dest, why)
        })
    }

    /// Removes what an earlier run created and the source no longer has, except files that are resumed. Only in trees
    /// that still have a hidden name.
    fn remove_strangers(&self, there: &dyn Dir, is_ours: impl Fn(&OsStr) -> bool) -> Result<()> {
        const SOME: usize = 1000;
        let (mut names, mut strangers) = (there.names()?, Vec::new());
        loop {
            let some = names.some(SOME)?;
            if some.is_empty() {
                break;
            }
            for (name, _) in some {
                if !self.shared.is_noted(&name) && !is_ours(&name) {
                    strangers.push(name);
                }
            }
        }
        for name in strangers {
            tree::remove_all(there, &name)?;
        }
        Ok(())
    }
}

fn root_key(key: &OsStr) -> Vec<u8> {
    key.as_bytes().to_vec()
}

/// The index of a root, and the length of the key that leads to it; 0 if the root has no name of its own.
fn root_top(key: &OsStr, number: u64) -> (u64, usize) {
    (number, if key.is_empty() { 0 } else { key.len() + 1 })
}

impl Drop for Directory<'_> {
    fn drop(&mut self) {
        let (Some(facts), false) = (self.facts, self.shared.failed.load(Ordering::Relaxed)) else { return };
        if self.shared.goes_on().is_err() {
            return;
        }
        if let Err(e) = self.finish(&facts) {
            self.shared.fail(e);
        }
    }
}
