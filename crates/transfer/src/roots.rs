//! What the arguments mean on these file systems: the directory that each source goes to, and its name there.
//!
//! ```text
//! DEST is a directory            SOURCE goes into it under its own name; of SOURCE/, what is in it goes into it
//! DEST is a file                 SOURCE, one file, replaces it
//! DEST does not exist            SOURCE becomes it; its parent directory must exist
//! ```
//!
//! Invariant: nothing is changed here. A transfer that cannot succeed is refused before anything begins.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_io::directory_of;
use thalweg_io::tree::{Attributes, Dir, EntryKind, Tree};
use xxhash_rust::xxh3::xxh3_128;

use crate::journal::{MadeTree, told_by};
use crate::message::{Offer, Offered, is_bare};
use crate::{Error, Result, hidden_names};

/// No file system has longer ones.
const NAME_BYTES_MAX: usize = 255;

/// Where bytes come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    /// A file or a tree.
    Path(PathBuf),
    /// A pipe, a terminal, a device: in order, until it ends.
    Stream(PathBuf),
    /// So many zeros.
    Zeros(u64),
    /// So many bytes of noise, from memory.
    Noise(u64),
}

/// Where they go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum To {
    /// A file, a tree, or a directory that sources go into.
    Path(PathBuf),
    /// In order.
    Stream(PathBuf),
    /// Nowhere: they are counted and summed.
    Null,
}

/// What to move and how.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// The sources, at least one.
    pub sources: Vec<From>,
    /// Where they go.
    pub dest: To,
    /// Lanes.
    pub streams: usize,
    /// The most bytes in a second.
    pub limit: Option<u64>,
    /// Go on from what an earlier run left, and leave alone what is whole.
    pub resume: bool,
    /// Read the destination back.
    pub verify: bool,
    /// Whether sums are taken.
    pub hashing: bool,
}

/// A source that is there.
#[derive(Debug)]
pub(crate) struct Root {
    /// The directory that it lies in, and its name there; of a tree, the tree itself and no name.
    pub(crate) source: PathBuf,
    pub(crate) name: OsString,
    pub(crate) is_tree: bool,
    /// Of a tree.
    pub(crate) facts: Option<Attributes>,
    /// What it will be called at the destination. For what goes into a directory as it is, nothing.
    pub(crate) there: OsString,
    /// Whether it is a tree that is not there yet.
    pub(crate) is_new: bool,
}

/// All of it, looked at.
#[derive(Default)]
pub(crate) struct Roots {
    pub(crate) roots: Vec<Root>,
    /// The directory that they go into.
    pub(crate) dir: Option<Arc<dyn Dir>>,
    /// The name that hidden names are made of.
    pub(crate) stem: OsString,
    /// Whether an earlier run gave the tree its name, and was interrupted before it had removed its journal.
    was_named: bool,
}

impl Roots {
    /// A hash of what must be the same for a later run to resume this one. Whether the files are the same is checked for
    /// each of them.
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
}

impl Root {
    pub(crate) fn of(given: Given, there: OsString, is_new: bool) -> Root {
        let Given { real, facts, .. } = given;
        let is_tree = facts.is_some();
        let (source, name) = match is_tree {
            true => (real, OsString::new()),
            false => (directory_of(&real).to_path_buf(), real.file_name().unwrap_or_default().to_os_string()),
        };
        Root { source, name, is_tree, facts, there, is_new }
    }

    /// The bare name that a tree has at the destination until it is whole.
    pub(crate) fn name_for_now(&self) -> OsString {
        match (self.is_new, self.there.is_empty()) {
            (true, _) => hidden_names::partial(&self.there),
            // What goes into a directory as it is goes there by a name that every directory has for itself.
            (false, true) => OsString::from("."),
            (false, false) => self.there.clone(),
        }
    }
}

/// A source that is there, as its own end sees it.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    /// As it was typed, for messages.
    path: PathBuf,
    /// Without links.
    real: PathBuf,
    /// Its own name.
    name: OsString,
    /// Of a tree.
    facts: Option<Attributes>,
    /// Whether what is in it was meant, and not it.
    contents: bool,
}

impl Given {
    /// Whether another process may call it so: what goes into a directory as it is has no name there.
    pub(crate) fn may_be_called(&self, name: &OsStr) -> bool {
        let bytes = name.as_bytes();
        (is_bare(bytes) && bytes.len() <= NAME_BYTES_MAX) || (bytes.is_empty() && self.contents)
    }

