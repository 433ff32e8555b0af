//! Outlets: where the records of some lanes come out.
//!
//! Model: a source of [`Batch`]es. It reads its mailbox when it is asked for the next one, lets its [`Core`] judge what
//! came, and gives out what may leave. A batch that is dropped frees its buffer, which becomes a credit at the next
//! look.
//! Invariant: `None` comes only when every split is proved; an outlet that is dropped earlier tells its inlets.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use thalweg_pump::Source;

use crate::batch::Begun;
use crate::core::{Core, Effect, Event, Name};
use crate::error::{Error, Result};
use crate::head::{Head, Kind};
use crate::way::{Letter, Mailbox, Message, Stopper, Ticket, Way};
use crate::{Batch, Bed, sabotage};

/// Where records of some lanes come out.
pub struct Outlet {
    bed: Arc<Bed>,
    core: Core,
    /// To the inlets.
    ways: Vec<Box<dyn Way>>,
    mail: Arc<Mailbox>,
    letters: VecDeque<Letter>,
    kept: BTreeMap<Name, Batch>,
    ready: VecDeque<Batch>,
    ended: bool,
    /// Where records are taken from.
    reading: Option<Reading>,
    begun: Begun,
}

/// The batch that records are taken from one by one.
struct Reading {
    batch: Batch,
    /// Its whole records, if one of them began in another or goes on.
    joined: Option<Vec<u8>>,
    /// Where the next one begins.
    at: usize,
}

impl Reading {
    fn records(&self) -> &[u8] {
        self.joined.as_deref().unwrap_or(self.batch.records())
    }
}

impl Outlet {
    pub(crate) fn new(bed: Arc<Bed>, ways: Vec<Box<dyn Way>>, mail: Arc<Mailbox>) -> Outlet {
        let core = Core::new(bed.rules);
        Outlet {
            bed,
            core,
            ways,
            mail,
            letters: VecDeque::new(),
            kept: BTreeMap::new(),
            ready: VecDeque::new(),
            ended: false,
            reading: None,
            begun: Begun::default(),
        }
    }

    /// What stops it, from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.mail))
    }

    /// The next record: a line without its newline, a prefixed one without its prefix. It lies where it came, or in a buffer of this outlet's if it
    /// was too long for one batch.
    pub fn get_record(&mut self) -> Result<Option<&[u8]>> {
        while self.reading.as_ref().is_none_or(|reading| reading.at == reading.records().len()) {
            self.reading = None;
            let Some(batch) = self.next()? else { return Ok(None) };
            let joined = self.begun.whole(self.bed.layout, &batch);
            self.reading = Some(Reading { batch, joined, at: 0 });
        }
        let reading = self.reading.as_mut().expect("it was looked at just now");
        let from = reading.at;
        let rest = &reading.records()[from..];
        let layout = self.bed.layout;
        let bytes = layout.length(rest).filter(|&n| n <= rest.len());
        let record_bytes = bytes.map_or(rest.len(), |n| n - layout.end_bytes());
        reading.at += bytes.unwrap_or(rest.len());
        Ok(Some(layout.contents(&reading.records()[from..from + record_bytes])))
    }

    fn read_mail(&mut self) -> Result<()> {
        self.mail.take(&mut self.letters, true)?;
        while let Some(letter) = self.letters.pop_front() {
            match letter {
                Letter::Freed(source) => {
                    let effects = self.core.apply(Event::Freed(source));
                    self.carry_out(effects, None)?;
                }
                Letter::Came(source, Message::Mark(head)) => {
                    let effects = self.core.apply(Event::Came(source, head));
                    self.carry_out(effects, None)?;
                }
                Letter::Came(source, Message::Batch(batch)) => {
                    self.examine(&batch)?;
                    let effects = self.core.apply(Event::Came(source, batch.head));
                    self.carry_out(effects, Some(batch))?;
                }
            }
        }
        Ok(())
    }

    /// Compares a batch with its head, as far as anybody wants.
    fn examine(&self, batch: &Batch) -> Result<()> {
        let head = &batch.head;
        let is_sound = head.bytes == batch.records().len() as u64 && (head.lane as usize) < self.bed.lanes;
        if !is_sound || (self.bed.checked && batch.checksum() != head.checksum) {
            return Err(Error::Damaged(head.split, head.lane));
        }
        Ok(())
    }

    fn carry_out(&mut self, effects: Vec<Effect>, mut came: Option<Batch>) -> Result<()> {
        for effect in effects {
            match effect {
                Effect::Keep => {
                    let batch = came.take().expect("a batch came");
                    self.kept.insert(name_of(&batch.head), batch);
                }
                Effect::Give(source, name) => {
                    let mut batch = self.kept.remove(&name).expect("it was kept");
                    batch.ticket = Some(Ticket { outlet: Arc::clone(&self.mail), source });
                    self.ready.extend(sabotage::given(batch).into_iter().flatten());
                }
                // A source that has gone hears nothing any more, and its way in says so.
                Effect::Say(source, head) => drop(self.ways[source].say(head)),
                Effect::End => {
                    self.ended = true;
                    self.ways.iter_mut().for_each(|way| drop(way.end()));
                }
                Effect::Fail(fault) => return Err(fault.into()),
            }
        }
        Ok(())
    }
}

fn name_of(head: &Head) -> Name {
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
            let gone = Head::new(Kind::Gone, self.bed.rules.river);
            self.ways.iter_mut().for_each(|way| drop(way.say(gone)));
        }
    }
}
