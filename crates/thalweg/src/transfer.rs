//! Copies files between any two machines.

use std::path::PathBuf;

use thalweg_api::PumpReceipt;
use thalweg_engine::{Endpoint, Progress, PumpOptions, Result};
use thalweg_node::SshOptions;
use thalweg_table::cluster::Error;

use crate::table_ends::Ends;

/// A transfer from sources to a destination, each on this machine, on a host of a cluster, or on a host reached by ssh.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// What to copy, and how.
    pub options: PumpOptions,
    /// The directory of the client's identity, for ends on hosts of its cluster.
    pub identity: PathBuf,
    /// How to use ssh, for ends that are reached by it.
    pub ssh: SshOptions,
}

impl Transfer {
    /// A transfer of these sources, each a path or in the syntax of [`Endpoint::of_transfer`].
    pub fn new<E: Into<Endpoint>>(
        sources: impl IntoIterator<Item = E>,
        dest: impl Into<Endpoint>,
    ) -> Transfer {
        let sources = sources.into_iter().map(Into::into).collect();
        Transfer {
            options: PumpOptions::new(sources, dest.into()),
            identity: PathBuf::new(),
            ssh: SshOptions::default(),
        }
    }

    /// Runs the transfer. The receipt proves that the data received is the data sent.
    ///
    /// # Errors
    /// [`Error::is_wrong`](crate::Error::is_wrong) tells wrong data from a failed operation. Data that has arrived
    /// stays, and the same transfer with `resume` uses it.
    pub fn run(&self, progress: &Progress) -> Result<PumpReceipt> {
        let (mut options, mut tables) = (self.options.clone(), Ends::default());
        options.sources.iter_mut().try_for_each(|source| tables.source(source))?;
        if let Endpoint::Table(_) = &options.dest {
            let why = format!(
                "a transfer does not know the key of the records; sort them with -o {}",
                options.dest
            );
            return Err(Error::Refused(why).into());
        }
        let ends = || options.sources.iter().chain([&options.dest]);
        let transfer = || {
            if ends().any(|end| matches!(end, Endpoint::Ssh(..))) {
                thalweg_node::pump_over_ssh(&self.ssh, &options, progress)
            } else if ends().any(|end| matches!(end, Endpoint::Host(..))) {
                thalweg_node::pump(&self.identity, &options, progress)
            } else {
                thalweg_engine::pump(&options, progress)
            }
        };
        tables.run(progress, transfer).map(|(receipt, _)| receipt)
    }
}
