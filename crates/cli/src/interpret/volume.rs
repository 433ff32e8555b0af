//! Interprets the arguments and flags of `volume` and `mount`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use thalweg::Endpoint;
use thalweg::volume::{CACHE_BYTES, Hint, Location, Policy};

use thalweg_verbs::{Command, Usage, text};

use crate::mount_options::MountOptions;
use crate::parse::nothing_left;
use crate::typed::TypedArgs;

/// An operation on a volume.
#[derive(Debug)]
pub(crate) enum VolumeAsk {
    /// Creates a volume with this name and stores in these directories.
    Create {
        name: String,
        stores: Vec<PathBuf>,
        manager: Option<PathBuf>,
        layout: LayoutAsk,
    },
    /// Creates a volume on the nodes of a cluster.
    CreateOnNodes {
        name: String,
        stores: Vec<Location>,
        manager: Option<Location>,
        layout: LayoutAsk,
        /// The directory of the identity, and the name that the cluster must have.
        cluster: (PathBuf, Option<String>),
        /// The clients that may use it; all if the list is empty.
        clients: Vec<String>,
    },
    List,
    Status(String),
    Check(String),
    /// Repairs a volume; with a rate, sets that at which it repairs itself.
    Repair(String, Option<u64>),
    AddStore(String, PathBuf),
    /// Replaces the store in the first directory with one in the second.
    Replace(String, PathBuf, PathBuf),
    Salvage(String, PathBuf),
    /// Goes on with the manager of a volume, whatever its stores know.
    Adopt(String),
    /// Removes a volume; with the flag, even if parts of it remain.
    Destroy(String, bool),
    /// Lists the names in a directory of a volume.
    Names(String, PathBuf),
    /// Shows the metadata of these paths of volumes.
    Stat(Vec<(String, PathBuf)>),
    /// Creates directories and their missing parents.
    MakeDirectories(Vec<(String, PathBuf)>),
    /// Removes files and directories; with the flag, also directories that are not empty.
    Remove(Vec<(String, PathBuf)>, bool),
    Layout(String, PathBuf, LayoutAsk),
    /// Sets how a file will be used; without a hint, shows the current one.
    Hint(String, PathBuf, Option<Hint>),
}

/// The layout flags.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LayoutAsk {
    stripe_bytes: Option<u64>,
    width: Option<u32>,
    copies: Option<u32>,
    record_bytes: Option<u32>,
}

impl LayoutAsk {
    /// Whether any of them was given.
    pub(crate) fn is_some(&self) -> bool {
        *self != LayoutAsk::default()
    }

    /// The policy, with the given flags in place of its values.
    pub(crate) fn over(&self, policy: Policy) -> Policy {
        Policy {
            stripe_bytes: self.stripe_bytes.unwrap_or(policy.stripe_bytes),
            width: self.width.unwrap_or(policy.width),
            copies: self.copies.unwrap_or(policy.copies),
            record_bytes: self.record_bytes.unwrap_or(policy.record_bytes),
        }
    }
}

