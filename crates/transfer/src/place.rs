//! A directory of the source together with the one that it becomes.
//!
//! Model: whoever works on something in a directory holds its place. When nobody does any more, all of it is there,
//! and the directory gets its permissions and times: children let go of their parents, so from the leaves up.
//! Invariant: a directory of the destination is made when it is first needed, by whoever needs it first.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_io::tree::{Dir, Facts};

use crate::claim::claim_directory;
use crate::message::Message;
use crate::roots::Root;
use crate::shared::{Shared, count};
use crate::{Error, Result};

/// Where a place leads to.
pub(crate) enum There {
    /// Nothing is kept.
    Nowhere,
    /// Another process.
    Far,
    /// A directory that will be made in the parent's.
    ToMake,
    /// A directory.
    Open(Arc<Dir>),
}

/// See the head of this file.
pub(crate) struct Place<'a> {
    shared: &'a Shared<'a>,
    parent: Option<Arc<Place<'a>>>,
    /// The directory that is read; those that only hold roots have none.
    source: Option<Dir>,
    /// What it is given in the end; what only holds roots keeps what it has.
    facts: Option<Facts>,
    /// The bare name that it has at the destination, for now.
    name: OsString,
    there: Mutex<There>,
    /// Its place in the transfer: the root's name, and those below it.
    key: Vec<u8>,
    /// Which root it belongs to, and how many bytes of the key lead there.
    pub(crate) top: (u64, usize),
    /// Whether the whole tree has a hidden name, so that what is in it needs none.
    pub(crate) staged: bool,
    /// The number by which another process knows it, and how many names of it were sent there.
    number: u64,
    sent: AtomicU64,
    /// Names that are in the source, where only another process sees that.
    named: Mutex<HashSet<OsString>>,
}

