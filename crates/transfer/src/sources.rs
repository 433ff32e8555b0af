//! A directory of the source, which several sources may have together.
//!
//! Model: sources that go into one directory of the destination are its layers, in the order of the command line. A
//! name is what the first layer has under it. Only a directory comes before a file of an earlier layer, as in rsync, and
//! the directories of several layers are one directory of several layers again. So every name of the destination is
//! written once, whichever lane comes first.
//! Invariant: a layer that cannot be listed does not hide the others; its error is that of the whole listing, at its
//! end.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_io::File;
use thalweg_io::Result;
use thalweg_io::tree::{Attributes, Dir, EntryKind, Names};

/// What one source has of a directory.
#[derive(Debug, Clone)]
pub(crate) enum Layer {
    /// Everything in a directory.
    Contents(Arc<dyn Dir>),
    /// A directory, under this name.
    Tree(OsString, Arc<dyn Dir>),
    /// A file of a directory, and its name here.
    File(OsString, Arc<dyn Dir>, OsString),
    /// A directory that cannot be opened: the one that holds it, and its name there.
    Shut(Arc<dyn Dir>, OsString),
}

impl Layer {
    fn find(&self, name: &OsStr) -> Result<Option<Attributes>> {
        match self {
            Layer::Contents(dir) => dir.find(name),
            Layer::Tree(own, dir) if own == name => dir.attributes().map(Some),
            Layer::File(own, dir, there) if there == name => dir.find(own),
            _ => Ok(None),
        }
    }

    /// The directory that has this name, and the name there.
    fn at<'n>(&'n self, name: &'n OsStr) -> (&'n Arc<dyn Dir>, &'n OsStr) {
        match self {
            Layer::File(own, dir, there) if there == name => (dir, own),
            Layer::Contents(dir) | Layer::Tree(_, dir) | Layer::File(_, dir, _) | Layer::Shut(dir, _) => {
                (dir, name)
            }
        }
    }

    fn open_dir(&self, name: &OsStr) -> Result<Arc<dyn Dir>> {
        match self {
            Layer::Tree(own, dir) if own == name => Ok(Arc::clone(dir)),
            _ => self.at(name).0.open_dir(name),
        }
    }

    fn names(&self) -> Result<Box<dyn Names>> {
        match self {
            Layer::Contents(dir) => dir.names(),
            Layer::Tree(name, _) => Ok(Box::new(One(Some((name.clone(), Some(EntryKind::Directory)))))),
            Layer::File(.., there) => Ok(Box::new(One(Some((there.clone(), None))))),
            Layer::Shut(dir, name) => dir.open_dir(name)?.names(),
        }
    }
}

/// A directory of the source; see the head of this file.
#[derive(Debug, Clone)]
pub(crate) struct Sources(Vec<Layer>);

impl Sources {
    /// A directory of one source.
    pub(crate) fn one(dir: Arc<dyn Dir>) -> Sources {
        Sources(vec![Layer::Contents(dir)])
    }

    /// The directory that these sources have together; one of them has all of it.
    pub(crate) fn of(layers: Vec<Layer>) -> Sources {
        assert!(layers.iter().any(|layer| matches!(layer, Layer::Contents(_))));
        Sources(layers)
    }

    /// The directory of the first source that has all of it.
    pub(crate) fn dir(&self) -> &Arc<dyn Dir> {
        let all = self.0.iter().find_map(|layer| match layer {
            Layer::Contents(dir) => Some(dir),
            _ => None,
        });
        all.expect("one layer has all of it")
    }

    /// Its path when it was opened.
    pub(crate) fn path(&self) -> &Path {
        self.dir().path()
    }

    /// Its own attributes.
    pub(crate) fn attributes(&self) -> Result<Attributes> {
        self.dir().attributes()
    }

    /// The index of the layer whose entry counts.
    fn holder(&self, name: &OsStr) -> Result<usize> {
        let mut first = None;
        if self.0.len() > 1 {
            for (number, layer) in self.0.iter().enumerate() {
                match layer.find(name)?.map(|facts| facts.kind) {
                    Some(EntryKind::Directory) => return Ok(number),
                    Some(_) => first = first.or(Some(number)),
                    None => {}
                }
            }
        }
        Ok(first.unwrap_or(0))
    }

