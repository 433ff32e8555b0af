//! The command `volume`: runs it, shows the result, and determines the exit status.

use std::path::{Path, PathBuf};

use thalweg::Volume;
use thalweg::volume::{
    self, HINT_ATTRIBUTE, Hint, Kind, OfCluster, OpenVolume, Policy, REPAIR_RATE_ATTRIBUTE, Registry,
};
use thalweg_api::{VolumeFile, VolumeStatus, to_json};

use crate::failure::{DONE, Failure, WRONG};
use crate::interpret::Show;
use crate::interpret::volume::{LayoutAsk, VolumeAsk};
use crate::print::{complain, listed, on_one_line, report};
use crate::{show, signals};

/// The permissions of a directory that `layout` creates.
const DIRECTORY_MODE: u32 = 0o755;

/// Runs the command.
pub(crate) fn volume(asked: &VolumeAsk, how: Show) -> Result<u8, Failure> {
    let registry = Registry::of_user()?;
    match asked {
        VolumeAsk::Create { name, stores, manager, layout } => {
            let layout = layout.over(Default::default());
            create(&registry, name, stores, manager.as_deref(), &layout)?;
            entry_of(&registry, name, how)
        }
        VolumeAsk::CreateOnNodes { name, stores, manager, layout, cluster: (identity, cluster), clients } => {
            let cluster = OfCluster { identity, name: cluster.as_deref(), clients };
            let places = (&stores[..], manager.as_ref());
            volume::create_on_nodes(&registry, cluster, name, places, &layout.over(Default::default()))?;
            entry_of(&registry, name, how)
        }
        VolumeAsk::List => {
            let list = registry.list()?;
            report(how, || to_json(&list), || show::volume_list(&list.volumes))
        }
        VolumeAsk::Status(name) => shown(&volume::status(&volume::open(&registry, name)?)?, how),
        VolumeAsk::Check(name) => checked(&volume::open(&registry, name)?, how),
        VolumeAsk::Repair(name, rate) => repair(&registry, name, *rate, how),
        VolumeAsk::AddStore(name, dir) => {
            entry_after(volume::add_store(&registry, name, dir), &registry, name, how)
        }
        VolumeAsk::Replace(name, old, new) => {
            replace(&registry, name, (old, new))?;
            repaired(&registry, name, how)
        }
        VolumeAsk::Salvage(name, into) => {
            let salvaged = volume::salvage(&registry, name, into)?;
            report(how, || to_json(&salvaged), || show::volume_salvage(&salvaged))?;
            Ok(if salvaged.problems.is_empty() { DONE } else { WRONG })
        }
        VolumeAsk::Adopt(name) => entry_after(volume::adopt(&registry, name), &registry, name, how),
        VolumeAsk::Destroy(name, force) => destroyed(&registry, name, *force, how),
        VolumeAsk::Names(name, path) => {
            let files = volume::files(&volume::open(&registry, name)?, path)?;
            report(how, || to_json(&files), || show::volume_files(&as_listed(&files)))
        }
        VolumeAsk::Stat(places) => stat(&registry, places, how),
        VolumeAsk::MakeDirectories(places) => {
            let make =
                |(name, path): &(String, PathBuf)| Volume::open_of(&registry, name)?.make_directory(path);
            places.iter().try_for_each(make)?;
            Ok(DONE)
        }
        VolumeAsk::Remove(places, recursive) => {
            places.iter().try_for_each(|(name, path)| remove(&registry, name, path, *recursive))?;
            Ok(DONE)
        }
        VolumeAsk::Layout(name, path, layout) => {
            let open = volume::open(&registry, name)?;
            set_layout(&open, path, layout)?;
            let found = volume::file(&open, path)?;
            report(
                how,
                || to_json(&found.layout),
                || as_listed(std::slice::from_ref(&found)).iter().map(show::volume_layout).collect(),
            )
        }
        VolumeAsk::Hint(name, path, hint) => {
            let hint = hinted(&volume::open(&registry, name)?, path, *hint)?;
            let name = || listed(&Path::new("/").join(path).to_string_lossy());
            report(how, || to_json(&hint), || format!("{}: {hint}\n", name()))
        }
    }
}

/// Creates a volume on this machine. Warns if its names have no copies.
fn create(
    registry: &Registry,
    name: &str,
    stores: &[PathBuf],
    manager: Option<&Path>,
    layout: &Policy,
) -> volume::Result<()> {
    volume::create(registry, name, stores, manager, layout)?;
    if let (2.., None, [first, _, ..]) = (layout.copies, manager, stores) {
        complain(&format!(
            "the names and permissions of files are only in {}, without a copy; --manager DIR puts them on another disk",
            first.display()
        ));
    }
    Ok(())
}

/// Replaces a store, unless a signal ends the process before, and tells what is lost.
fn replace(registry: &Registry, name: &str, places: (&Path, &Path)) -> Result<(), Failure> {
    let replace = |is_stopped: &dyn Fn() -> bool| volume::replace_unless(registry, name, places, is_stopped);
    let lost = signals::ending_after(replace).map_err(Failure::Signals)??;
    lost.iter().for_each(|lost| complain(lost));
    Ok(())
}

/// Shows the status of a volume, and tells by the exit status whether all of its files can be read.
fn shown(status: &VolumeStatus, how: Show) -> Result<u8, Failure> {
    report(how, || to_json(status), || show::volume_status(status))?;
    Ok(if status.unreadable_files == 0 { DONE } else { WRONG })
}