/// `volume WHAT`.
pub(crate) fn asked(what: &str, args: TypedArgs) -> Result<VolumeAsk, Usage> {
    let TypedArgs { stripe_bytes, width, copies, .. } = args;
    let record_bytes = args.ask.form.record;
    let layout = LayoutAsk { stripe_bytes, width, copies, record_bytes };
    check_flags(what, &args, layout)?;
    match what {
        "create" => created(args, layout),
        "list" => nothing_left(&args.ask.words, Command::Volume).map(|()| VolumeAsk::List),
        "status" => name(what, &args.ask.words).map(VolumeAsk::Status),
        "check" => name(what, &args.ask.words).map(VolumeAsk::Check),
        "repair" => name(what, &args.ask.words).map(|name| VolumeAsk::Repair(name, args.ask.pump.limit)),
        "add-store" => match &args.ask.words[..] {
            [volume, dir] => Ok(VolumeAsk::AddStore(text(volume)?, dir.into())),
            _ => Err(Usage("volume add-store takes two words, NAME and the DIR of the new store".into())),
        },
        "replace" => match &args.ask.words[..] {
            [volume, old, new] => Ok(VolumeAsk::Replace(text(volume)?, old.into(), new.into())),
            _ => Err(Usage(
                "volume replace takes three words, NAME, the DIR of a store, and the DIR of the new one"
                    .into(),
            )),
        },
        "destroy" => name(what, &args.ask.words).map(|name| VolumeAsk::Destroy(name, args.force)),
        "manager" => match &args.ask.words[..] {
            [adopt, volume] if adopt == "adopt" => text(volume).map(VolumeAsk::Adopt),
            _ => Err(Usage("volume manager takes two words, adopt and the NAME of a volume".into())),
        },
        "salvage" => match &args.ask.words[..] {
            [volume, dir] => Ok(VolumeAsk::Salvage(text(volume)?, dir.into())),
            _ => Err(Usage(
                "volume salvage takes two words, NAME and DIR, a directory that is not there yet".into(),
            )),
        },
        "ls" | "layout" => {
            let [word] = &args.ask.words[..] else {
                return Err(Usage(format!("volume {what} takes one word, volume:NAME/PATH")));
            };
            let (volume, path) = inside(word)?;
            Ok(if what == "ls" {
                VolumeAsk::Names(volume, path)
            } else {
                VolumeAsk::Layout(volume, path, layout)
            })
        }
        "hint" => hint(&args.ask.words),
        _ if args.ask.words.is_empty() => {
            Err(Usage(format!("volume {what} takes at least one word, volume:NAME/PATH")))
        }
        _ => {
            let places = args.ask.words.iter().map(inside).collect::<Result<_, Usage>>()?;
            Ok(match what {
                "mkdir" => VolumeAsk::MakeDirectories(places),
                "rm" => VolumeAsk::Remove(places, args.recursive),
                _ => VolumeAsk::Stat(places),
            })
        }
    }
}

/// Refuses flags of other `volume` subcommands.
fn check_flags(what: &str, args: &TypedArgs, layout: LayoutAsk) -> Result<(), Usage> {
    let lays_out = matches!(what, "create" | "layout");
    if !lays_out && layout.is_some() {
        return Err(Usage(format!(
            "--stripe, --width, --copies and --record are for volume create and volume layout, not for volume {what}"
        )));
    }
    if what != "create" && !(args.stores.is_empty() && args.manager.is_none() && args.clients.is_empty()) {
        return Err(Usage(format!(
            "--stores, --manager and --clients are for volume create, not for volume {what}"
        )));
    }
    if what != "create" && (args.ask.cluster.is_some() || args.ask.identity.is_some()) {
        return Err(Usage(format!(
            "--cluster and --identity are for volume create, not for volume {what}: a volume knows its cluster"
        )));
    }
    if (args.recursive && what != "rm") || (args.force && what != "destroy") {
        return Err(Usage(format!(
            "--recursive is for volume rm and --force for volume destroy, not for volume {what}"
        )));
    }
    if args.ask.pump.limit.is_some() && what != "repair" {
        return Err(Usage(format!("--limit is for volume repair, not for volume {what}")));
    }
    Ok(())
}

/// `volume hint volume:NAME/PATH [HINT]`.
fn hint(words: &[OsString]) -> Result<VolumeAsk, Usage> {
    let (word, hint) = match words {
        [word] => (word, None),
        [word, hint] => (word, Some(lasting_hint(hint)?)),
        _ => return Err(Usage("volume hint takes volume:NAME/PATH, and a hint to set one".into())),
    };
    inside(word).map(|(volume, path)| VolumeAsk::Hint(volume, path, hint))
}

