//! What the words and flags of `volume` and `mount` mean together.

use std::ffi::OsString;
use std::path::PathBuf;

use thalweg::Endpoint;
use thalweg::volume::Policy;

use super::nothing_left;
use crate::commands::Command;
use crate::parse::Usage;
use crate::typed::TypedArgs;

/// What to do with a volume.
#[derive(Debug)]
pub(crate) enum VolumeAsk {
    /// Makes one of this name, with stores in these directories.
    Create {
        name: String,
        stores: Vec<PathBuf>,
        manager: Option<PathBuf>,
        layout: LayoutAsk,
    },
    List,
    Status(String),
    Check(String),
    Repair(String),
    AddStore(String, PathBuf),
    /// Puts a store in the second directory in the place of the one in the first.
    Replace(String, PathBuf, PathBuf),
    Salvage(String, PathBuf),
    Destroy(String),
    /// The names in a directory of a volume.
    Names(String, PathBuf),
    /// All that is known of what is at these paths of a volume.
    Stat(Vec<(String, PathBuf)>),
    Layout(String, PathBuf, LayoutAsk),
}

/// What was said of the layout of files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LayoutAsk {
    stripe_bytes: Option<u64>,
    width: Option<u32>,
    copies: Option<u32>,
    record_bytes: Option<u32>,
}

impl LayoutAsk {
    /// Whether anything was said.
    pub(crate) fn is_some(&self) -> bool {
        *self != LayoutAsk::default()
    }

    /// What was said, and the rest as it is.
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
    let TypedArgs { stripe_bytes, width, copies, record_bytes, .. } = args;
    let layout = LayoutAsk { stripe_bytes, width, copies, record_bytes };
    let lays_out = matches!(what, "create" | "layout");
    if !lays_out && layout.is_some() {
        return Err(Usage(format!(
            "--stripe, --width, --copies and --record are for volume create and volume layout, not for volume {what}"
        )));
    }
    if what != "create" && !(args.stores.is_empty() && args.manager.is_none()) {
        return Err(Usage(format!("--stores and --manager are for volume create, not for volume {what}")));
    }
    match what {
        "create" => Ok(VolumeAsk::Create {
            name: name(what, &args.words)?,
            stores: args.stores,
            manager: args.manager,
            layout,
        }),
        "list" => nothing_left(&args.words, Command::Volume).map(|()| VolumeAsk::List),
        "status" => name(what, &args.words).map(VolumeAsk::Status),
        "check" => name(what, &args.words).map(VolumeAsk::Check),
        "repair" => name(what, &args.words).map(VolumeAsk::Repair),
        "add-store" => match &args.words[..] {
            [volume, dir] => Ok(VolumeAsk::AddStore(text(volume)?, dir.into())),
            _ => Err(Usage("volume add-store takes two words, NAME and the DIR of the new store".into())),
        },
        "replace" => match &args.words[..] {
            [volume, old, new] => Ok(VolumeAsk::Replace(text(volume)?, old.into(), new.into())),
            _ => Err(Usage(
                "volume replace takes three words, NAME, the DIR of a store, and the DIR of the new one"
                    .into(),
            )),
        },
        "destroy" => name(what, &args.words).map(VolumeAsk::Destroy),
        "salvage" => match &args.words[..] {
            [volume, dir] => Ok(VolumeAsk::Salvage(text(volume)?, dir.into())),
            _ => Err(Usage(
                "volume salvage takes two words, NAME and DIR, a directory that is not there yet".into(),
            )),
        },
        "ls" | "layout" => {
            let [word] = &args.words[..] else {
                return Err(Usage(format!("volume {what} takes one word, volume:NAME/PATH")));
            };
            let (volume, path) = inside(word)?;
            Ok(if what == "ls" {
                VolumeAsk::Names(volume, path)
            } else {
                VolumeAsk::Layout(volume, path, layout)
            })
        }
        _ if args.words.is_empty() => {
            Err(Usage("volume stat takes at least one word, volume:NAME/PATH".into()))
        }
        _ => args.words.iter().map(inside).collect::<Result<_, Usage>>().map(VolumeAsk::Stat),
    }
}

/// A volume to be mounted.
#[derive(Debug)]
pub(crate) struct MountAsk {
    pub(crate) volume: String,
    pub(crate) at: PathBuf,
    pub(crate) background: bool,
    pub(crate) read_only: bool,
}

/// `mount NAME DIR`.
pub(super) fn mounted(args: &TypedArgs) -> Result<MountAsk, Usage> {
    let [volume, at] = &args.words[..] else {
        return Err(Usage("mount takes two words, the NAME of a volume and DIR, an empty directory".into()));
    };
    let TypedArgs { background, read_only, .. } = *args;
    Ok(MountAsk { volume: text(volume)?, at: at.into(), background, read_only })
}

fn name(what: &str, words: &[OsString]) -> Result<String, Usage> {
    match words {
        [word] => text(word),
        _ => Err(Usage(format!("volume {what} takes one word, the NAME of a volume"))),
    }
}

fn text(word: &OsString) -> Result<String, Usage> {
    let text = word.to_str().map(String::from);
    text.ok_or_else(|| Usage(format!("'{}' is not readable text", word.to_string_lossy())))
}

/// `volume:NAME/PATH`.
fn inside(word: &OsString) -> Result<(String, PathBuf), Usage> {
    match Endpoint::from(&**word) {
        Endpoint::Volume(path) => Ok((path.volume(), path.inside().to_path_buf())),
        _ => Err(Usage(format!("'{}' is not in a volume; write volume:NAME/PATH", word.to_string_lossy()))),
    }
}
