//! Volumes and their files.

use thalweg_api::{
    VolumeCheck, VolumeDestroyed, VolumeEntry, VolumeFile, VolumeLayout, VolumeRepair, VolumeSalvage,
    VolumeStatus, VolumeStore,
};
use thalweg_base::clock::date_of_ns;
use thalweg_base::units::Bytes;

use super::columns::{columns, counted, labelled};
use crate::print::on_one_line;

/// Each volume with its directories.
pub(crate) fn volume_list(volumes: &[VolumeEntry]) -> String {
    let mut text = String::new();
    for VolumeEntry { name, cluster, manager, stores, .. } in volumes {
        let on = cluster.as_ref().map_or(String::new(), |cluster| format!(" on cluster {}", cluster.name));
        text += &format!("{name}: {}{on}\n", counted(stores.len(), "store", "stores"));
        text += &format!("  manager {manager}\n");
        text.extend(stores.iter().map(|store| format!("  store   {store}\n")));
    }
    text
}

/// The parts of a volume that were removed, and whether that was all.
pub(crate) fn volume_destroyed(destroyed: &VolumeDestroyed) -> String {
    let VolumeDestroyed { name, manager, stores, left, forgotten } = destroyed;
    let left = counted(left.len(), "part", "parts");
    let how = match (destroyed.left.is_empty(), forgotten, manager.is_none() && stores.is_empty()) {
        (true, ..) => "removed with all its files".into(),
        (_, true, false) => format!("removed and forgotten, except for {left}"),
        (_, true, true) => "forgotten, but nothing was removed".into(),
        (_, false, true) => "nothing was removed".into(),
        (_, false, false) => format!("not forgotten, because {left} could not be removed; these were"),
    };
    let mut text = format!("{name}: {how}\n");
    text.extend(manager.iter().map(|manager| format!("  manager {manager}\n")));
    text.extend(stores.iter().map(|store| format!("  store   {store}\n")));
    text
}

/// The status of a volume, with a row for each store.
pub(crate) fn volume_status(status: &VolumeStatus) -> String {
    let VolumeStatus { name, manager, clients, stores, layout, files, directories, bytes, .. } = status;
    let mut text = format!(
        "{name}: {}, {}, {}\n",
        counted(*files as usize, "file", "files"),
        counted(*directories as usize, "directory", "directories"),
        Bytes(*bytes)
    );
    text += &labelled("layout", &in_words(layout));
    text += &labelled("manager", manager);
    if !clients.is_empty() {
        text += &labelled("clients", &clients.join(", "));
    }
    let mut rows = vec![["store", "strips", "free", "state"].map(String::from).to_vec()];
    rows.extend(stores.iter().map(|store| {
        let VolumeStore { directory, lost, strips, available_bytes, behind_since_ns, .. } = store;
        let (strips, free) = (strips.to_string(), Bytes(*available_bytes).to_string());
        match (lost, behind_since_ns) {
            (Some(_), _) => vec![directory.clone(), "-".into(), "-".into(), "LOST".into()],
            (None, Some(_)) => vec![directory.clone(), strips, free, "behind".into()],
            (None, None) => vec![directory.clone(), strips, free, "ready".into()],
        }
    }));
    text += &columns(&rows);
    let lost = stores.iter().filter_map(|store| Some((&store.directory, store.lost.as_ref()?)));
    let before = text.len();
    text.extend(lost.map(|(directory, why)| format!("{directory} is lost: {why}\n")));
    if text.len() > before {
        text += &format!(
            "mount its disk or start its node; if it is gone for good, thalweg volume replace {name} DIR NEW\n"
        );
    }
    if status.unreadable_files > 0 {
        let files = counted(status.unreadable_files as usize, "file", "files");
        text += &format!("{files} cannot be read whole: no copy of a part is left on the other stores\n");
    }
    text + &short_of_copies(status)
}

/// Which stores lack copies, and what is done about it.
fn short_of_copies(status: &VolumeStatus) -> String {
    let VolumeStatus { name, stores, short_files, short_bytes, repair, repair_rate, .. } = status;
    if *short_files == 0 {
        return String::new();
    }
    let are = if *short_files == 1 { "has" } else { "have" };
    let files = |count: u64| counted(count as usize, "file", "files");
    let mut text = format!("{} {are} one copy less, {}:\n", files(*short_files), Bytes(*short_bytes));
    for store in stores.iter().filter(|store| store.short_files > 0) {
        let VolumeStore { directory, short_files, short_bytes, behind_since_ns, .. } = store;
        let why = match behind_since_ns {
            Some(since) => {
                format!("missed writes since {}", date_of_ns(*since))
            }
            None => "is lost".into(),
        };
        text += &format!("  {directory} {why}: {}, {}\n", files(*short_files), Bytes(*short_bytes));
    }
    let rate = Bytes(*repair_rate);
    text + &match repair {
        Some(VolumeRepair { files: all, files_done, bytes }) => format!(
            "the volume repairs itself: {files_done} of {} done, {} copied, at most {rate} per second\n",
            files(*all),
            Bytes(*bytes)
        ),
        None if *repair_rate == 0 => {
            format!("the volume does not repair itself; thalweg volume repair {name} does it\n")
        }
        None if stores.iter().any(|store| store.lost.is_some()) => {
            "the volume repairs itself when that store is back\n".into()
        }
        None => format!(
            "the volume repairs itself within seconds; thalweg volume repair {name} says what keeps it from that\n"
        ),
    }
}

