//! Inlets: each record goes into the open batch of the lane that the partitioner selects.
//!
//! Model: an inlet is a sink for blocks of consecutive bytes, in which records may cross blocks, and for batches from
//! the outlet of another river. Everything that is put belongs to a *split*, a part of the input. Without
//! [`Inlet::begin`] it is one split with the number of the inlet.
//! Invariant: a record is copied once, into its batch. There is no allocation and no lock for a record.
//! Invariant: each inlet starts to send at a different outlet, so that inlets which end together do not all send to
//! the same one.

use std::collections::VecDeque;
use std::sync::Arc;

use thalweg_api::Proof;
use thalweg_block::{Block, Pool};
use thalweg_pump::Sink;
use thalweg_record::{InPlace, add_record, each_record};

use crate::batch::{Open, Partials};
use crate::error::{Error, Result};
use crate::head::{Head, Kind};
use crate::partitioner::lane_of_hash;
use crate::send_queue::SendQueue;
use crate::transport::{Delivery, Look, Mailbox, Message, Stopper, Transport};
use crate::{Batch, Partitioner, RiverConfig};

/// The result of the partitioner for a record that goes to all lanes.
const ALL: usize = usize::MAX;
/// The result for a record that goes to no lane.
const NOWHERE: usize = ALL - 1;

/// The end of a river into which records are put.
pub struct Inlet {
    config: Arc<RiverConfig>,
    index: usize,
    pool: Pool,
    /// The transports to the outlets.
    transports: Vec<Box<dyn Transport>>,
    mail: Arc<Mailbox>,
    look: Option<Look>,
    deliveries: VecDeque<Delivery>,
    /// The open batch of each lane, and the totals of each lane in this split.
    open: Vec<Open>,
    sums: Vec<Head>,
    send_queue: SendQueue<Batch>,
    /// Whether a split has begun and not ended.
    is_open: bool,
    /// One past the highest split that has begun.
    splits: u64,
    /// The offset of the next byte in the input.
    at: u64,
    /// The start of a record that continues in the next bytes.
    carry: Vec<u8>,
    /// For each lane, the start of a record that continues in the next batch of another river.
    partials: Partials,
    /// The next lane for round robin, or the lane of the open batch for the least busy outlet.
    hint: usize,
    proof: Proof,
    finished: bool,
}

impl Inlet {
    pub(crate) fn new(
        config: Arc<RiverConfig>,
        index: usize,
        pool: Pool,
        transports: Vec<Box<dyn Transport>>,
        mail: Arc<Mailbox>,
    ) -> Inlet {
        let head = Head::new(Kind::End, config.rules.river);
        Inlet {
            index,
            pool,
            transports,
            mail,
            look: None,
            deliveries: VecDeque::new(),
            open: (0..config.lanes).map(|_| Open::default()).collect(),
            sums: vec![head; config.lanes],
            send_queue: SendQueue::new(
                (config.outlets, config.rules.exclusive),
                config.lanes,
                config.lane_queued,
                config.queued,
            ),
            is_open: false,
            splits: 0,
            at: 0,
            carry: Vec::new(),
            partials: Partials::default(),
            hint: 0,
            proof: Proof::default(),
            finished: false,
            config,
        }
    }

