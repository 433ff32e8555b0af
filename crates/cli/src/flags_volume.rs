//! The flags of `volume` and `mount`, in the table of flags.

use std::path::PathBuf;

use thalweg_verbs::Command::{Mount, Volume};
use thalweg_verbs::Value::{Any, Dir, OneOf, Switch};
use thalweg_verbs::{At, Flag, flag, on, values};

use crate::typed::TypedArgs;

const VOLUMES: At = At::Commands(&[Volume]);
const MOUNTS: At = At::Commands(&[Mount]);

#[rustfmt::skip] // The rows of a table.
pub(crate) const FLAGS: &[Flag<TypedArgs>] = &[
    flag("stores", Any("DIR,..."), VOLUMES, "the directories of a new volume's stores", "\
The directories of the stores of a new volume, each preferably on a disk of its own. Each gets a directory \
NAME.thalweg-store. The flag may be repeated. NODE:/DIR is a directory of a node of the cluster.",
        |args, value| values::names(value).map(|dirs| args.stores.extend(dirs.iter().map(PathBuf::from)))),
    flag("manager", Dir("DIR"), VOLUMES, "where names are stored [default: the first store]", "\
The directory for the names, sizes and layouts of a new volume: it gets a directory NAME.thalweg-manager. Without this \
flag, the directory of the first store. On a cluster it is NODE:/DIR.",
        |args, value| {
            args.manager = Some(PathBuf::from(value));
            Ok(())
        }),
    flag("clients", Any("NAME,..."), VOLUMES, "who may use a new volume on nodes [default: all clients]", "\
The clients of the cluster that may use a new volume on nodes, by the names in their certificates. The flag may be \
repeated. Manager and stores refuse all other clients, whatever else these may do in the cluster.",
        |args, value| values::names(value).map(|names| args.clients.extend(names))),
    flag("stripe", Any("SIZE"), VOLUMES, "bytes that lie together on one store [default: 1MiB]", "\
How many bytes of a file are together on one store before the next store follows, from 4KiB to 1GiB. A file that is \
not longer is on one store.",
        |args, value| values::bytes(value).map(|bytes| args.stripe_bytes = Some(bytes))),
    flag("width", Any("N"), VOLUMES, "how many stores have a part of a file [default: all]", "\
How many stores have a part of a file. Without this flag, and with 0, all of them.",
        |args, value| {
            values::parsed_number(value, "a number of stores").map(|width| args.width = Some(width))
        }),
    flag("copies", Any("N"), VOLUMES, "how many stores have each byte: 1 or 2 [default: 1]", "\
How many stores have each byte, 1 or 2. With 2, any one store may be lost, and on a cluster any node but the manager's.",
        |args, value| {
            values::parsed_number(value, "a number of copies").map(|copies| args.copies = Some(copies))
        }),
    flag("recursive", Switch, VOLUMES, "with rm: remove directories with everything in them", "\
With volume rm: remove directories with everything in them. Without this flag, only files and empty directories.",
        on!(recursive)),
    flag("force", Switch, VOLUMES, "with destroy: forget the volume even if parts are left", "\
With volume destroy: remove everything that can be removed, say what is left, and forget the volume, even if the host \
of its manager is gone or its directories contain something that does not belong to it.",
        on!(force)),
    flag("background", Switch, MOUNTS, "return when the volume is mounted", "\
Return when the volume can be used, and leave it mounted. Without this flag, the command runs until the volume is unmounted.",
        on!(background)),
    flag("read-only", Switch, MOUNTS, "allow no changes through the mount", "\
Allow no changes through the mount.",
        on!(read_only)),
    flag("options", Any("OPTION,..."), MOUNTS, "options of mount(8), such as noatime", "\
Options of mount(8), such as noatime, noexec, suid or dev; without the last two, set-user-ID bits and device files have \
no effect. ro, cache=SIZE and hint=HINT are the flags --read-only, --cache and --hint. Options for other programs, such as \
nofail, _netdev and those that begin with x-, have no effect here. The flag may be repeated.",
        |args, value| args.mount_options.add(value)),
    flag("cache", Any("SIZE"), MOUNTS, "memory for files that were read [default: 128MiB]", "\
The memory for cached data of files, at least 4MiB; the kernel's own pages are not counted. With it, files that are \
read sequentially are read ahead, and written data is sent a little later, up to 16MiB of it. With 0 each read and \
write that reaches the mount goes to the stores.",
        |args, value| values::bytes(value).map(|bytes| args.cache_bytes = Some(bytes))),
    flag("hint", OneOf("HINT", &["sequential", "random", "once", "normal"]), MOUNTS,
        "how files without a hint of their own are used", "\
How the files of this mount that have no hint of their own (thalweg volume hint) are used: sequential, random, once or \
normal.",
        |args, value| {
            args.hint = Some(values::parsed(value)?);
            Ok(())
        }),
];
