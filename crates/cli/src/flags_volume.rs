//! The flags of `volume` and `mount` in the table of flags.

use std::path::PathBuf;

use crate::commands::Command::{Mount, Volume};
use crate::flag::{At, Flag, Value};
use crate::values;

const VOLUMES: At = At::Commands(&[Volume]);
const MOUNTS: At = At::Commands(&[Mount]);

pub(crate) const STORES: Flag = Flag {
    long: "stores",
    short: None,
    value: Value::Any("DIR,..."),
    at: VOLUMES,
    about: "the directories of a new volume's stores",
    doc: "\
The directories of the stores of a new volume, each preferably on a disk of its own. Each gets a directory \
NAME.thalweg-store. The flag may be repeated. NODE:/DIR is a directory of a node of the cluster.",
    set: |args, value| values::names(value).map(|dirs| args.stores.extend(dirs.iter().map(PathBuf::from))),
};

pub(crate) const MANAGER: Flag = Flag {
    long: "manager",
    short: None,
    value: Value::Dir("DIR"),
    at: VOLUMES,
    about: "where names are stored [default: the first store]",
    doc: "\
The directory for the names, sizes and layouts of a new volume: it gets a directory NAME.thalweg-manager. Without this \
flag, the directory of the first store. On a cluster it is NODE:/DIR.",
    set: |args, value| {
        args.manager = Some(PathBuf::from(value));
        Ok(())
    },
};

pub(crate) const CLIENTS: Flag = Flag {
    long: "clients",
    short: None,
    value: Value::Any("NAME,..."),
    at: VOLUMES,
    about: "who may use a new volume on nodes [default: all clients]",
    doc: "\
The clients of the cluster that may use a new volume on nodes, by the names in their certificates. The flag may be \
repeated. Manager and stores refuse all other clients, whatever else these may do in the cluster.",
    set: |args, value| values::names(value).map(|names| args.clients.extend(names)),
};

pub(crate) const STRIPE: Flag = Flag {
    long: "stripe",
    short: None,
    value: Value::Any("SIZE"),
    at: VOLUMES,
    about: "bytes that lie together on one store [default: 1MiB]",
    doc: "\
How many bytes of a file are together on one store before the next store follows, from 4KiB to 1GiB. A file that is \
not longer is on one store.",
    set: |args, value| values::bytes(value).map(|bytes| args.stripe_bytes = Some(bytes)),
};

pub(crate) const WIDTH: Flag = Flag {
    long: "width",
    short: None,
    value: Value::Any("N"),
    at: VOLUMES,
    about: "how many stores have a part of a file [default: all]",
    doc: "How many stores have a part of a file. Without this flag, and with 0, all of them.",
    set: |args, value| {
        values::parsed_number(value, "a number of stores").map(|width| args.width = Some(width))
    },
};

pub(crate) const COPIES: Flag = Flag {
    long: "copies",
    short: None,
    value: Value::Any("N"),
    at: VOLUMES,
    about: "how many stores have each byte: 1 or 2 [default: 1]",
    doc: "\
How many stores have each byte, 1 or 2. With 2, any one store may be lost, and on a cluster any node but the manager's.",
    set: |args, value| {
        values::parsed_number(value, "a number of copies").map(|copies| args.copies = Some(copies))
    },
};

pub(crate) const RECURSIVE: Flag = Flag {
    long: "recursive",
    short: None,
    value: Value::None,
    at: VOLUMES,
    about: "with rm: remove directories with everything in them",
    doc: "With volume rm: remove directories with everything in them. Without this flag, only files and empty directories.",
    set: |args, _| {
        args.recursive = true;
        Ok(())
    },
};

pub(crate) const FORCE: Flag = Flag {
    long: "force",
    short: None,
    value: Value::None,
    at: VOLUMES,
    about: "with destroy: forget the volume even if parts are left",
    doc: "\
With volume destroy: remove everything that can be removed, say what is left, and forget the volume, even if the host \
of its manager is gone or its directories contain something that does not belong to it.",
    set: |args, _| {
        args.force = true;
        Ok(())
    },
};

pub(crate) const BACKGROUND: Flag = Flag {
    long: "background",
    short: None,
    value: Value::None,
    at: MOUNTS,
    about: "return when the volume is mounted",
    doc: "\
Return when the volume can be used, and leave it mounted. Without this flag, the command runs until the volume is unmounted.",
    set: |args, _| {
        args.background = true;
        Ok(())
    },
};

pub(crate) const READ_ONLY: Flag = Flag {
    long: "read-only",
    short: None,
    value: Value::None,
    at: MOUNTS,
    about: "allow no changes through the mount",
    doc: "Allow no changes through the mount.",
    set: |args, _| {
        args.read_only = true;
        Ok(())
    },
};

pub(crate) const OPTIONS: Flag = Flag {
    long: "options",
    short: None,
    value: Value::Any("OPTION,..."),
    at: MOUNTS,
    about: "options of mount(8), such as noatime",
    doc: "\
Options of mount(8), such as noatime, noexec, suid or dev; without the last two, set-user-ID bits and device files have \
no effect. ro, cache=SIZE and hint=HINT are the flags --read-only, --cache and --hint. Options for other programs, such as \
nofail, _netdev and those that begin with x-, have no effect here. The flag may be repeated.",
    set: |args, value| args.mount_options.add(value),
};

pub(crate) const CACHE: Flag = Flag {
    long: "cache",
    short: None,
    value: Value::Any("SIZE"),
    at: MOUNTS,
    about: "memory for files that were read [default: 128MiB]",
    doc: "\
The memory for cached data of files, at least 4MiB; the kernel's own pages are not counted. With it, files that are \
read sequentially are read ahead, and written data is sent a little later, up to 16MiB of it. With 0 each read and \
write that reaches the mount goes to the stores.",
    set: |args, value| values::bytes(value).map(|bytes| args.cache_bytes = Some(bytes)),
};

pub(crate) const HINT: Flag = Flag {
    long: "hint",
    short: None,
    value: Value::OneOf("HINT", &["sequential", "random", "once", "normal"]),
    at: MOUNTS,
    about: "how files without a hint of their own are used",
    doc: "\
How the files of this mount that have no hint of their own (thalweg volume hint) are used: sequential, random, once or \
normal.",
    set: |args, value| {
        args.hint = Some(values::parsed(value)?);
        Ok(())
    },
};
