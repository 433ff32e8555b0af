//! A flag of `node`, in the table of flags.

use std::path::PathBuf;

use crate::commands::Command::Node;
use crate::flag::{At, Flag, Value};

pub(crate) const JOIN: Flag = Flag {
    long: "join",
    short: None,
    value: Value::Dir("DIR"),
    at: At::Commands(&[Node]),
    about: "make a cluster with the others of srun or mpirun",
    doc: "\
With run: makes a cluster together with the other processes of a launcher: srun, mpirun, or any other that sets PMI_RANK and \
PMI_SIZE. DIR is a directory that all of them share, and it becomes the identity for commands on the cluster, as in --cluster \
DIR. It is made if it is not there, must belong to this user alone, and gives the cluster its name; the nodes are n1, n2 and so on. The cluster is there \
when all have come, within 60 s. Each node has the name of its host as its address, and a free port, unless --listen says otherwise. A node that is \
started again replaces the one before it; when none runs any more, the next to come begin a new cluster.",
    set: |args, value| {
        args.join = Some(PathBuf::from(value));
        Ok(())
    },
};
