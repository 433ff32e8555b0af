//! Which entries a transfer copies, and what happens to others at the destination.
//!
//! Model: both ends have the same choice. The source applies it to what it finds; the sink, to what is to be deleted.
//! Invariant: nothing is deleted below a directory of the source that was not listed completely, and nothing whose name
//! the source has.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thalweg_api::{PumpChange, PumpChoice, PumpCompare, PumpItem};
use thalweg_io::hidden::is_hidden;
use thalweg_io::tree::{self, Dir, EntryKind};

use crate::left_out::Lists;
use crate::refused::Refused;
use crate::rules::{Rules, Side};
use crate::{Error, Result};

/// The most bytes of all rules together, which travel in one message.
const RULES_BYTES_MAX: usize = 256 << 10;
/// The names that are listed at a time.
const SOME: usize = 1000;

/// The choice of a transfer.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// The choice as it was asked for.
    pub(crate) asked: PumpChoice,
    pub(crate) rules: Rules,
    pub(crate) listed: Option<Arc<ListedPaths>>,
}

impl Choice {
    /// Checks a choice.
    ///
    /// # Errors
    /// If a rule cannot be understood.
    pub fn of(asked: &PumpChoice) -> std::result::Result<Choice, Refused> {
        let mut rules = Rules::default();
        asked.rules.iter().try_for_each(|rule| rules.filter(rule))?;
        let bytes: usize = asked.rules.iter().map(String::len).sum();
        if bytes > RULES_BYTES_MAX {
            return Err(Refused::LongRules { bytes: bytes as u64, max: RULES_BYTES_MAX as u64 });
        }
        if asked.max_delete.is_some() && !asked.delete {
            return Err(Refused::MaxDelete);
        }
        if asked.files_from.is_some() && asked.delete {
            return Err(Refused::DeleteListed);
        }
        let listed = asked.files_from.as_deref().map(ListedPaths::of).transpose()?;
        Ok(Choice { asked: asked.clone(), rules, listed: listed.map(Arc::new) })
    }

    /// The choice as the other end needs it: the list of paths is the source's business.
    pub(crate) fn told(asked: &PumpChoice) -> PumpChoice {
        PumpChoice { files_from: None, ..asked.clone() }
    }

    /// Whether the source must know what the destination has.
    pub(crate) fn asks(&self) -> bool {
        let PumpChoice { dry_run, compare, update, existing, .. } = self.asked;
        dry_run || update || existing || compare != PumpCompare::Nothing
    }

    /// Whether directories of the destination are only looked for, and not created.
    pub(crate) fn only_looks(&self) -> bool {
        self.asked.dry_run || self.asked.existing
    }

    /// Whether a directory below a source, with this path there, is not copied: it, or one above it, is excluded or not
    /// listed. `way` is the path of the source for rules.
    pub(crate) fn passes_over(&self, way: &OsStr, path: &Path) -> bool {
        let mut all = path.ancestors().filter(|path| !path.as_os_str().is_empty());
        all.any(|path| {
            let is_listed = self.listed.as_ref().is_none_or(|listed| listed.has(path));
            let path = below(way.as_bytes(), path.as_os_str());
            !is_listed || self.rules.excludes(Side::Source, &path, true)
        })
    }

    /// Whether rules protect an entry of a directory of the destination from being deleted, or one above it.
    pub(crate) fn spares(&self, way: &OsStr, path: &Path, is_dir: bool) -> bool {
        let mut all = path.ancestors().filter(|path| !path.as_os_str().is_empty()).enumerate();
        all.any(|(above, path)| {
            let (path, is_dir) = (below(way.as_bytes(), path.as_os_str()), is_dir || above > 0);
            self.rules.excludes(Side::Dest, &path, is_dir) && self.rules.protects_in_deleted(&path, is_dir)
        })
    }

