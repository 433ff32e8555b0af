//! Moving files, between any two machines.

use std::path::PathBuf;

use thalweg_api::PumpReceipt;
use thalweg_engine::{Endpoint, Progress, PumpOptions, Result};
use thalweg_node::SshOptions;

/// A transfer: from sources to a destination, each here, on a host of a cluster, or where ssh goes.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// What is moved, and how.
    pub options: PumpOptions,
    /// The directory of the client's identity, for ends on hosts of its cluster.
    pub identity: PathBuf,
    /// How ssh is used, for ends where it goes.
    pub ssh: SshOptions,
}

impl Transfer {
    /// Of these sources, each a path or as [`Endpoint::of_transfer`] reads it.
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

    /// Moves them. The receipt proves that what came is what was sent.
    ///
    /// # Errors
    /// [`Error::is_wrong`](crate::Error::is_wrong) says whether what arrived is something else or it could not be done. What
    /// has arrived stays for the same transfer with `resume`.
    pub fn run(&self, progress: &Progress) -> Result<PumpReceipt> {
        let ends = || self.options.sources.iter().chain([&self.options.dest]);
        if ends().any(|end| matches!(end, Endpoint::Ssh(..))) {
            thalweg_node::pump_over_ssh(&self.ssh, &self.options, progress)
        } else if ends().any(|end| matches!(end, Endpoint::Host(..))) {
            thalweg_node::pump(&self.identity, &self.options, progress)
        } else {
            thalweg_engine::pump(&self.options, progress)
        }
    }
}
