//! The meaning of the arguments on these file systems: the directory that each source goes to, and its name there.
//!
//! ```text
//! DEST is a directory            SOURCE goes into it under its own name; SOURCE/ means the contents of SOURCE
//! DEST is a file                 SOURCE, one file, replaces it
//! DEST does not exist            SOURCE becomes it; its parent directory must exist
//! ```
//!
//! Invariant: nothing is changed here. A transfer that cannot succeed is refused before anything begins.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use thalweg_io::tree::{Attributes, Dir, EntryKind, Tree};
use thalweg_io::{Action, directory_of};
use xxhash_rust::xxh3::xxh3_128;

use crate::choice::Choice;
use crate::journal::{MadeTree, told_by};
use crate::message::{Offer, Offered, is_bare};
use crate::refused::Refused;
use crate::rules::Side;
use crate::{Error, Result, hidden_names};

/// The longest name of any file system.
const NAME_BYTES_MAX: usize = 255;

/// A source of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    /// A file or a tree.
    Path(PathBuf),
    /// A pipe, a terminal or a device, read in order until it ends.
    Stream(PathBuf),
    /// This many zeros.
    Zeros(u64),
    /// This many bytes of noise, from memory.
    Noise(u64),
}

/// The destination of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum To {
    /// A file, a tree, or a directory that sources go into.
    Path(PathBuf),
    /// A stream, written in order.
    Stream(PathBuf),
    /// Nothing: bytes are counted and hashed.
    Null,
}

/// What to move, and how.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// The sources, at least one.
    pub sources: Vec<From>,
    /// The destination.
    pub dest: To,
    /// The number of lanes.
    pub streams: usize,
    /// The most bytes per second.
    pub limit: Option<u64>,
    /// Whether to resume from an earlier run, and skip complete files.
    pub resume: bool,
    /// Whether to read the destination back.
    pub verify: bool,
    /// Whether to compute checksums.
    pub hashing: bool,
    /// Whether the first error ends the transfer, and a file that grows is an error.
    pub strict: bool,
    /// Which entries.
    pub choice: Choice,
}

impl Transfer {
    /// A transfer in one lane, with checksums.
    pub fn new(sources: Vec<From>, dest: To) -> Transfer {
        Transfer {
            sources,
            dest,
            streams: 1,
            limit: None,
            resume: false,
            verify: false,
            hashing: true,
            strict: false,
            choice: Choice::default(),
        }
    }
}

/// A source that exists.
#[derive(Debug)]
pub(crate) struct Root {
    /// Its directory, and its name there; for a tree, the tree itself and no name.
    pub(crate) source: PathBuf,
    pub(crate) name: OsString,
    pub(crate) is_tree: bool,
    /// The attributes of a tree.
    pub(crate) facts: Option<Attributes>,
    /// Its name at the destination; empty if only the contents are moved.
    pub(crate) there: OsString,
    /// Whether it is a tree that does not exist at the destination.
    pub(crate) is_new: bool,
    /// Its path for filter rules: its own name, or nothing if its contents are meant.
    pub(crate) way: OsString,
}

/// All sources and the destination, examined.
#[derive(Default)]
pub(crate) struct Roots {
    pub(crate) roots: Vec<Root>,
    /// The directory that they go into.
    pub(crate) dir: Option<Arc<dyn Dir>>,
    /// The name from which hidden names are made.
    pub(crate) stem: OsString,
    /// Whether an earlier run gave the tree its name, but was interrupted before it removed its journal.
    was_named: bool,
    /// Whether DEST is inside a source, in a part that is not copied.
    is_inside: bool,
    /// The errors of sources that are left out.
    pub(crate) missing: Mutex<Vec<Error>>,
}

impl Roots {
    /// A hash of what must be equal for a later run to resume this one. Each file is checked on its own.
    pub(crate) fn identity(&self, hashing: bool) -> Result<u128> {
        let dir = self.dir.as_ref().expect("only what goes to a directory has a journal");
        let there = dir.attributes()?;
        let mut text = format!("{} {} {hashing}", there.device, there.inode);
        for root in &self.roots {
            let is_new = root.is_new || self.was_named;
            text += &format!(" {:?} {:?} {:?} {} {is_new}", root.source, root.name, root.there, root.is_tree);
        }
        Ok(xxh3_128(text.as_bytes()))
    }

    /// Whether several sources go into one directory, where they may have the same names.
    pub(crate) fn meet(&self) -> bool {
        self.roots.len() > 1 && self.roots.iter().any(Root::is_contents)
    }