    /// Whether it is one that has a meaning for streams.
    pub(crate) fn is_everything(&self) -> bool {
        self.asked == PumpChoice::default()
    }
}

/// The only paths of a transfer. What is below one of them is listed, too, and the directories above them are moved.
#[derive(Debug)]
pub(crate) struct ListedPaths {
    /// Each path, and whether it was found.
    paths: HashMap<Vec<u8>, AtomicBool>,
    above: HashSet<Vec<u8>>,
}

impl ListedPaths {
    fn of(typed: &[String]) -> std::result::Result<ListedPaths, Refused> {
        let mut listed = ListedPaths { paths: HashMap::new(), above: HashSet::new() };
        for line in typed {
            let is_name = |part: &Component<'_>| matches!(part, Component::Normal(_));
            let parts: PathBuf = Path::new(line)
                .components()
                .filter(|part| !matches!(part, Component::CurDir | Component::RootDir))
                .collect();
            if !parts.components().all(|part| is_name(&part)) {
                return Err(Refused::ListedPath(line.clone()));
            }
            let above = parts.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty());
            listed.above.extend(above.map(|path| path.as_os_str().as_bytes().to_vec()));
            listed.paths.insert(parts.into_os_string().into_encoded_bytes(), AtomicBool::new(false));
        }
        Ok(listed)
    }

    /// Whether a path below its source is listed.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let found = path.ancestors().find_map(|path| self.paths.get(path.as_os_str().as_bytes()));
        if let Some(found) = found {
            found.store(true, Ordering::Relaxed);
        }
        found.is_some() || self.above.contains(path.as_os_str().as_bytes())
    }

    /// The paths that were not found.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &Path> {
        let missing = self.paths.iter().filter(|(_, found)| !found.load(Ordering::Relaxed));
        missing.map(|(path, _)| Path::new(OsStr::from_bytes(path)))
    }
}

/// Deletes what the source does not have, and counts it.
pub(crate) struct Deleter<'c> {
    choice: &'c Choice,
    /// How many entries were deleted, and how many would have been one too many.
    pub(crate) deleted: AtomicU64,
    pub(crate) not_deleted: AtomicU64,
    /// What a dry run would change.
    pub(crate) items: Lists<PumpItem>,
}

