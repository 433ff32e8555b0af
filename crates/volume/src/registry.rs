//! The volumes of a user: a file with the place of each.
//!
//! Invariant: the file is replaced whole, by one process at a time.
//! Non-goals: the contents of a volume.

use std::path::{Path, PathBuf};

use thalweg_api::{VolumeEntry, VolumeList, from_json, to_json};
use thalweg_base::names;
use thalweg_io::small;

use crate::{Error, Result};

/// The longest name of a volume: it becomes part of the names of directories, which have limits of their own.
const NAME_BYTES_MAX: usize = 64;

/// The file that names a user's volumes.
#[derive(Debug, Clone)]
pub struct Registry(PathBuf);

impl Registry {
    /// The registry in this file, which need not exist yet.
    pub fn at(path: PathBuf) -> Registry {
        Registry(path)
    }

    /// The registry of this user: `thalweg/volumes.json` in the configuration directory of the XDG Base Directory
    /// Specification.
    pub fn of_user() -> Result<Registry> {
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let settings = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
        let no_home =
            || Error::Refused("there is no directory for settings; set HOME or XDG_CONFIG_HOME".into());
        Ok(Registry(settings.ok_or_else(no_home)?.join("thalweg").join("volumes.json")))
    }

    /// All volumes, by name.
    pub fn list(&self) -> Result<VolumeList> {
        match small::read(&self.0) {
            Ok(bytes) => from_json(&String::from_utf8_lossy(&bytes))
                .map_err(|why| {
                    Error::Refused(format!(
                        "{} cannot be understood: {why}; restore it, or write it again as docs/formats/volume.md shows",
                        self.0.display()
                    ))
                }),
            Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => Ok(VolumeList::default()),
            Err(e) => Err(e.into()),
        }
    }

    /// The entry of the volume with this name.
    pub fn find(&self, name: &str) -> Result<VolumeEntry> {
        let found = self.list()?.volumes.into_iter().find(|volume| volume.name == name);
        found.ok_or_else(|| Error::NoVolume(name.into()))
    }

    /// Adds a volume, after `make` has made it; its name must be free. After an error the caller removes what was made.
    pub(crate) fn add(&self, entry: VolumeEntry, make: impl FnOnce() -> Result<()>) -> Result<()> {
        check_name(&entry.name)?;
        self.change(|list| {
            if list.volumes.iter().any(|volume| volume.name == entry.name) {
                return Err(Error::Refused(format!("there is a volume '{}' already", entry.name)));
            }
            make()?;
            list.volumes.push(entry);
            list.volumes.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(())
        })
    }

    /// Replaces the entry of a volume.
    pub(crate) fn update(&self, entry: &VolumeEntry) -> Result<()> {
        self.change(|list| {
            let known = list.volumes.iter_mut().filter(|volume| volume.name == entry.name);
            known.for_each(|known| known.clone_from(entry));
            Ok(())
        })
    }

    /// Removes a volume from the list.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.change(|list| {
            list.volumes.retain(|volume| volume.name != name);
            Ok(())
        })
    }

    fn change(&self, change: impl FnOnce(&mut VolumeList) -> Result<()>) -> Result<()> {
        let directory = self.0.parent().unwrap_or(Path::new("."));
        small::make_directory(directory)?;
        let _alone = small::lock(&self.0.with_extension("lock"))?;
        let mut list = self.list()?;
        change(&mut list)?;
        small::write(&self.0, (to_json(&list) + "\n").as_bytes())?;
        Ok(small::sync_directory(directory)?)
    }
}

/// Checks the name of a volume, which becomes part of directory names and of `volume:NAME/path`.
fn check_name(name: &str) -> Result<()> {
    if names::is_plain(name, NAME_BYTES_MAX) {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "'{name}' is no name for a volume; write at most {NAME_BYTES_MAX} letters, digits, dots, dashes and underscores, a letter or digit first"
    )))
}

/// The directory name of a store or of the manager of a volume, such as `films.thalweg-store`.
pub(crate) fn part(name: &str, what: &str) -> Result<String> {
    check_name(name)?;
    Ok(format!("{name}.thalweg-{what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_lead_elsewhere_are_refused() {
        for name in ["films", "a", "0.9_x-y", &"x".repeat(64)] {
            check_name(name).unwrap();
        }
        for name in ["", ".", "..", "a/b", "-x", "a b", "a:b", "ü", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