    /// The hidden names of this transfer that its own source may have.
    pub(crate) fn own_hidden(&self) -> Vec<OsString> {
        let partials =
            self.roots.iter().filter(|root| root.is_new).map(|root| hidden_names::partial(&root.there));
        let names = || partials.chain([hidden_names::journal(&self.stem)]).collect();
        if self.is_inside { names() } else { Vec::new() }
    }
}

impl Root {
    /// Whether only the contents of a directory are moved.
    pub(crate) fn is_contents(&self) -> bool {
        self.is_tree && self.there.is_empty()
    }

    pub(crate) fn of(given: Given, there: OsString, is_new: bool) -> Root {
        let way = given.way();
        let Given { real, facts, .. } = given;
        let is_tree = facts.is_some();
        let (source, name) = match is_tree {
            true => (real, OsString::new()),
            false => (directory_of(&real).to_path_buf(), real.file_name().unwrap_or_default().to_os_string()),
        };
        Root { source, name, is_tree, facts, there, is_new, way }
    }

    /// The name of a tree at the destination until it is complete.
    pub(crate) fn name_for_now(&self) -> OsString {
        match (self.is_new, self.there.is_empty()) {
            (true, _) => hidden_names::partial(&self.there),
            // The contents go into the directory itself.
            (false, true) => OsString::from("."),
            (false, false) => self.there.clone(),
        }
    }
}

/// A source that exists, as the source's end sees it.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    /// The path as the user typed it, for messages.
    path: PathBuf,
    /// The path without symbolic links.
    real: PathBuf,
    /// Its own name.
    name: OsString,
    /// The attributes of a tree.
    facts: Option<Attributes>,
    /// Whether only the contents of the directory are meant.
    contents: bool,
}

impl Given {
    /// Its path for filter rules.
    fn way(&self) -> OsString {
        if self.contents { OsString::new() } else { self.name.clone() }
    }

    /// Its name at the destination; empty if only its contents go there.
    fn there(&self, dest: Option<&Destination>) -> OsString {
        match dest {
            Some(Destination { name: Some(name), .. }) => name.clone(),
            Some(_) if self.contents => OsString::new(),
            _ => self.name.clone(),
        }
    }

    /// Whether a peer may give it this name; an empty name means that only the contents are moved.
    pub(crate) fn may_be_called(&self, name: &OsStr) -> bool {
        let bytes = name.as_bytes();
        (is_bare(bytes) && bytes.len() <= NAME_BYTES_MAX) || (bytes.is_empty() && self.contents)
    }

    /// The description for the peer.
    pub(crate) fn offered(&self) -> Offered {
        Offered {
            path: self.real.clone(),
            name: if self.name.is_empty() { "root".into() } else { self.name.clone() },
            facts: self.facts,
            contents: self.contents,
        }
    }
}

/// Examines the sources. Also returns the errors of those that are left out: some of several, but not all.
pub(crate) fn givens(tree: &dyn Tree, transfer: &Transfer) -> Result<(Vec<Given>, Vec<Error>)> {
    let (mut givens, mut missing, mut excluded) = (Vec::new(), Vec::new(), 0);
    let rules = &transfer.choice.rules;
    for path in transfer.sources.iter().filter_map(path_of) {
        match given(tree, path) {
            Ok(given) => match given.way() {
                way if !way.is_empty()
                    && rules.excludes(Side::Source, way.as_bytes(), given.facts.is_some()) =>
                {
                    excluded += 1;
                }
                _ => givens.push(given),
            },
            Err(why @ Error::Io(_)) if !transfer.strict => missing.push(why),
            Err(why) => return Err(why),
        }
    }
    match givens.is_empty() {
        true if !missing.is_empty() => Err(missing.remove(0)),
        true if excluded > 0 => Err(Refused::AllExcluded.into()),
        _ => Ok((givens, missing)),
    }
}

/// The directory, if what was opened is one.
fn if_directory(opened: thalweg_io::Result<Arc<dyn Dir>>) -> Result<Option<Arc<dyn Dir>>> {
    match opened {
        Ok(dir) => Ok(Some(dir)),
        Err(e) => match e.source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename => Ok(None),
            _ => Err(e.into()),
        },
    }
}

fn given(tree: &dyn Tree, path: &Path) -> Result<Given> {
    let real = tree.canonical(path).map_err(|e| thalweg_io::Error { action: Action::Stat, ..e })?;
    let facts = if_directory(tree.open_dir(&real))?.map(|dir| dir.attributes()).transpose()?;
    let name = path.file_name().or(real.file_name()).unwrap_or_default().to_os_string();
    let contents = facts.is_some() && means_contents(path);
    Ok(Given { path: path.to_path_buf(), real, name, facts, contents })
}