impl<'c> Deleter<'c> {
    pub(crate) fn new(choice: &'c Choice) -> Deleter<'c> {
        Deleter {
            choice,
            deleted: AtomicU64::new(0),
            not_deleted: AtomicU64::new(0),
            items: Lists::default(),
        }
    }

    /// Lists what a dry run would do to an entry.
    pub(crate) fn would(&self, change: PumpChange, path: &[u8], is_dir: bool) {
        if self.choice.asked.dry_run {
            let slash = if is_dir { "/" } else { "" };
            let path = format!("{}{slash}", String::from_utf8_lossy(path));
            self.items.add(PumpItem { change, path });
        }
    }

    /// Deletes the names in `there` that the source does not have and no rule protects. `way` is the directory's path in
    /// the transfer. Calls `failed` for what cannot be deleted.
    pub(crate) fn clear(
        &self,
        there: &Arc<dyn Dir>,
        way: &[u8],
        is_at_source: impl Fn(&OsStr) -> bool,
        failed: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<()> {
        let (mut names, mut strangers) = (there.names()?, Vec::new());
        loop {
            let some = names.some(SOME)?;
            if some.is_empty() {
                break;
            }
            strangers.extend(
                some.into_iter().filter(|(name, _)| !is_hidden(name.as_bytes()) && !is_at_source(name)),
            );
        }
        for (name, kind) in strangers {
            let path = below(way, &name);
            if let Err(why) = kind_of(&**there, &name, kind).and_then(|is_dir| {
                match self.choice.rules.excludes(Side::Dest, &path, is_dir) {
                    true => Ok(()),
                    false => self.delete(there, name, path, is_dir),
                }
            }) {
                failed(why)?;
            }
        }
        Ok(())
    }

    /// Deletes an entry, with all that is in it, but for what is protected and the directories that hold that.
    fn delete(&self, dir: &Arc<dyn Dir>, name: OsString, path: Vec<u8>, is_dir: bool) -> Result<()> {
        if !is_dir {
            return self.counted(&path, false, || dir.remove(&name)).map(|_| ());
        }
        // A stack instead of recursion: a tree may be deeper than a thread's stack.
        let mut open = vec![Doomed::open(dir, name, path)?];
        self.opens_up(&open[0])?;
        while let Some(doomed) = open.last_mut() {
            let Some((name, kind)) = doomed.left.pop() else {
                let Doomed { dir, name, way, keeps, .. } = open.pop().expect("there is a last one");
                let stays = keeps || !self.counted(&way, true, || dir.remove_dir(&name))?;
                if let Some(above) = open.last_mut().filter(|_| stays) {
                    above.keeps = true;
                }
                continue;
            };
            let path = below(&doomed.way, &name);
            let is_dir = kind_of(&*doomed.here, &name, kind)?;
            if is_hidden(name.as_bytes()) || self.choice.rules.protects_in_deleted(&path, is_dir) {
                doomed.keeps = true;
            } else if is_dir {
                let below = Doomed::open(&doomed.here, name, path)?;
                self.opens_up(&below)?;
                open.push(below);
            } else if !self.counted(&path, false, || doomed.here.remove(&name))? {
                doomed.keeps = true;
            }
        }
        Ok(())
    }

    fn opens_up(&self, doomed: &Doomed) -> Result<()> {
        if self.choice.asked.dry_run { Ok(()) } else { Ok(tree::open_up(&*doomed.here)?) }
    }

    /// Deletes one entry, unless that would be one too many. Returns whether it is gone.
    fn counted(
        &self,
        path: &[u8],
        is_dir: bool,
        delete: impl FnOnce() -> thalweg_io::Result<()>,
    ) -> Result<bool> {
        let most = self.choice.asked.max_delete.unwrap_or(u64::MAX);
        if self.deleted.fetch_add(1, Ordering::Relaxed) >= most {
            self.deleted.fetch_sub(1, Ordering::Relaxed);
            self.not_deleted.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        if self.choice.asked.dry_run {
            self.would(PumpChange::Deleted, path, is_dir);
            return Ok(true);
        }
        let deleted = delete();
        if deleted.is_err() {
            self.deleted.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(deleted.map(|()| true)?)
    }
}

/// A directory that is being deleted.
struct Doomed {
    /// The directory that holds it, and its name there.
    dir: Arc<dyn Dir>,
    name: OsString,
    here: Arc<dyn Dir>,
    way: Vec<u8>,
    left: Vec<(OsString, Option<EntryKind>)>,
    /// Whether something in it stays.
    keeps: bool,
}

impl Doomed {
    fn open(dir: &Arc<dyn Dir>, name: OsString, way: Vec<u8>) -> Result<Doomed> {
        let here = dir.open_dir(&name)?;
        let (mut names, mut left) = (here.names()?, Vec::new());
        loop {
            let some = names.some(SOME)?;
            if some.is_empty() {
                return Ok(Doomed { dir: Arc::clone(dir), name, here, way, left, keeps: false });
            }
            left.extend(some);
        }
    }
}

fn kind_of(dir: &dyn Dir, name: &OsStr, kind: Option<EntryKind>) -> Result<bool> {
    let kind = kind.map_or_else(|| dir.attributes_of(name).map(|facts| facts.kind), Ok)?;
    Ok(kind == EntryKind::Directory)
}

/// The path of a name in a directory.
pub(crate) fn below(way: &[u8], name: &OsStr) -> Vec<u8> {
    let slash: &[u8] = if way.is_empty() { b"" } else { b"/" };
    [way, slash, name.as_bytes()].concat()
}
