//! What was asked of `pump`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use thalweg::{Endpoint, PumpOptions, SshHost, SshOptions, Transfer};
use thalweg_api::PumpChoice;

use crate::ask::ssh;
use crate::{Ask, Usage};

/// The default program at the other end of ssh.
const THERE: &str = "thalweg";

impl Ask {
    /// The transfer.
    pub fn transfer(self) -> Result<Transfer, Usage> {
        let (sources, dest) = self.transfer_ends()?;
        let is_node = |end: &Endpoint| matches!(end, Endpoint::Host(..));
        let far = is_node(&dest) || sources.iter().any(is_node);
        let identity = if far { self.identity()? } else { PathBuf::new() };
        let ssh = self.over_ssh(&sources, &dest)?;
        if self.pump.verify && self.pump.no_checksum {
            return Err(Usage(
                "--verify compares checksums, and --no-checksum takes none; leave one of them out".into(),
            ));
        }
        let files_from = self.listed_files()?;
        let choice = PumpChoice { files_from, ..self.pump.choice };
        let (resume, io) = (self.work.resume, self.work.io);
        Ok(Transfer {
            options: PumpOptions { sources, dest, resume, io, choice, ..self.pump },
            identity,
            ssh,
        })
    }

    /// The paths that a file lists.
    fn listed_files(&self) -> Result<Option<Vec<String>>, Usage> {
        let Some(file) = &self.files_from else { return Ok(None) };
        let path = if file == "-" { Path::new("/dev/stdin") } else { Path::new(file) };
        let bytes =
            thalweg_io::small::read_named(path).map_err(|why| Usage(format!("--files-from: {why}")))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Usage(format!("--files-from: {} is not text in UTF-8", path.display())))?;
        let is_path = |line: &&str| !line.is_empty() && !line.starts_with(['#', ';']);
        Ok(Some(text.lines().filter(is_path).map(String::from).collect()))
    }

    fn transfer_ends(&self) -> Result<(Vec<Endpoint>, Endpoint), Usage> {
        match (self.pump.no_disk, &self.words[..]) {
            (Some(_), []) => Ok((Vec::new(), Endpoint::Null)),
            (Some(_), [dest]) if matches!(self.transfer_end(dest)?, Endpoint::Host(..)) => {
                Ok((Vec::new(), self.transfer_end(dest)?))
            }
            (Some(_), [word, ..]) => {
                let word = word.to_string_lossy();
                Err(Usage(format!(
                    "--no-disk goes from memory to nowhere, here or at HOST:null:; leave out '{word}', or it"
                )))
            }
            (None, [sources @ .., dest]) if !sources.is_empty() => {
                let sources: Result<_, Usage> = sources.iter().map(|word| self.transfer_end(word)).collect();
                Ok((sources?, self.transfer_end(dest)?))
            }
            (None, _) => {
                Err(Usage("pump needs at least two words, SOURCE and DEST ('-' is a stream)".into()))
            }
        }
    }

    fn transfer_end(&self, word: &OsStr) -> Result<Endpoint, Usage> {
        self.with_identity(Endpoint::of_transfer(word).map_err(|why| Usage(why.to_string()))?)
    }

    /// The options for ssh, if an end is reached by it.
    fn over_ssh(&self, sources: &[Endpoint], dest: &Endpoint) -> Result<SshOptions, Usage> {
        let ssh_of = |end: &Endpoint| match end {
            Endpoint::Ssh(host, _) => Some(host.clone()),
            _ => None,
        };
        let from: Vec<Option<SshHost>> = sources.iter().map(ssh_of).collect();
        let is_from = from.iter().any(Option::is_some);
        let why = match (is_from, ssh_of(dest)) {
            (false, None) if self.ssh.is_some() || self.there.is_some() || self.through_ssh => {
                "--ssh, --there and --through-ssh are for an end that is ssh://HOST/PATH, and there is none"
            }
            (false, None) => return Ok(SshOptions::default()),
            _ if sources.iter().chain([dest]).any(|end| matches!(end, Endpoint::Host(..))) => {
                "one end is over ssh and one on a node; the other end of ssh:// is here, or over ssh too"
            }
            (true, _) if from.iter().any(|host| *host != from[0]) => {
                "all sources of a transfer are on one host; make one for each host"
            }
            _ => {
                let there = self.there.clone().unwrap_or_else(|| THERE.into());
                return Ok(SshOptions { ssh: ssh(self.ssh.as_deref()), there, through: self.through_ssh });
            }
        };
        Err(Usage(why.into()))
    }
}