/// Examines both ends.
pub(crate) fn look(transfer: &Transfer, source: &Arc<dyn Tree>, dest: &Arc<dyn Tree>) -> Result<Roots> {
    let first = transfer.sources.iter().find_map(path_of);
    let first_is_tree =
        first.is_some_and(|path| if_directory(source.open_dir(path)).is_ok_and(|dir| dir.is_some()));
    let destination = match &transfer.dest {
        To::Path(path) => Some(destination(&**dest, path, first_is_tree, transfer.sources.len())?),
        _ => None,
    };
    let (givens, missing) = givens(&**source, transfer)?;
    let shared = Arc::ptr_eq(source, dest).then_some((&**source, &transfer.choice));
    let before = (transfer.resume, transfer.hashing);
    let roots = match named_before(&**dest, destination.as_ref(), &givens, before)? {
        Some(roots) => roots,
        None => settled(&transfer.dest, destination, givens, shared)?,
    };
    Ok(Roots { missing: Mutex::new(missing), ..roots })
}

/// The roots of an earlier run that was interrupted after it had named the tree: its journal exists, and lists the
/// directory that is DEST now. Without this check the source would go into DEST.
fn named_before(
    tree: &dyn Tree,
    dest: Option<&Destination>,
    givens: &[Given],
    (resume, hashing): (bool, bool),
) -> Result<Option<Roots>> {
    let (true, Some(Destination { dir: there, path, name: None, .. }), [given]) = (resume, dest, givens)
    else {
        return Ok(None);
    };
    let (Some(name), Some(_)) = (path.file_name(), given.facts) else { return Ok(None) };
    // The root of a volume has a name and no directory.
    let Some(dir) = if_directory(tree.open_dir(directory_of(path)))? else { return Ok(None) };
    let root = Root::of(given.clone(), name.to_os_string(), true);
    let stem = name.to_os_string();
    let mut roots =
        Roots { roots: vec![root], dir: Some(Arc::clone(&dir)), stem, was_named: true, ..Roots::default() };
    let identity = roots.identity(hashing)?;
    let told = told_by(&*dir, &hidden_names::journal(name), Some(identity));
    let made = MadeTree::of(&hidden_names::partial(name), &**there)?;
    if told.identity != Some(identity) || !made.is_in(&told.trees) {
        return Ok(None);
    }
    roots.roots[0].is_new = false;
    Ok(Some(roots))
}

/// Refuses sources that the peer offers without a request: otherwise it could choose names in an existing directory. They
/// are in order, and some may be missing, but not all. A stream has no name, and is the only source.
pub(crate) fn check_asked(paths: &[PathBuf], roots: &[Offered], peer: &str) -> Result<()> {
    let mut left = paths.iter();
    let strange = roots.iter().find(|root| !left.any(|path| is_asked(path, root)));
    let offered = match strange {
        Some(_) if roots.len() > paths.len() => roots.len().to_string(),
        Some(root) => {
            let all = if root.contents { "what is in " } else { "" };
            format!("{all}'{}'", root.name.display())
        }
        None if roots.is_empty() && paths.len() > 1 => "none".into(),
        None => return Ok(()),
    };
    let asked = match paths {
        [path] => path.display().to_string(),
        _ => format!("{} paths", paths.len()),
    };
    Err(Refused::Offer { peer: peer.into(), asked, offered }.into())
}

fn is_asked(path: &Path, root: &Offered) -> bool {
    match means_contents(path) {
        true => root.contents && root.facts.is_some(),
        false => !root.contents && path.file_name() == Some(&root.name),
    }
}

/// Examines the destination for sources that the peer offers.
pub(crate) fn look_at_offer(tree: &dyn Tree, to: &To, offer: &Offer, peer: &str) -> Result<Roots> {
    let offered = &offer.roots;
    let first_is_tree = offered.first().is_some_and(|root| root.facts.is_some());
    let dest = match to {
        To::Path(path) => Some(destination(tree, path, first_is_tree, offered.len().max(1))?),
        _ => None,
    };
    let given = |root: &Offered| {
        let mut named = OsString::from(peer);
        named.push(":");
        named.push(&root.path);
        let path = PathBuf::from(named);
        Given {
            real: path.clone(),
            path,
            name: root.name.clone(),
            facts: root.facts,
            contents: root.contents && root.facts.is_some(),
        }
    };
    let givens: Vec<Given> = offered.iter().map(given).collect();
    match named_before(tree, dest.as_ref(), &givens, (offer.resume, offer.hashing))? {
        Some(roots) => Ok(roots),
        None => settled(to, dest, givens, None),
    }
}