impl<'a> Place<'a> {
    /// The directory that roots lie in.
    pub(crate) fn of_roots(shared: &'a Shared<'a>, source: Option<Dir>, there: There) -> Place<'a> {
        Place {
            shared,
            parent: None,
            source,
            facts: None,
            name: OsString::new(),
            there: Mutex::new(there),
            key: Vec::new(),
            top: (0, 0),
            staged: false,
            number: 0,
            sent: AtomicU64::new(0),
            named: Mutex::default(),
        }
    }

    /// A directory that is itself a root: it will be made as `name` in `parent`, and bear `key` in the end.
    pub(crate) fn root(
        parent: &Arc<Place<'a>>,
        source: Dir,
        (name, key): (OsString, &OsStr),
        number: u64,
        staged: bool,
    ) -> Result<Place<'a>> {
        let facts = source.own_facts()?;
        let place =
            Place::under(parent, Some(source), facts, name, (root_key(key), root_top(key, number), staged));
        place.tell(Some(number as u32))?;
        Ok(place)
    }

    /// A root that another process sends, to be made in `parent`.
    pub(crate) fn came(parent: &Arc<Place<'a>>, root: &Root, facts: Facts, number: u32) -> Place<'a> {
        let key = &*root.there;
        let top = root_top(key, u64::from(number));
        Place::under(parent, None, facts, root.name_for_now(), (root_key(key), top, root.is_new))
    }

    /// A directory that another process sends, in this one.
    pub(crate) fn came_below(self: &Arc<Place<'a>>, name: OsString, facts: Facts) -> Place<'a> {
        let key = self.key_of(&name);
        Place::under(self, None, facts, name, (key, self.top, self.staged))
    }

    /// A directory in this one.
    pub(crate) fn below(self: &Arc<Place<'a>>, name: OsString) -> Result<Place<'a>> {
        let source = self.source().open_dir(&name)?;
        let key = self.key_of(&name);
        let facts = source.own_facts()?;
        let place = Place::under(self, Some(source), facts, name, (key, self.top, self.staged));
        place.tell(None)?;
        Ok(place)
    }

    fn under(
        parent: &Arc<Place<'a>>,
        source: Option<Dir>,
        facts: Facts,
        name: OsString,
        (key, top, staged): (Vec<u8>, (u64, usize), bool),
    ) -> Place<'a> {
        let there = match &*parent.there.lock().expect("no lane panics") {
            There::Nowhere => There::Nowhere,
            There::Far => There::Far,
            There::ToMake | There::Open(_) => There::ToMake,
        };
        Place {
            shared: parent.shared,
            parent: Some(Arc::clone(parent)),
            facts: Some(facts),
            source,
            name,
            there: Mutex::new(there),
            key,
            top,
            staged,
            number: parent.shared.far.as_ref().map_or(0, |far| far.next_dir()),
            sent: AtomicU64::new(0),
            named: Mutex::default(),
        }
    }

    /// Tells another process of it, if there is one.
    fn tell(&self, root: Option<u32>) -> Result<()> {
        let (Some(far), Some(parent), Some(facts)) = (&self.shared.far, &self.parent, self.facts) else {
            return Ok(());
        };
        parent.has_one_more();
        far.tell(&Message::Dir(self.number, parent.number, self.name.clone(), facts, root))
    }

    /// Bytes of its place in the transfer.
    pub(crate) fn key_bytes(&self) -> usize {
        self.key.len()
    }

    /// The number by which another process knows it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// One more of its names has been sent to another process.
    pub(crate) fn has_one_more(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// The source has this name, says another process.
    pub(crate) fn is_in_source(&self, name: OsString) {
        self.named.lock().expect("no lane panics").insert(name);
    }

    /// Whether anything is kept at the destination.
    pub(crate) fn is_kept(&self) -> bool {
        !matches!(*self.there.lock().expect("no lane panics"), There::Nowhere)
    }

    /// The directory that is read.
    pub(crate) fn source(&self) -> &Dir {
        self.source.as_ref().expect("names are read in directories that there are")
    }

    /// The place in the transfer of a name in it.
    pub(crate) fn key_of(&self, name: &OsStr) -> Vec<u8> {
        let mut key = self.key.clone();
        if !key.is_empty() {
            key.push(b'/');
        }
        key.extend_from_slice(name.as_bytes());
        key
    }

    /// Its own way from the top of the tree.
    pub(crate) fn own_way(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.key.get(self.top.1..).unwrap_or_default()))
    }

    /// What it will be given.
    pub(crate) fn facts(&self) -> Option<Facts> {
        self.facts
    }

    /// The directory that is written, which is made if need be; `None` if nothing is kept.
    pub(crate) fn there(&self) -> Result<Option<Arc<Dir>>> {
        let mut there = self.there.lock().expect("no lane panics");
        match &*there {
            There::Nowhere | There::Far => return Ok(None),
            There::Open(dir) => return Ok(Some(Arc::clone(dir))),
            There::ToMake => {}
        }
        let parent = self.parent.as_ref().expect("only roots' directories have no parent");
        let Some(above) = parent.there()? else { return Ok(None) };
        let dir = Arc::new(match self.is_staged_root() {
            true => {
                let journal = self.shared.journal.as_ref().expect("a tree goes to a directory");
                claim_directory(&above, &self.name, journal)?
            }
            false => {
                above.make_dir(&self.name)?;
                above.open_dir(&self.name).map_err(|why| match why.source.kind() {
                    ErrorKind::NotADirectory => Error::no_directory_there(&above.path().join(&self.name)),
                    _ => why.into(),
                })?
            }
        });
        if self.is_staged_root() {
            self.shared.staged.lock().expect("no lane panics").insert(self.top.0, Arc::clone(&dir));
        }
        if self.staged
            && self.shared.resume
            && let Some(source) = &self.source
        {
            self.remove_strangers(&dir, |name| source.facts_if_any(name).map(|facts| facts.is_some()))?;
        }
        *there = There::Open(Arc::clone(&dir));
        Ok(Some(dir))
    }

    /// Whether the whole tree's hidden name is this one's.
    fn is_staged_root(&self) -> bool {
        self.staged && self.parent.as_ref().is_some_and(|parent| parent.parent.is_none())
    }

    /// Gives the directory what it should have, once all is in it. One with a hidden name stays its maker's alone until
    /// just before it gets its own.
    fn finish(&self, facts: &Facts) -> Result<()> {
        if let Some(source) = &self.source
            && !source.own_facts()?.is_same(facts)
        {
            return Err(Error::Changed(source.path().to_path_buf()));
        }
        count(&self.shared.counts.directories, 1);
        if let Some(far) = &self.shared.far {
            return far.tell(&Message::DirEnd(self.number, self.sent.load(Ordering::Relaxed)));
        }
        let Some(there) = self.there()? else { return Ok(()) };
        if self.source.is_none() && self.staged && self.shared.resume {
            let named = self.named.lock().expect("no lane panics");
            self.remove_strangers(&there, |name| Ok(named.contains(name)))?;
        }
        if self.is_staged_root() {
            return Ok(());
        }
        Ok(there.dress(facts)?)
    }

    /// Removes what an earlier run brought and is no longer in the source, but for files that are gone on from. Only in
    /// trees that nobody has seen yet.
    fn remove_strangers(
        &self,
        there: &Dir,
        is_ours: impl Fn(&OsStr) -> thalweg_io::Result<bool>,
    ) -> Result<()> {
        const SOME: usize = 1000;
        let (mut names, mut strangers) = (there.names()?, Vec::new());
        loop {
            let some = names.some(SOME)?;
            if some.is_empty() {
                break;
            }
            for (name, _) in some {
                if !self.shared.is_noted(&name) && !is_ours(&name)? {
                    strangers.push(name);
                }
            }
        }
        for name in strangers {
            there.remove_all(&name)?;
        }
        Ok(())
    }
}

fn root_key(key: &OsStr) -> Vec<u8> {
    key.as_bytes().to_vec()
}

/// What is in a root without a name of its own has no way there to skip.
fn root_top(key: &OsStr, number: u64) -> (u64, usize) {
    (number, if key.is_empty() { 0 } else { key.len() + 1 })
}

impl Drop for Place<'_> {
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