/// Removes a volume, and reports what was removed and what is left.
fn destroyed(registry: &Registry, name: &str, force: bool, how: Show) -> Result<u8, Failure> {
    let destroyed = volume::destroy(registry, name, force)?;
    destroyed.left.iter().for_each(|left| complain(left));
    report(how, || to_json(&destroyed), || show::volume_destroyed(&destroyed))?;
    Ok(if destroyed.left.is_empty() { DONE } else { WRONG })
}

/// Removes a file or directory of a volume.
fn remove(registry: &Registry, name: &str, path: &Path, recursive: bool) -> volume::Result<()> {
    let refused = |why| Err(volume::Error::Refused(why));
    let is_not_empty = |why: &volume::Error| {
        std::io::Error::from_raw_os_error(why.errno()).kind() == std::io::ErrorKind::DirectoryNotEmpty
    };
    if path.file_name().is_none() {
        return refused(format!(
            "{} of volume {name} is no name in it; thalweg volume destroy {name} removes the whole volume",
            path.display()
        ));
    }
    let volume = Volume::open_of(registry, name)?;
    if recursive {
        return volume.remove_all(path);
    }
    match volume.remove(path) {
        Err(why) if is_not_empty(&why) => {
            refused(format!("{} is a directory that is not empty; add --recursive", path.display()))
        }
        removed => removed,
    }
}

/// Shows the metadata of paths of volumes.
fn stat(registry: &Registry, places: &[(String, PathBuf)], how: Show) -> Result<u8, Failure> {
    let stat = |(name, path): &(String, PathBuf)| volume::file(&volume::open(registry, name)?, path);
    let files = places.iter().map(stat).collect::<volume::Result<Vec<_>>>()?;
    report(how, || to_json(&files), || as_listed(&files).iter().map(show::volume_file).collect())
}

/// Files with their names as `ls` prints them.
fn as_listed(files: &[VolumeFile]) -> Vec<VolumeFile> {
    let listed = |file: &VolumeFile| VolumeFile {
        name: listed(&file.name),
        target: file.target.as_deref().map(listed),
        ..file.clone()
    };
    files.iter().map(listed).collect()
}

/// Shows the directories of a volume after something was done to it.
fn entry_after(done: volume::Result<()>, registry: &Registry, name: &str, how: Show) -> Result<u8, Failure> {
    done?;
    entry_of(registry, name, how)
}

/// Shows the directories of a volume.
fn entry_of(registry: &Registry, name: &str, how: Show) -> Result<u8, Failure> {
    let found = registry.find(name)?;
    report(how, || to_json(&found), || show::volume_list(std::slice::from_ref(&found)))
}

/// Sets the hint of a file if one is given, and returns the current one.
fn hinted(open: &OpenVolume, path: &Path, hint: Option<Hint>) -> Result<String, Failure> {
    if let Some(hint) = hint {
        open.volume.set_attribute(path, HINT_ATTRIBUTE, Some(hint.to_string().as_bytes()))?;
    }
    let attributes = open.volume.attributes(path)?;
    let found = attributes.iter().find(|(name, _)| name == HINT_ATTRIBUTE);
    Ok(found.map_or("normal".into(), |(_, hint)| String::from_utf8_lossy(hint).into_owned()))
}

/// Reads everything, and reports what is wrong.
fn checked(open: &OpenVolume, how: Show) -> Result<u8, Failure> {
    let check = volume::check(open)?;
    report(how, || to_json(&check), || show::volume_check(&check))?;
    Ok(if check.problems.is_empty() { DONE } else { WRONG })
}

/// Repairs what can be repaired, and reports that and what is still wrong.
fn repaired(registry: &Registry, name: &str, how: Show) -> Result<u8, Failure> {
    let done = volume::repair(registry, name)?;
    if !how.json {
        report(how, String::new, || done.iter().map(|line| on_one_line(line) + "\n").collect())?;
    }
    checked(&volume::open(registry, name)?, how)
}

/// Repairs a volume; or sets how much it copies in a second when it repairs itself.
fn repair(registry: &Registry, name: &str, rate: Option<u64>, how: Show) -> Result<u8, Failure> {
    let Some(rate) = rate else { return repaired(registry, name, how) };
    let (open, rate) = (volume::open(registry, name)?, rate.to_string());
    open.volume.set_attribute(Path::new("/"), REPAIR_RATE_ATTRIBUTE, Some(rate.as_bytes()))?;
    Ok(DONE)
}

fn set_layout(open: &OpenVolume, path: &Path, layout: &LayoutAsk) -> volume::Result<()> {
    if !layout.is_some() {
        return Ok(());
    }
    let there = match open.volume.stat(path) {
        Err(e) if e.is_not_found() => {
            // Checked first, so that a refused layout creates no directory.
            layout.over(Default::default()).check(open.entry.stores.len() as u32)?;
            open.volume.make_directory(path, DIRECTORY_MODE)?
        }
        there => there?,
    };
    if there.kind != Kind::Directory {
        let path = path.display();
        let why = format!("{path} is not a directory; a file keeps the layout that it was made with");
        return Err(volume::Error::Refused(why));
    }
    open.set_policy(path, &layout.over(there.policy.unwrap_or_default()))
}