/// Matches the sources with the destination. `shared` is the file system if both ends are on the same one, and the
/// choice.
fn settled(
    to: &To,
    dest: Option<Destination>,
    givens: Vec<Given>,
    shared: Option<(&dyn Tree, &Choice)>,
) -> Result<Roots> {
    if let (true, Some(Destination { name: None, path, .. })) = (givens.is_empty(), &dest) {
        return Err(Refused::Nameless(path.clone()).into());
    }
    let (mut roots, mut is_inside) = (Vec::with_capacity(givens.len()), false);
    if let (Some((tree, choice)), Some(dest)) = (shared, &dest) {
        check_not_deleted(&givens, tree, choice, dest)?;
    }
    for given in givens {
        if matches!(to, To::Stream(_)) && given.facts.is_some() {
            return Err(Refused::DirectoryToStream(given.path).into());
        }
        let root = root(given, dest.as_ref(), shared)?;
        is_inside |= root.is_tree && lies_in(&root.source, &root.there, dest.as_ref(), shared);
        roots.push(root);
    }
    let many = roots.iter().enumerate().find(|(i, root)| roots[..*i].iter().any(|r| r.there == root.there));
    if let Some((_, root)) = many.filter(|(_, root)| !root.there.is_empty()) {
        return Err(Refused::SameName(root.there.clone()).into());
    }
    let stem = match (&dest, roots.first()) {
        (Some(Destination { name: Some(name), .. }), _) => name.clone(),
        (_, Some(root)) if !root.there.is_empty() => root.there.clone(),
        _ => OsString::from("pump"),
    };
    let mut roots = Roots { roots, dir: dest.map(|dest| dest.dir), stem, is_inside, ..Roots::default() };
    if roots.meet() {
        // A tree that may get something from other sources has no hidden name of its own.
        roots.roots.iter_mut().for_each(|root| root.is_new = false);
    }
    Ok(roots)
}

/// Whether a destination is, or is inside, this source.
fn lies_in(
    real: &Path,
    there: &OsStr,
    dest: Option<&Destination>,
    shared: Option<(&dyn Tree, &Choice)>,
) -> bool {
    let goal = dest.map(|dest| dest.path.join(there));
    shared.zip(goal).is_some_and(|((tree, _), goal)| tree.contains(real, &goal))
}

/// Refuses to delete in a directory that holds a source.
fn check_not_deleted(givens: &[Given], tree: &dyn Tree, choice: &Choice, dest: &Destination) -> Result<()> {
    if !choice.asked.delete {
        return Ok(());
    }
    for into in givens.iter().filter(|given| given.facts.is_some()) {
        let goal = dest.path.join(into.there(Some(dest)));
        for given in givens.iter().filter(|given| given.real != goal && tree.contains(&goal, &given.real)) {
            let below = given.real.strip_prefix(&goal).unwrap_or(Path::new(""));
            if !choice.spares(&into.way(), below, given.facts.is_some()) {
                return Err(Refused::SourceInDest { from: given.path.clone(), dest: goal }.into());
            }
        }
    }
    Ok(())
}

fn path_of(from: &From) -> Option<&PathBuf> {
    match from {
        From::Path(path) => Some(path),
        _ => None,
    }
}

/// A directory at the destination.
struct Destination {
    dir: Arc<dyn Dir>,
    /// The directory's own path without links.
    path: PathBuf,
    /// The name of the one source there, unless it keeps its own.
    name: Option<OsString>,
    /// The attributes of the file or directory with that name now.
    there: Option<Attributes>,
}

fn destination(tree: &dyn Tree, path: &Path, is_tree: bool, count: usize) -> Result<Destination> {
    // Symbolic links at the end of the path are followed.
    let real = tree.unplanted(path)?;
    if let Some(dir) = if_directory(tree.open_dir_itself(&real))? {
        return Ok(Destination { dir, path: real, name: None, there: None });
    }
    if count > 1 {
        return Err(Refused::ManySources { count, dest: path.into() }.into());
    }
    if ends_in_slash(path) && !is_tree {
        return Err(Refused::NoDirectory(path.into()).into());
    }
    let Some(name) = real.file_name().map(OsStr::to_os_string) else {
        return Err(Refused::NotAName(path.into()).into());
    };
    let directory = directory_of(&real);
    let dir = match tree.open_dir(directory) {
        Err(e) if e.source.kind() == ErrorKind::NotFound => {
            return Err(Refused::NoParent { dest: path.into(), directory: directory.into() }.into());
        }
        opened => opened?,
    };
    let there = dir.find(&name)?;
    if is_tree && there.is_some() {
        return Err(Refused::FileThere(path.into()).into());
    }
    let path = tree.canonical(directory).unwrap_or_else(|_| directory.to_path_buf());
    Ok(Destination { dir, path, name: Some(name), there })
}