    /// The directory whose entry of this name counts, and the name there.
    fn at<'n>(&'n self, name: &'n OsStr) -> Result<(&'n Arc<dyn Dir>, &'n OsStr)> {
        Ok(self.0[self.holder(name)?].at(name))
    }

    /// The attributes of a name in it.
    pub(crate) fn attributes_of(&self, name: &OsStr) -> Result<Attributes> {
        self.find(name)?.map_or_else(|| self.at(name).and_then(|(dir, own)| dir.attributes_of(own)), Ok)
    }

    /// The attributes of a name in it, if there is one.
    pub(crate) fn find(&self, name: &OsStr) -> Result<Option<Attributes>> {
        self.0[self.holder(name)?].find(name)
    }

    /// Opens a directory in this one.
    pub(crate) fn open_dir(&self, name: &OsStr) -> Result<Sources> {
        if let [layer] = &self.0[..] {
            return layer.open_dir(name).map(Sources::one);
        }
        let (mut layers, mut shut, mut first) = (Vec::new(), Vec::new(), None);
        for layer in &self.0 {
            if !layer.find(name)?.is_some_and(|facts| facts.kind == EntryKind::Directory) {
                continue;
            }
            match layer.open_dir(name) {
                Ok(dir) => layers.push(Layer::Contents(dir)),
                Err(why) => {
                    shut.push(Layer::Shut(Arc::clone(layer.at(name).0), name.to_os_string()));
                    first = first.or(Some(why));
                }
            }
        }
        match (layers.is_empty(), first) {
            (true, Some(why)) => Err(why),
            // It was there a moment ago.
            (true, None) => self.at(name)?.0.open_dir(name).map(Sources::one),
            (false, _) => Ok(Sources([layers, shut].concat())),
        }
    }

    /// Opens a file for reading.
    pub(crate) fn open_file(&self, name: &OsStr, direct: bool) -> Result<File> {
        let (dir, own) = self.at(name)?;
        dir.open_file(own, direct)
    }

    /// The target of a symbolic link.
    pub(crate) fn read_link(&self, name: &OsStr) -> Result<OsString> {
        let (dir, own) = self.at(name)?;
        dir.read_link(own)
    }

    /// Lists the names in it, each once.
    pub(crate) fn names(&self) -> Result<Box<dyn Names>> {
        match &self.0[..] {
            [layer] => layer.names(),
            _ => Ok(Box::new(Together { sources: self.clone(), next: 0, open: None, failed: None })),
        }
    }

    /// The paths of the entries that are not copied because another source has something else under this name.
    pub(crate) fn behind(&self, name: &OsStr) -> Result<Vec<PathBuf>> {
        if self.0.len() == 1 {
            return Ok(Vec::new());
        }
        let holder = self.holder(name)?;
        let counts = self.0[holder].find(name)?;
        let mut behind = Vec::new();
        for (number, layer) in self.0.iter().enumerate().filter(|(number, _)| *number != holder) {
            let Some((facts, counts)) = layer.find(name)?.zip(counts) else { continue };
            let is_same = (facts.device, facts.inode) == (counts.device, counts.inode);
            let are_one = facts.kind == EntryKind::Directory && counts.kind == EntryKind::Directory;
            if !is_same && !are_one {
                let (dir, own) = self.0[number].at(name);
                behind.push(dir.path().join(own));
            }
        }
        Ok(behind)
    }
}

/// One name.
struct One(Option<(OsString, Option<EntryKind>)>);

impl Names for One {
    fn some(&mut self, _count: usize) -> Result<Vec<(OsString, Option<EntryKind>)>> {
        Ok(self.0.take().into_iter().collect())
    }
}

/// The names of several layers.
struct Together {
    sources: Sources,
    /// The layer that comes next, and the one that is being listed.
    next: usize,
    open: Option<Box<dyn Names>>,
    /// The first error.
    failed: Option<thalweg_io::Error>,
}

impl Names for Together {
    fn some(&mut self, count: usize) -> Result<Vec<(OsString, Option<EntryKind>)>> {
        loop {
            let some = match &mut self.open {
                Some(names) => names.some(count),
                None => {
                    let Some(layer) = self.sources.0.get(self.next) else {
                        return self.failed.take().map_or(Ok(Vec::new()), Err);
                    };
                    self.next += 1;
                    match layer.names() {
                        Ok(names) => self.open = Some(names),
                        Err(why) => self.failed = self.failed.take().or(Some(why)),
                    }
                    continue;
                }
            };
            let mut some = some.unwrap_or_else(|why| {
                self.failed = self.failed.take().or(Some(why));
                Vec::new()
            });
            if some.is_empty() {
                self.open = None;
                continue;
            }
            // What cannot be looked at is found out when it is opened.
            let layer = self.next - 1;
            some.retain(|(name, _)| self.sources.holder(name).map_or(true, |holder| holder == layer));
            if !some.is_empty() {
                return Ok(some);
            }
        }
    }
}
