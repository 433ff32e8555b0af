//! The options of mount(8), as a volume takes them.
//!
//! Invariant: an option is refused if it is unknown. Those for other programs, such as mount(8) itself and systemd, have
//! no effect here.

use std::ffi::OsStr;

use thalweg::mount::KernelFlags;
use thalweg::volume::Hint;

use thalweg_verbs::nearest;
use thalweg_verbs::values;

/// The options of a volume.
const OWN: [&str; 2] = ["cache", "hint"];
/// Options for other programs, those that a volume always has, and those that have no effect on any file system now.
const OTHERS: [&str; 22] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "_netdev",
    "nofail",
    "comment",
    "iversion",
    "noiversion",
    "mand",
    "nomand",
    "silent",
    "loud",
    "allow_other",
    "default_permissions",
];
/// How the names of options for other programs may begin.
const FOREIGN: [&str; 2] = ["x-", "X-"];

/// Options, and what they say.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct MountOptions {
    /// As they were typed.
    pub(crate) typed: Vec<String>,
    pub(crate) flags: KernelFlags,
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) hint: Option<Hint>,
}

impl MountOptions {
    /// Adds a list of options, separated by commas. Of two that contradict each other the last one counts.
    pub(crate) fn add(&mut self, list: &OsStr) -> Result<(), String> {
        values::names(list)?.iter().try_for_each(|option| self.add_one(option))
    }

    fn add_one(&mut self, option: &str) -> Result<(), String> {
        match option.split_once('=') {
            Some(("cache", size)) => self.cache_bytes = Some(values::bytes(OsStr::new(size))?),
            Some(("hint", hint)) => self.hint = Some(values::parsed(OsStr::new(hint))?),
            None if self.flags.set(option) => {}
            _ if is_for_others(option) => {}
            _ => return Err(unknown(option)),
        }
        self.typed.push(option.into());
        Ok(())
    }
}

/// Whether a volume takes this option, whatever its value.
pub(crate) fn is_known(option: &str) -> bool {
    OWN.contains(&name_of(option)) || KernelFlags::default().set(option) || is_for_others(option)
}

fn is_for_others(option: &str) -> bool {
    OTHERS.contains(&name_of(option)) || FOREIGN.iter().any(|start| option.starts_with(start))
}

fn name_of(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

fn unknown(option: &str) -> String {
    if option == "remount" {
        return "a volume cannot be remounted: unmount it, and mount it with the new options".into();
    }
    // What is often typed for it is not near in letters.
    let near = match name_of(option) {
        "readonly" | "rdonly" | "read-only" | "read_only" => Some("ro"),
        name => nearest(name, OWN.iter().chain(&OTHERS).copied().chain(KernelFlags::names())),
    };
    match near {
        Some(near) => format!("unknown option '{option}'; did you mean {near}?"),
        None => format!(
            "unknown option '{option}'; there are cache=SIZE, hint=HINT and the generic ones of mount(8)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_an_effect_or_belong_to_others_or_are_refused() {
        let read = |list: &str| {
            let mut options = MountOptions::default();
            options.add(OsStr::new(list)).map(|()| options)
        };
        let found =
            read("rw,noatime,cache=1GiB,hint=once,nofail,_netdev,x-systemd.automount,user=me,ro").unwrap();
        let mut flags = KernelFlags::default();
        assert!(flags.set("noatime") && flags.set("ro") && !flags.set("cache"));
        assert_eq!((found.flags, found.cache_bytes, found.hint), (flags, Some(1 << 30), Some(Hint::Once)));
        for (list, why) in [
            ("cahce=1GiB", "unknown option 'cahce=1GiB'; did you mean cache?"),
            ("ro,rdonly", "unknown option 'rdonly'; did you mean ro?"),
            ("noatme", "unknown option 'noatme'; did you mean noatime?"),
            (
                "quota=3",
                "unknown option 'quota=3'; there are cache=SIZE, hint=HINT and the generic ones of mount(8)",
            ),
        ] {
            assert_eq!(read(list).unwrap_err(), why);
        }
        assert!(read("remount,ro").unwrap_err().contains("cannot be remounted"));
        assert!(read("cache=much").is_err() && is_known("cache=much") && !is_known("cahce"));
    }
}
