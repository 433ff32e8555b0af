//! Repairs by itself what stores missed while they were away.
//!
//! Model: the process that serves a volume looks again and again for copies that missed writes, and whose two stores
//! can be reached. It brings them up to date one after the other, at a limited rate, as a session like that of a client
//! that repairs.
//! Invariant: it gives way to a client that repairs, and ends before the manager is closed. Nothing depends on it: what
//! it has not done is left to the next look, or to a client.
//! Non-goals: damaged blocks, and strips that belong to no file, which a client's repair looks for.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::time::Duration;

use thalweg_base::clock::Stopwatch;
use thalweg_wire::threads::spawn;

use crate::client::Client;
use crate::healer::Healer;
use crate::manager::{Inode, ROOT};
use crate::repair;
use crate::request::{Healing, Health};
use crate::server::Server;
use crate::session::OwnSession;
use crate::stores::bit;
use crate::{Error, Result, Volume};

/// The extended attribute of the root with the most bytes per second that are copied; without it, [`REPAIR_RATE`]. 0
/// means that nothing is.
pub const REPAIR_RATE_ATTRIBUTE: &[u8] = b"user.thalweg.repair_rate";
/// The rate at which a volume repairs itself, unless it has another one.
pub const REPAIR_RATE: u64 = 64 << 20;

/// How long to wait between two looks; twice as long after each one that found work and could do none, and
/// [`REST`] times as long as it took, at most [`LOOK_MAX`].
const LOOK: Duration = Duration::from_secs(2);
const LOOK_MAX: Duration = Duration::from_secs(120);
const REST: u32 = 10;
/// The most files that are repaired after one look.
const FILES_MAX: usize = 1 << 16;
/// How many inodes are looked at together.
const PAGE: usize = 1000;
/// How long a thread that waits for its rate may overlook that it should end.
const MOMENT: Duration = Duration::from_millis(100);

/// The copies of a file that missed writes: the strip, the slot of the copy, and that of the other one.
pub(crate) fn missed(inode: &Inode) -> impl Iterator<Item = (u32, [u32; 2])> {
    let strips = inode.strips | inode.unsynced;
    inode.layout.into_iter().flat_map(move |layout| {
        let copies = (0..layout.width).flat_map(|index| [(index, 0), (index, 1)]);
        let copies = copies.filter(move |_| layout.copies == 2);
        copies.filter_map(move |(index, copy)| {
            let is_missed = inode.stale[copy as usize] & strips & bit(index) != 0;
            is_missed.then(|| (index, [layout.slot(index, copy), layout.slot(index, 1 - copy)]))
        })
    })
}

impl Server {
    /// Begins to repair by itself, from a moment later on.
    pub(crate) fn heal(self: &Arc<Server>) {
        let (me, healer) = (Arc::downgrade(self), Arc::clone(&self.healer));
        self.healer.state().is_running = true;
        let heal = move || {
            let mut pause = LOOK;
            while !healer.waits(pause) {
                let watch = Stopwatch::start();
                pause = if look(&me, &healer) { LOOK } else { 2 * pause };
                pause = pause.max(REST * Duration::from_nanos(watch.ns())).min(LOOK_MAX);
            }
            healer.has_ended();
        };
        if !spawn("heal", heal) {
            self.healer.has_ended();
        }
    }

    /// What its own repairs do, and since when stores have missed writes.
    pub(crate) fn health(&self) -> Result<Health> {
        let healing = self.healer.state().healing;
        Ok(Health { behind: self.manager.behind()?, healing, rate: self.repair_rate()? })
    }

    fn repair_rate(&self) -> Result<u64> {
        let attributes = self.manager.attributes(ROOT)?;
        let found = attributes.iter().find(|(name, _)| name == REPAIR_RATE_ATTRIBUTE);
        let text = found.map(|(_, value)| String::from_utf8_lossy(value));
        Ok(text.and_then(|text| text.trim().parse().ok()).unwrap_or(REPAIR_RATE))
    }
}

/// Looks once for what can be repaired, and repairs it. Returns false if it could do nothing of that.
fn look(me: &Weak<Server>, healer: &Arc<Healer>) -> bool {
    let Some(server) = me.upgrade() else {
        healer.ends();
        return true;
    };
    match server.look() {
        Ok(left) if left.is_empty() => true,
        Ok(left) => {
            let before = healer.state().short;
            // What fails is tried again at a later look.
            let _ = repair_all(&server, healer, &left);
            healer.state().healing = None;
            server.look().is_ok() && healer.state().short != before
        }
        Err(_) => false,
    }
}

impl Server {
    /// Counts the files that miss copies. Returns those of which a copy can be repaired.
    fn look(&self) -> Result<Vec<u64>> {
        let (mut after, mut short, mut left) = (0, (0, 0), Vec::new());
        let mut is_there = vec![None; self.stores.slots().len()];
        let mut can_ask = |slot: u32| {
            *is_there[slot as usize].get_or_insert_with(|| {
                self.stores.slots()[slot as usize].as_ref().is_ok_and(|store| store.space().is_ok())
            })
        };
        loop {
            let page = self.manager.stale(after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = last.id;
            for inode in page {
                let layout = inode.layout.expect("only files have copies");
                let lens = missed(&inode).map(|(index, _)| layout.strip_len(index, inode.size));
                let (count, bytes) = lens.fold((0, 0), |(count, bytes), len| (count + 1, bytes + len));
                short = (short.0 + u64::from(count > 0), short.1 + bytes);
                // Both stores of a copy are needed.
                if left.len() < FILES_MAX
                    && missed(&inode).any(|(_, slots)| slots.into_iter().all(&mut can_ask))
                {
                    left.push(inode.id);
                }
            }
        }
        self.healer.state().short = short;
        Ok(left)
    }
}

/// Repairs these files as a client of this server.
fn repair_all(server: &Arc<Server>, healer: &Arc<Healer>, files: &[u64]) -> Result<()> {
    server.may_change()?;
    let own = OwnSession::begin(server);
    let session = own.session;
    server.begin_repair(session, true)?;
    let volume = Volume::of(Client::by(own), Arc::clone(&server.stores));
    healer.state().healing = Some(Healing { files: files.len() as u64, ..Healing::default() });
    for file in files {
        // A new rate applies from the next file on.
        let rate = server.repair_rate()?;
        if rate == 0 {
            return Ok(());
        }
        let (watch, of_file) = (Stopwatch::start(), Cell::new(0));
        let copied = |bytes: u64| {
            of_file.set(of_file.get() + bytes);
            let mut state = healer.state();
            state.repaired_bytes += bytes;
            state.healing.iter_mut().for_each(|healing| healing.bytes += bytes);
            drop(state);
            let due_ns = u128::from(of_file.get()) * 1_000_000_000 / u128::from(rate);
            loop {
                let left = Duration::from_nanos(due_ns.saturating_sub(u128::from(watch.ns())) as u64);
                if healer.waits(left.min(MOMENT)) || !server.repairs(session) {
                    return Err(ended());
                }
                if left <= MOMENT {
                    return Ok(());
                }
            }
        };
        // Of this file a store may be lost again, or have no room: the others may be repaired.
        let _ = repair::stale(&volume, *file, &copied);
        if healer.waits(Duration::ZERO) || !server.repairs(session) {
            return Err(ended());
        }
        healer.state().healing.iter_mut().for_each(|healing| healing.files_done += 1);
    }
    Ok(())
}

fn ended() -> Error {
    Error::Refused("the volume is closed, or a client repairs it".into())
}