    /// What another process has to know of it.
    pub(crate) fn offered(&self) -> Offered {
        Offered {
            path: self.real.clone(),
            name: if self.name.is_empty() { "root".into() } else { self.name.clone() },
            facts: self.facts,
            contents: self.contents,
        }
    }
}

/// Looks at the sources' end.
pub(crate) fn givens(tree: &dyn Tree, transfer: &Transfer) -> Result<Vec<Given>> {
    transfer.sources.iter().filter_map(path_of).map(|path| given(tree, path)).collect()
}

/// What was opened, if it is a directory.
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
    let real = tree.canonical(path)?;
    let facts = if_directory(tree.open_dir(&real))?.map(|dir| dir.attributes()).transpose()?;
    let name = path.file_name().or(real.file_name()).unwrap_or_default().to_os_string();
    let contents = facts.is_some() && means_contents(path);
    Ok(Given { path: path.to_path_buf(), real, name, facts, contents })
}

/// Looks at both ends.
pub(crate) fn look(transfer: &Transfer, source: &Arc<dyn Tree>, dest: &Arc<dyn Tree>) -> Result<Roots> {
    let first = transfer.sources.iter().find_map(path_of);
    let first_is_tree =
        first.is_some_and(|path| if_directory(source.open_dir(path)).is_ok_and(|dir| dir.is_some()));
    let destination = match &transfer.dest {
        To::Path(path) => Some(destination(&**dest, path, first_is_tree, transfer.sources.len())?),
        _ => None,
    };
    let givens = givens(&**source, transfer)?;
    let shared = Arc::ptr_eq(source, dest).then_some(&**source);
    match named_before(&**dest, destination.as_ref(), &givens, (transfer.resume, transfer.hashing))? {
        Some(roots) => Ok(roots),
        None => settled(&transfer.dest, destination, givens, shared),
    }
}

/// What the same transfer was before DEST was there, if an earlier run of it was interrupted after it had given the tree
/// its name: the journal is still there, and lists the directory that is DEST now. Otherwise the source would go into DEST.
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
    let mut roots = Roots { roots: vec![root], dir: Some(Arc::clone(&dir)), stem, was_named: true };
    let identity = roots.identity(hashing)?;
    let told = told_by(&*dir, &hidden_names::journal(name), Some(identity));
    let made = MadeTree::of(&hidden_names::partial(name), &**there)?;
    if told.identity != Some(identity) || !made.is_in(&told.trees) {
        return Ok(None);
    }
    roots.roots[0].is_new = false;
    Ok(Some(roots))
}

/// Refuses what another process offers if it is not what it was asked for: in a directory that is there it would choose the
/// names. What is no file has no name, and is alone.
pub(crate) fn check_asked(asked: &[PathBuf], offered: &[Offered], peer: &str) -> Result<()> {
    let (wanted, has) = match asked.iter().zip(offered).find(|(path, root)| !is_asked(path, root)) {
        Some((path, root)) => {
            let all = if root.contents { "what is in " } else { "" };
            (path.display().to_string(), format!("{all}'{}'", root.name.display()))
        }
        None if asked.len() == offered.len() || (offered.is_empty() && asked.len() == 1) => return Ok(()),
        None => (format!("{} paths", asked.len()), format!("{}", offered.len())),
    };
    refused(format!(
        "{peer} was asked for {wanted} and offers {has}, so nothing was touched; name SOURCE by its own name, and trust \
         {peer} no more if you did"
    ))
}

fn is_asked(path: &Path, root: &Offered) -> bool {
    match means_contents(path) {
        true => root.contents && root.facts.is_some(),
        false => !root.contents && path.file_name() == Some(&root.name),
    }
}

/// Looks at the destination's end of what another process offers. Its sources are called by its name.
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

/// `shared` is the file system if both ends are on one.
fn settled(
    to: &To,
    dest: Option<Destination>,
    givens: Vec<Given>,
    shared: Option<&dyn Tree>,
) -> Result<Roots> {
    if let (true, Some(Destination { name: None, path, .. })) = (givens.is_empty(), &dest) {
        return refused(format!(
            "{} is a directory, and a stream has no name; name a file in it",
            path.display()
        ));
    }
    let mut roots = Vec::with_capacity(givens.len());
    for given in givens {
        if matches!(to, To::Stream(_)) && given.facts.is_some() {
            let path = given.path.display();
            return refused(format!("{path} is a directory; a stream has room for a file only"));
        }
        roots.push(root(given, dest.as_ref(), shared)?);
    }
    let many = roots.iter().enumerate().find(|(i, root)| roots[..*i].iter().any(|r| r.there == root.there));
    if let Some((_, root)) = many.filter(|(_, root)| !root.there.is_empty()) {
        let name = root.there.display();
        return refused(format!("two sources are called '{name}'; send them to different directories"));
    }
    let stem = match (&dest, roots.first()) {
        (Some(Destination { name: Some(name), .. }), _) => name.clone(),
        (_, Some(root)) if !root.there.is_empty() => root.there.clone(),
        _ => OsString::from("pump"),
    };
    Ok(Roots { roots, dir: dest.map(|dest| dest.dir), stem, was_named: false })
}