fn ends_in_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

/// Whether the path means the contents of the directory, and not the directory.
fn means_contents(path: &Path) -> bool {
    let typed = path.as_os_str().as_bytes();
    ends_in_slash(path) || typed.ends_with(b"/.") || typed == b"."
}

fn root(given: Given, dest: Option<&Destination>, shared: Option<(&dyn Tree, &Choice)>) -> Result<Root> {
    let is_tree = given.facts.is_some();
    let there = given.there(dest);
    let mut is_new = false;
    if let Some(dest) = dest {
        let target = match &dest.there {
            Some(facts) => Some(*facts),
            None if there.is_empty() => Some(dest.dir.attributes()?),
            None => dest.dir.find(&there)?,
        };
        is_new = is_tree && target.is_none();
        check_apart(&given, shared, &there, dest, target)?;
    }
    Ok(Root::of(given, there, is_new))
}

/// A source must not be its destination, nor contain it in a part that is copied.
fn check_apart(
    given: &Given,
    shared: Option<(&dyn Tree, &Choice)>,
    there: &OsStr,
    dest: &Destination,
    target: Option<Attributes>,
) -> Result<()> {
    let (is_tree, real) = (given.facts.is_some(), &given.real);
    let goal = dest.path.join(there);
    let below = goal.strip_prefix(real).unwrap_or(Path::new(""));
    let is_copied = || shared.is_some_and(|(_, choice)| !choice.passes_over(&given.way(), below));
    if is_tree && lies_in(real, there, Some(dest), shared) && is_copied() {
        return Err(Refused::DestInSource { dest: goal, from: given.path.clone() }.into());
    }
    let Some(target) = target else { return Ok(()) };
    match (is_tree, target.kind) {
        (false, EntryKind::Directory) => Err(Refused::DirectoryThere(goal).into()),
        (true, EntryKind::File | EntryKind::Link | EntryKind::Special) => {
            Err(Refused::FileThere(goal).into())
        }
        _ => {
            let Some((tree, _)) = shared else { return Ok(()) };
            let name = real.file_name().unwrap_or(OsStr::new("."));
            let source = tree.open_dir(directory_of(real))?.attributes_of(name)?;
            if (source.device, source.inode) == (target.device, target.inode) {
                return Err(Refused::SameFile { from: given.path.clone(), dest: goal }.into());
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_is_taken() {
        let io: Arc<dyn thalweg_io::FileSystem> = Arc::new(thalweg_io::threads::Threads::new(1));
        let root = thalweg_io::local::tree(&io).open_dir(Path::new("/")).unwrap();
        let facts = root.attributes().unwrap();
        let root = |name: &str, is_tree: bool, contents| Offered {
            path: "/anywhere".into(),
            name: name.into(),
            facts: is_tree.then_some(facts),
            contents,
        };
        let (file, tree, all) = (root("a", false, false), root("a", true, false), root("a", true, true));
        let other = root("b", false, false);
        let is_taken = |asked: &[&str], offered: &[&Offered]| {
            let asked: Vec<PathBuf> = asked.iter().map(PathBuf::from).collect();
            let offered: Vec<Offered> = offered.iter().map(|root| (*root).clone()).collect();
            check_asked(&asked, &offered, "far").is_ok()
        };
        for path in ["/x/a", "a", "/~/a"] {
            assert!(is_taken(&[path], &[&file]) && is_taken(&[path], &[&tree]) && is_taken(&[path], &[]));
            assert!(!is_taken(&[path], &[&all]) && !is_taken(&[path], &[&other]));
            assert!(!is_taken(&[path], &[&file, &other]) && is_taken(&[path, "b"], &[&file]));
            assert!(is_taken(&[path, "b"], &[&other]) && !is_taken(&[path, "b"], &[&file, &file]));
            assert!(is_taken(&[path, "b"], &[&file, &other]) && !is_taken(&[path, "b"], &[&other, &file]));
        }
        for path in ["/x/a/", "/x/a/.", "/", "/~/"] {
            assert!(
                is_taken(&[path], &[&all]) && !is_taken(&[path], &[&tree]) && !is_taken(&[path], &[&file])
            );
        }
        assert!(!is_taken(&["/x/.."], &[&tree]) && !is_taken(&["/x/a", "/x/b"], &[]));
        assert!(is_taken(&[], &[]) && !is_taken(&[], &[&file]));
    }
}