    /// Stops this inlet from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.mail))
    }

    /// Calls `look` every 50 ms while this inlet waits for an outlet, and stops it if that returns false.
    pub fn look_while_waiting(&mut self, look: impl FnMut() -> bool + Send + 'static) {
        self.look = Some(Box::new(look));
    }

    /// Begins a split, which starts at offset `at` of the input. Each split may be put only once in the river.
    pub fn begin(&mut self, split: u64, at: u64) {
        assert!(!self.is_open, "a split ends before the next begins");
        let head = Head { split, ..Head::new(Kind::End, self.config.rules.river) };
        self.sums.iter_mut().enumerate().for_each(|(lane, sum)| *sum = Head { lane: lane as u32, ..head });
        self.is_open = true;
        self.splits = self.splits.max(split + 1);
        self.at = at;
        self.hint = (split % self.config.lanes as u64) as usize;
    }

    /// The records that were put, if the river is proved.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// Puts one record: a line without its newline, a prefixed record without its prefix.
    pub fn put_record(&mut self, record: &[u8]) -> Result<()> {
        let layout = self.config.layout;
        if layout.fixed_bytes().is_some_and(|n| record.len() != n) {
            return Err(Error::Unfinished { at: self.at, bytes: record.len(), layout });
        }
        if let Some(prefix) = layout.prefix(record.len()) {
            self.put_bytes(&prefix)?;
        }
        self.put_bytes(record)?;
        match layout.end() {
            b"" => Ok(()),
            end => self.put_bytes(end),
        }
    }

    /// Puts the next bytes of the split.
    pub fn put_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        if !self.is_open {
            self.begin(self.index as u64, 0);
        }
        let rest = if self.carry.is_empty() { bytes } else { self.finish_carry(bytes)? };
        let done = self.distribute_all(rest)?;
        self.at += done as u64;
        self.keep_carry(&rest[done..])
    }

    /// Completes a record that began in earlier bytes. Returns the remaining bytes.
    fn finish_carry<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8]> {
        let Some(missing) = self.config.layout.completes(&self.carry, bytes) else {
            self.keep_carry(bytes)?;
            return Ok(&[]);
        };
        let mut carry = std::mem::take(&mut self.carry);
        carry.extend_from_slice(&bytes[..missing]);
        self.distribute_all(&carry)?;
        self.at += carry.len() as u64;
        carry.clear();
        self.carry = carry;
        Ok(&bytes[missing..])
    }

    fn keep_carry(&mut self, bytes: &[u8]) -> Result<()> {
        if (self.carry.len() + bytes.len()) as u64 > self.config.record_max {
            return Err(Error::TooLong(self.at, self.config.record_max));
        }
        self.carry.extend_from_slice(bytes);
        Ok(())
    }

    /// Distributes the complete records in `bytes` to their lanes. Returns how many bytes they take.
    fn distribute_all(&mut self, bytes: &[u8]) -> Result<usize> {
        let config = Arc::clone(&self.config);
        let (key, lanes) = (&config.key, config.lanes);
        match (&config.partitioner, key.as_slice()) {
            (Partitioner::Range(split_points), _) => {
                self.distribute(bytes, |record, origin, _| split_points.locate(key, record, origin))
            }
            (Partitioner::Among(split_points, ranges), _) => self.distribute(bytes, |record, origin, _| {
                let range = split_points.locate(key, record, origin);
                if ranges.contains(&range) { range - ranges.start } else { NOWHERE }
            }),
            (Partitioner::Hash, Some((offset, length))) => self.distribute(bytes, |record, _, _| {
                let record = record.alone();
                let from = offset.min(record.len());
                let to = offset.saturating_add(length).min(record.len());
                lane_of_hash(&record[from..to], lanes)
            }),
            (Partitioner::Hash, None) => self.distribute(bytes, |record, _, _| {
                // Keys of several parts are rare, so their normal form is simply computed for each record.
                lane_of_hash(&key.normal(record.alone(), usize::MAX), lanes)
            }),
            (Partitioner::RoundRobin, _) => self.distribute(bytes, |_, _, hint| {
                let lane = *hint;
                *hint = if lane + 1 == lanes { 0 } else { lane + 1 };
                lane
            }),
            (Partitioner::Copy, _) => self.distribute(bytes, |_, _, _| ALL),
            (Partitioner::LeastBusy, _) => self.distribute(bytes, |_, _, hint| *hint),
            // The special results must not be reachable; such a lane is an error.
            (Partitioner::Own(own), _) => {
                self.distribute(bytes, |record, origin, _| own(record.alone(), origin).min(NOWHERE - 1))
            }
        }
    }

    #[inline(always)]
    fn distribute(
        &mut self,
        bytes: &[u8],
        mut lane_of: impl FnMut(InPlace<'_>, u64, &mut usize) -> usize,
    ) -> Result<usize> {
        let at = self.at;
        let done = each_record!(self.config.layout, bytes, 0, |from, record, len| {
            let origin = at + from as u64;
            let lane = lane_of(record, origin, &mut self.hint);
            self.put_in(lane, record.alone(), &bytes[from..from + len], origin)?;
        });
        Ok(done)
    }

    /// Puts a record with its terminator into the open batch of its lane.
    #[inline(always)]
    fn put_in(&mut self, lane: usize, record: &[u8], ended: &[u8], origin: u64) -> Result<()> {
        if self.config.proved {
            add_record(&mut self.proof, record);
        }
        match self.open.get_mut(lane) {
            Some(open) if open.room() >= ended.len() => {
                open.push(ended, origin);
                Ok(())
            }
            _ => self.put_slowly(lane, ended, origin),
        }
    }

    #[inline(never)]
    fn put_slowly(&mut self, lane: usize, record: &[u8], origin: u64) -> Result<()> {
        if lane == ALL {
            return (0..self.config.lanes).try_for_each(|lane| {
                match self.open[lane].room() >= record.len() {
                    true => {
                        self.open[lane].push(record, origin);
                        Ok(())
                    }
                    false => self.put_slowly(lane, record, origin),
                }
            });
        }
        if lane == NOWHERE {
            return Ok(());
        }
        if lane >= self.config.lanes {
            return Err(Error::NoLane(lane, self.config.lanes));
        }
        let batch_bytes = self.config.batch_bytes;
        if record.len() > batch_bytes && !self.config.rules.ordered {
            return Err(Error::TooLong(origin, batch_bytes as u64));
        }
        self.send_open(lane, false)?;
        let lane =
            if matches!(self.config.partitioner, Partitioner::LeastBusy) { self.least_busy()? } else { lane };
        let mut parts = record.chunks(batch_bytes);
        self.open[lane].begin(self.pool.take(), batch_bytes);
        self.open[lane].push(parts.next().unwrap_or(&[]), origin);
        for part in parts {
            self.send_open(lane, true)?;
            self.open[lane].begin(self.pool.take(), batch_bytes);
            self.open[lane].fill(part);
        }
        Ok(())
    }

    /// Sends the open batch of a lane if it is not empty.
    fn send_open(&mut self, lane: usize, more: bool) -> Result<()> {
        let sum = &mut self.sums[lane];
        let head = Head { kind: Kind::Batch, more, records: 0, bytes: 0, checksum: 0, ..*sum };
        let Some(batch) = self.open[lane].close(head, self.config.checked) else { return Ok(()) };
        sum.sequence += 1;
        sum.records += batch.head.records;
        sum.bytes += batch.head.bytes;
        sum.checksum = sum.checksum.wrapping_add(batch.head.checksum);
        self.read_mail(false)?;
        while self.send_queue.is_full(lane) {
            self.read_mail(true)?;
        }
        let outlet = self.config.outlet_of(lane);
        self.send_queue.push(outlet, lane, batch);
        self.send_queued(outlet)
    }

    /// A lane of the outlet with the most unused credits. If none has any, this waits for the first: a batch that was
    /// queued for one outlet could not be sent to another that is free sooner.
    fn least_busy(&mut self) -> Result<usize> {
        let lanes = self.config.lanes;
        let from = (self.index + 1) % lanes;
        loop {
            let slack = |lane: usize| self.send_queue.slack(self.config.outlet_of(lane));
            let lane = (from..lanes).chain(0..from).rev().max_by_key(|lane| slack(*lane));
            let lane = lane.expect("there is a lane");
            if slack(lane) > 0 {
                self.hint = lane;
                return Ok(lane);
            }
            self.read_mail(true)?;
        }
    }

    fn send_queued(&mut self, outlet: usize) -> Result<()> {
        while let Some(batch) = self.send_queue.next(outlet) {
            self.transports[outlet].send(Message::Batch(batch))?;
        }
        Ok(())
    }

    /// Ends the split: every outlet learns what its lanes got.
    pub fn end(&mut self) -> Result<()> {
        self.end_split(false)
    }

    /// Ends the split. With `finishes`, each outlet also learns that it was the last one.
    fn end_split(&mut self, finishes: bool) -> Result<()> {
        if !self.is_open {
            return Ok(());
        }
        if !self.carry.is_empty() {
            let layout = self.config.layout;
            match layout.end() {
                b"" => return Err(Error::Unfinished { at: self.at, bytes: self.carry.len(), layout }),
                end => self.put_bytes(end)?,
            }
        }
        let mut lanes: Vec<usize> = (0..self.config.lanes).collect();
        lanes.sort_by_key(|&lane| self.send_order(self.config.outlet_of(lane)));
        lanes.into_iter().try_for_each(|lane| self.send_open(lane, false))?;
        let mut outlets: Vec<usize> = (0..self.config.outlets).collect();
        outlets.sort_by_key(|&outlet| self.send_order(outlet));
        while !outlets.is_empty() {
            let mut waiting = Vec::new();
            for outlet in outlets {
                if self.send_queue.waits_for(outlet) {
                    waiting.push(outlet);
                    continue;
                }
                self.close(outlet)?;
                if finishes { self.finish_with(outlet)? } else { self.transports[outlet].flush()? }
            }
            outlets = waiting;
            self.read_mail(!outlets.is_empty())?;
        }
        self.is_open = false;
        Ok(())
    }

    /// The position of an outlet in the order in which this inlet sends.
    fn send_order(&self, outlet: usize) -> usize {
        let outlets = self.config.outlets;
        (outlet + 2 * outlets - (self.index + 1) % outlets) % outlets
    }

    /// Tells an outlet which batches its lanes got.
    fn close(&mut self, outlet: usize) -> Result<()> {
        let mut close = Head { kind: Kind::Close, ..self.sums[0] };
        (close.lane, close.sequence, close.records, close.bytes, close.checksum) = (0, 0, 0, 0, 0);
        for sum in self.sums[self.config.lanes_of(outlet)].iter().filter(|sum| sum.sequence > 0) {
            self.transports[outlet].send(Message::Control(*sum))?;
            close.sequence += 1;
            close.records += sum.records;
            close.bytes += sum.bytes;
            close.checksum = close.checksum.wrapping_add(sum.checksum);
        }
        self.transports[outlet].send(Message::Control(close))
    }

    /// Tells an outlet that nothing more follows.
    fn finish_with(&mut self, outlet: usize) -> Result<()> {
        let head = self.of_all(Kind::Finish);
        self.transports[outlet].send(Message::Control(head))?;
        self.transports[outlet].end()
    }

    /// A message about the source and not about a split.
    fn of_all(&self, kind: Kind) -> Head {
        Head { split: self.config.splits.max(self.splits), ..Head::new(kind, self.config.rules.river) }
    }

    /// Handles messages from outlets, and sends what new credits allow. With `wait`, waits for a message.
    fn read_mail(&mut self, wait: bool) -> Result<()> {
        self.mail.take(&mut self.deliveries, wait, &mut self.look)?;
        while let Some(delivery) = self.deliveries.pop_front() {
            let Delivery::Arrived(outlet, Message::Control(head)) = delivery else { continue };
            match head.kind {
                Kind::Gone => return Err(Error::Gone(outlet)),
                Kind::Credit => {
                    self.send_queue.credit(outlet, head.sequence);
                    self.send_queued(outlet)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Sink for Inlet {
    type Error = Error;

    /// Puts the next block of the split, which must have the right offset.
    fn put(&mut self, block: Block) -> Result<()> {
        let expected = if self.is_open { self.at + self.carry.len() as u64 } else { 0 };
        if block.offset() != expected {
            return Err(Error::Gap(block.offset(), expected));
        }
        self.put_bytes(&block)
    }

    fn finish(&mut self) -> Result<()> {
        if !self.is_open && self.splits == 0 && self.config.splits == 0 {
            self.begin(self.index as u64, 0);
        }
        match self.is_open {
            true => self.end_split(true)?,
            false => (0..self.config.outlets).try_for_each(|outlet| self.finish_with(outlet))?,
        }
        self.finished = true;
        Ok(())
    }
}

impl Sink<Batch> for Inlet {
    type Error = Error;

    fn put(&mut self, batch: Batch) -> Result<()> {
        match self.partials.whole(self.config.layout, &batch) {
            Some(records) => self.put_bytes(&records),
            None => self.put_bytes(batch.records()),
        }
    }

    fn finish(&mut self) -> Result<()> {
        Sink::<Block>::finish(self)
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        if !self.finished {
            let head = self.of_all(Kind::Lost);
            // Outlets that have finished or disconnected do not get this message.
            for transport in &mut self.transports {
                drop(transport.say(head));
            }
        }
    }
}