fn path_of(from: &From) -> Option<&PathBuf> {
    match from {
        From::Path(path) => Some(path),
        _ => None,
    }
}

fn refused<T>(why: String) -> Result<T> {
    Err(Error::Refused(why))
}

/// A directory at the destination.
struct Destination {
    dir: Arc<dyn Dir>,
    /// The directory's own path without links.
    path: PathBuf,
    /// What the one source will be called there, unless it keeps its name.
    name: Option<OsString>,
    /// What bears that name now.
    there: Option<Attributes>,
}

fn destination(tree: &dyn Tree, path: &Path, is_tree: bool, count: usize) -> Result<Destination> {
    let shown = path.display();
    // A link at the end leads on, as far as it leads to anything.
    let real = tree.unplanted(path)?;
    if let Some(dir) = if_directory(tree.open_dir_itself(&real))? {
        return Ok(Destination { dir, path: real, name: None, there: None });
    }
    if count > 1 {
        return refused(format!(
            "{count} sources need a directory to go to, and {shown} is none; make it first"
        ));
    }
    if ends_in_slash(path) && !is_tree {
        return refused(format!("there is no directory {shown}; make it first"));
    }
    let Some(name) = real.file_name().map(OsStr::to_os_string) else {
        return refused(format!("'{shown}' is no name for a file or a directory"));
    };
    let directory = directory_of(&real);
    let dir = match tree.open_dir(directory) {
        Err(e) if e.source.kind() == ErrorKind::NotFound => {
            let directory = directory.display();
            return refused(format!(
                "cannot write {shown}: there is no directory {directory}; make it first"
            ));
        }
        opened => opened?,
    };
    let there = dir.find(&name)?;
    if is_tree && there.is_some() {
        return Err(Error::no_directory_there(path));
    }
    let path = tree.canonical(directory).unwrap_or_else(|_| directory.to_path_buf());
    Ok(Destination { dir, path, name: Some(name), there })
}

fn ends_in_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

/// Whether what is in the directory was meant, and not the directory.
fn means_contents(path: &Path) -> bool {
    let typed = path.as_os_str().as_bytes();
    ends_in_slash(path) || typed.ends_with(b"/.") || typed == b"."
}

fn root(given: Given, dest: Option<&Destination>, shared: Option<&dyn Tree>) -> Result<Root> {
    let is_tree = given.facts.is_some();
    let there = match dest {
        Some(Destination { name: Some(name), .. }) => name.clone(),
        Some(_) if given.contents => OsString::new(),
        _ => given.name.clone(),
    };
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

/// A source must not be its destination, nor hold it.
fn check_apart(
    given: &Given,
    shared: Option<&dyn Tree>,
    there: &OsStr,
    dest: &Destination,
    target: Option<Attributes>,
) -> Result<()> {
    let (is_tree, real) = (given.facts.is_some(), &given.real);
    let shown = given.path.display();
    let goal = dest.path.join(there);
    let goal_shown = goal.display();
    if is_tree && shared.is_some_and(|tree| tree.contains(real, &goal)) {
        return refused(format!("{goal_shown} lies in {shown} itself; choose a DEST outside of it"));
    }
    let Some(target) = target else { return Ok(()) };
    match (is_tree, target.kind) {
        (false, EntryKind::Directory) => Err(Error::directory_there(&goal)),
        (true, EntryKind::File | EntryKind::Link | EntryKind::Special) => {
            Err(Error::no_directory_there(&goal))
        }
        _ => {
            let Some(tree) = shared else { return Ok(()) };
            let name = real.file_name().unwrap_or(OsStr::new("."));
            let source = tree.open_dir(directory_of(real))?.attributes_of(name)?;
            if (source.device, source.inode) == (target.device, target.inode) {
                return refused(format!("{shown} and {goal_shown} are the same"));
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
            assert!(!is_taken(&[path], &[&file, &other]) && !is_taken(&[path, "b"], &[&file]));
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