fn in_words(layout: &VolumeLayout) -> String {
    let VolumeLayout { stripe_bytes, width, copies, record_bytes, first_slot } = layout;
    let width = match width {
        0 => "over all stores".into(),
        width => format!("over {}", counted(*width as usize, "store", "stores")),
    };
    let copies = counted(*copies as usize, "copy", "copies");
    let mut text = format!("stripes of {} {width}, {copies}", Bytes(*stripe_bytes));
    if *record_bytes > 0 {
        text += &format!(", records of {record_bytes} bytes");
    }
    if let Some(first) = first_slot {
        text += &format!(", from store {first} on");
    }
    text
}

/// The amount that was read, and the problems found.
pub(crate) fn volume_check(check: &VolumeCheck) -> String {
    let VolumeCheck { name, files, strips, bytes, problems, lost_files } = check;
    let mut text: String = problems.iter().map(|problem| on_one_line(problem) + "\n").collect();
    text += &format!(
        "{name}: {}, {}, {} read\n",
        counted(*files as usize, "file", "files"),
        counted(*strips as usize, "strip", "strips"),
        Bytes(*bytes)
    );
    text += &match (problems.len(), lost_files) {
        (0, _) => "everything is as it was written\n".into(),
        (n, 0) => format!(
            "{}; every file can be read; thalweg volume repair {name} (for a lost store replace) uses second copies\n",
            counted(n, "thing is wrong", "things are wrong")
        ),
        (n, lost) => format!(
            "{}; {} cannot be read\n",
            counted(n, "thing is wrong", "things are wrong"),
            counted(*lost as usize, "file", "files")
        ),
    };
    text
}

/// The files that were saved, and those that were not.
pub(crate) fn volume_salvage(salvaged: &VolumeSalvage) -> String {
    let VolumeSalvage { name, files, partial_files, bytes, problems } = salvaged;
    let text: String = problems.iter().map(|problem| on_one_line(problem) + "\n").collect();
    let partly = if *partial_files > 0 { format!(", {partial_files} in part") } else { String::new() };
    let saved =
        format!("{name}: {} saved{partly}, {}\n", counted(*files as usize, "file", "files"), Bytes(*bytes));
    let advice = match problems.iter().any(|problem| problem.contains(" lost")) {
        false => "",
        true => {
            "lost bytes are holes in the copies; if a store comes back, salvage again to another directory, or take \
             these files from a backup\n"
        }
    };
    text + &saved + advice
}

/// A row for each name, as in `ls -l`.
pub(crate) fn volume_files(files: &[VolumeFile]) -> String {
    let lengths = files.iter().map(|file| file.bytes.to_string().len());
    let width = lengths.max().unwrap_or(0);
    let row = |file: &VolumeFile| {
        let VolumeFile { name, bytes, modified_ns, target, .. } = file;
        let target = target.as_ref().map_or(String::new(), |target| format!(" -> {target}"));
        let date = date_of_ns(*modified_ns);
        format!("{}{:04o} {bytes:>width$} {date} {name}{target}\n", letter(file), file.mode)
    };
    files.iter().map(row).collect()
}

fn letter(file: &VolumeFile) -> char {
    match file.kind.as_str() {
        "directory" => 'd',
        "link" => 'l',
        _ => '-',
    }
}

/// All metadata of a file.
pub(crate) fn volume_file(file: &VolumeFile) -> String {
    let VolumeFile { name, kind, bytes, mode, user, group, links, modified_ns, inode, target, layout } = file;
    let mut text = format!("{name}: {kind}, {bytes} bytes\n");
    text += &labelled("owner", &format!("{user}:{group}, mode {mode:04o}"));
    text += &labelled("modified", &date_of_ns(*modified_ns));
    text += &labelled("inode", &format!("{inode}, {}", counted(*links as usize, "name", "names")));
    text += &target.as_ref().map_or(String::new(), |target| labelled("target", target));
    text + &layout.as_ref().map_or(String::new(), |layout| labelled("layout", &in_words(layout)))
}

/// The layout of a file, or of new files in a directory.
pub(crate) fn volume_layout(file: &VolumeFile) -> String {
    match &file.layout {
        Some(layout) => format!("{}: {}\n", file.name, in_words(layout)),
        None => format!("{}: a {} has no layout\n", file.name, file.kind),
    }
}
