//! Outlets: the records of some lanes leave the river.
//!
//! Model: an outlet is a source of [`Batch`]es. When it is asked for the next one, it reads its mailbox, lets its
//! [`Core`] check every message, and gives out what is allowed. Dropping a batch frees its buffer, which becomes a
//! credit.
//! Invariant: `None` comes only when every split is proved. An outlet that is dropped earlier tells its inlets.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use thalweg_pump::Source;

use crate::batch::Partials;
use crate::core::{BatchId, Core, Effect, Event};
use crate::error::{Error, Result};
use crate::head::{Head, Kind};
use crate::transport::{Delivery, Look, Mailbox, Message, Stopper, Ticket, Transport};
use crate::{Batch, RiverConfig, sabotage};

/// The end of a river from which records are taken.
pub struct Outlet {
    config: Arc<RiverConfig>,
    core: Core,
    /// The transports to the inlets.
    transports: Vec<Box<dyn Transport>>,
    mail: Arc<Mailbox>,
    look: Option<Look>,
    deliveries: VecDeque<Delivery>,
    kept: BTreeMap<BatchId, Batch>,
    ready: VecDeque<Batch>,
    ended: bool,
    /// The batch of `get_record`.
    reading: Option<Reading>,
    partials: Partials,
}

/// The batch from which records are taken one by one.
struct Reading {
    batch: Batch,
    /// Its complete records, if one of them crosses batches.
    joined: Option<Vec<u8>>,
    /// Where the next record begins.
    at: usize,
}

impl Reading {
    fn records(&self) -> &[u8] {
        self.joined.as_deref().unwrap_or(self.batch.records())
    }
}

impl Outlet {
    pub(crate) fn new(
        config: Arc<RiverConfig>,
        transports: Vec<Box<dyn Transport>>,
        mail: Arc<Mailbox>,
    ) -> Outlet {
        let core = Core::new(config.rules);
        Outlet {
            config,
            core,
            transports,
            mail,
            look: None,
            deliveries: VecDeque::new(),
            kept: BTreeMap::new(),
            ready: VecDeque::new(),
            ended: false,
            reading: None,
            partials: Partials::default(),
        }
    }

    /// Stops this outlet from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.mail))
    }

    /// Calls `look` every 50 ms while this outlet waits for an inlet, and stops it if that returns false.
    pub fn look_while_waiting(&mut self, look: impl FnMut() -> bool + Send + 'static) {
        self.look = Some(Box::new(look));
    }

    /// The next record: a line without its newline, a prefixed record without its prefix. It is not copied unless it
    /// is longer than a batch.
    pub fn get_record(&mut self) -> Result<Option<&[u8]>> {
        while self.reading.as_ref().is_none_or(|reading| reading.at == reading.records().len()) {
            self.reading = None;
            let Some(batch) = self.next()? else { return Ok(None) };
            let joined = self.partials.whole(self.config.layout, &batch);
            self.reading = Some(Reading { batch, joined, at: 0 });
        }
        let reading = self.reading.as_mut().expect("it was looked at just now");
        let from = reading.at;
        let rest = &reading.records()[from..];
        let layout = self.config.layout;
        let bytes = layout.length(rest).filter(|&n| n <= rest.len());
        let record_bytes = bytes.map_or(rest.len(), |n| n - layout.end_bytes());
        reading.at += bytes.unwrap_or(rest.len());
        Ok(Some(layout.contents(&reading.records()[from..from + record_bytes])))
    }

    fn read_mail(&mut self) -> Result<()> {
        self.mail.take(&mut self.deliveries, true, &mut self.look)?;
        while let Some(delivery) = self.deliveries.pop_front() {
            match delivery {
                Delivery::Freed(source) => {
                    let effects = self.core.apply(Event::Freed(source));
                    self.carry_out(effects, None)?;
                }
                Delivery::Arrived(source, Message::Control(head)) => {
                    let effects = self.core.apply(Event::Arrived(source, head));
                    self.carry_out(effects, None)?;
                }
                Delivery::Arrived(source, Message::Batch(batch)) => {
                    self.examine(&batch)?;
                    let effects = self.core.apply(Event::Arrived(source, batch.head));
                    self.carry_out(effects, Some(batch))?;
                }
            }
        }
        Ok(())
    }

    /// Compares a batch with its head, and with its checksum if there is one.
    fn examine(&self, batch: &Batch) -> Result<()> {
        let head = &batch.head;
        let is_sound = head.bytes == batch.records().len() as u64 && (head.lane as usize) < self.config.lanes;
        if !is_sound || (self.config.checked && batch.checksum() != head.checksum) {
            return Err(Error::Damaged(head.split, head.lane));
        }
        Ok(())
    }

    fn carry_out(&mut self, effects: Vec<Effect>, mut arrived: Option<Batch>) -> Result<()> {
        for effect in effects {
            match effect {
                Effect::Keep => {
                    let batch = arrived.take().expect("a batch came");
                    self.kept.insert(name_of(&batch.head), batch);
                }
                Effect::Give(source, name) => {
                    let mut batch = self.kept.remove(&name).expect("it was kept");
                    batch.ticket = Some(Ticket { outlet: Arc::clone(&self.mail), source });
                    self.ready.extend(sabotage::given(batch).into_iter().flatten());
                }
                // If the source has disconnected, its transport reports that.
                Effect::Say(source, head) => drop(self.transports[source].say(head)),
                Effect::End => {
                    self.ended = true;
                    self.transports.iter_mut().for_each(|transport| drop(transport.end()));
                }
                Effect::Fail(fault) => return Err(fault.into()),
            }
        }
        Ok(())
    }
}

fn name_of(head: &Head) -> BatchId {
    (head.split, head.lane, head.sequence)
}

impl Source<Batch> for Outlet {
    type Error = Error;

    fn next(&mut self) -> Result<Option<Batch>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(Some(batch));
            }
            if self.ended {
                return Ok(None);
            }
            self.read_mail()?;
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        if !self.ended {
            let gone = Head::new(Kind::Gone, self.config.rules.river);
            self.transports.iter_mut().for_each(|transport| drop(transport.say(gone)));
        }
    }
}