/// `volume create NAME`: on this machine, or with stores on nodes, written as NODE:/DIR.
fn created(args: TypedArgs, layout: LayoutAsk) -> Result<VolumeAsk, Usage> {
    let name = name("create", &args.ask.words)?;
    let places = || args.stores.iter().chain(&args.manager);
    if !places().any(|place| Location::of(place).is_some()) {
        if args.ask.cluster.is_some() || args.ask.identity.is_some() {
            return Err(Usage("on a cluster each store is NODE:/DIR, with an absolute path".into()));
        }
        if !args.clients.is_empty() {
            return Err(Usage(
                "--clients is for volumes on nodes; one on this machine is its owner's".into(),
            ));
        }
        let TypedArgs { stores, manager, .. } = args;
        return Ok(VolumeAsk::Create { name, stores, manager, layout });
    }
    if let Some(here) = places().find(|place| Location::of(place).is_none()) {
        let here = here.display();
        return Err(Usage(format!("{here} is on no node; write NODE:/DIR for every store and the manager")));
    }
    let cluster = args.ask.cluster_meant()?;
    let stores = args.stores.iter().filter_map(|store| Location::of(store)).collect();
    let manager = args.manager.as_deref().and_then(Location::of);
    Ok(VolumeAsk::CreateOnNodes { name, stores, manager, layout, cluster, clients: args.clients })
}

/// A hint that is stored with the file and applies to all clients.
fn lasting_hint(word: &OsString) -> Result<Hint, Usage> {
    let text = text(word)?;
    let hint: Hint = text.parse().map_err(|_| {
        Usage(format!("'{text}' is no hint; the hints of a file are sequential, random, once and normal"))
    })?;
    match hint.lasts() {
        true => Ok(hint),
        false => Err(Usage(format!(
            "'{text}' is about the memory of one mount; there, setfattr -n user.thalweg.hint -v {text} FILE"
        ))),
    }
}

/// A volume to mount.
#[derive(Debug)]
pub(crate) struct MountAsk {
    pub(crate) volume: String,
    pub(crate) at: PathBuf,
    pub(crate) background: bool,
    pub(crate) options: MountOptions,
    /// The size of the cache; 0 for none.
    pub(crate) cache_bytes: u64,
    pub(crate) hint: Hint,
}

/// `mount NAME DIR`.
pub(super) fn mounted(args: &TypedArgs) -> Result<MountAsk, Usage> {
    let [volume, at] = &args.ask.words[..] else {
        return Err(Usage("mount takes two words, the NAME of a volume and DIR, an empty directory".into()));
    };
    let TypedArgs { background, read_only, cache_bytes, hint, .. } = *args;
    let mut options = args.mount_options.clone();
    if read_only {
        options.add(OsStr::new("ro")).expect("it is an option");
    }
    let cache_bytes = cache_bytes.or(options.cache_bytes).unwrap_or(CACHE_BYTES);
    let hint = hint.or(options.hint).unwrap_or_default();
    Ok(MountAsk { volume: whole(volume)?, at: at.into(), background, options, cache_bytes, hint })
}

/// The NAME of a volume, which may be written as its root: `volume:NAME` or `thalweg://NAME`.
fn whole(word: &OsString) -> Result<String, Usage> {
    let text = text(word)?;
    let Some(inside) = ["volume:", "thalweg://"].iter().find_map(|scheme| text.strip_prefix(scheme)) else {
        return Ok(text);
    };
    let name = inside.trim_end_matches('/');
    match name.contains('/') {
        true => Err(Usage(format!(
            "'{text}' is a path in a volume; mount takes the NAME of the volume, and mounts all of it"
        ))),
        false => Ok(name.into()),
    }
}

fn name(what: &str, words: &[OsString]) -> Result<String, Usage> {
    match words {
        [word] => text(word),
        _ => Err(Usage(format!("volume {what} takes one word, the NAME of a volume"))),
    }
}

/// `volume:NAME/PATH`.
fn inside(word: &OsString) -> Result<(String, PathBuf), Usage> {
    match Endpoint::from(&**word) {
        Endpoint::Volume(path) => Ok((path.volume(), path.inside().to_path_buf())),
        _ => Err(Usage(format!("'{}' is not in a volume; write volume:NAME/PATH", word.to_string_lossy()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_to_mount_may_be_written_as_its_root() {
        for word in ["films", "volume:films", "volume:films/", "thalweg://films", "thalweg://films/"] {
            assert_eq!(whole(&word.into()).unwrap(), "films", "{word}");
        }
        for word in ["volume:films/raw", "thalweg://films/raw"] {
            assert!(whole(&word.into()).unwrap_err().0.contains("mounts all of it"), "{word}");
        }
    }
}
