//! What the words and flags of `mount` mean together.

use std::path::PathBuf;

use super::volume::text;
use crate::parse::Usage;
use crate::typed::TypedArgs;

/// A volume to be mounted.
#[derive(Debug)]
pub(crate) struct MountAsk {
    pub(crate) volume: String,
    pub(crate) at: PathBuf,
    pub(crate) background: bool,
    pub(crate) read_only: bool,
}

/// `mount NAME DIR`.
pub(crate) fn asked(args: &TypedArgs) -> Result<MountAsk, Usage> {
    let [volume, at] = &args.words[..] else {
        return Err(Usage("mount takes two words, the NAME of a volume and DIR, an empty directory".into()));
    };
    let TypedArgs { background, read_only, .. } = *args;
    Ok(MountAsk { volume: text(volume)?, at: at.into(), background, read_only })
}
