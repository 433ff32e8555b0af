//! A model of what a file may hold: the possible values of each byte, and the possible lengths.
//!
//! Model: without failures, a byte has the value that was written last. A power loss of a store may bring back older
//! values since the last sync; if a sync then fails, its client gets the error, and the values stay. A failed write may
//! still be carried out, until its client has written there again: only its last connection to a store is answered.

/// One file.
#[derive(Debug)]
pub(crate) struct Model {
    /// For each byte the values since its last sync, the oldest first, each with its writer.
    bytes: Vec<Vec<(u8, usize)>>,
    /// The lengths, likewise.
    lens: Vec<Len>,
    /// Failed writes that may still be carried out at any time.
    doubtful: Vec<Doubt>,
    /// For each byte, values that may have come back for good because a sync failed. Lengths likewise, also those of
    /// failed cuts.
    back: Vec<Vec<u8>>,
    back_lens: Vec<usize>,
    /// Unsynced values may have come back.
    is_unsure: bool,
}

/// A length.
#[derive(Debug, Clone, Copy)]
struct Len {
    len: usize,
    by: usize,
    /// The end of what this writer wrote; an earlier writer may have written what follows.
    own: usize,
}

/// The range of a failed write.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    from: usize,
    to: usize,
    value: u8,
    /// The client whose write it is, which ends the doubt when it writes there; `None` if it comes from elsewhere.
    by: Option<usize>,
}

impl Default for Model {
    /// A new file.
    fn default() -> Model {
        Model {
            bytes: Vec::new(),
            lens: vec![Len { len: 0, by: usize::MAX, own: 0 }],
            doubtful: Vec::new(),
            back: Vec::new(),
            back_lens: Vec::new(),
            is_unsure: false,
        }
    }
}

impl Model {
    fn len(&self) -> usize {
        self.lens.last().map_or(0, |last| last.len)
    }

    fn grow(&mut self, end: usize) {
        while self.bytes.len() < end {
            self.bytes.push(vec![(0, usize::MAX)]);
            self.back.push(Vec::new());
        }
    }

    pub(crate) fn write(&mut self, who: usize, at: usize, len: usize, value: u8, is_done: bool) {
        let end = at + len;
        self.grow(end);
        if is_done {
            self.is_certain(who, at, end);
            for (byte, back) in self.bytes[at..end].iter_mut().zip(&mut self.back[at..end]) {
                // They return if this write is lost as well.
                byte.splice(0..0, back.drain(..).map(|value| (value, usize::MAX)));
                byte.push((value, who));
            }
            self.lens.push(Len { len: self.len().max(end), by: who, own: end });
        } else {
            self.doubtful.push(Doubt { from: at, to: end, value, by: Some(who) });
            let len = self.len();
            self.lens.extend([len.max(end), len].map(|len| Len { len, by: who, own: 0 }));
        }
    }

    pub(crate) fn resize(&mut self, who: usize, len: usize, is_done: bool) {
        let before = self.len();
        self.grow(len.max(before));
        if is_done {
            self.bytes[len..].iter_mut().for_each(|byte| byte.push((0, who)));
            self.lens.push(Len { len, by: who, own: len });
        } else {
            self.doubtful.push(Doubt { from: len, to: self.bytes.len(), value: 0, by: None });
            self.lens.extend([len, before].map(|len| Len { len, by: who, own: 0 }));
            // The manager may have this length, or get it later, whatever others write and sync.
            self.back_lens.push(len);
        }
    }

    /// No other write of this client can reach these bytes, but one that did may come back after a power loss.
    fn is_certain(&mut self, who: usize, at: usize, end: usize) {
        let (its, mut rest): (Vec<Doubt>, _) = self.doubtful.iter().partition(|doubt| doubt.by == Some(who));
        for doubt in its {
            let came = doubt.from.max(at)..doubt.to.min(end).max(doubt.from.max(at));
            self.bytes[came].iter_mut().for_each(|byte| byte.push((doubt.value, who)));
            rest.push(Doubt { to: doubt.to.min(at), ..doubt });
            rest.push(Doubt { from: doubt.from.max(end), ..doubt });
        }
        rest.retain(|doubt| doubt.from < doubt.to);
        self.doubtful = rest;
    }

    /// A sync failed: later syncs say nothing about earlier writes.
    pub(crate) fn not_synced(&mut self) {
        for (byte, back) in self.bytes.iter().zip(&mut self.back) {
            back.extend(byte.iter().map(|(value, _)| value));
        }
        self.back_lens.extend(self.lens.iter().map(|known| known.len));
    }

    /// The last writes of this client are durable.
    pub(crate) fn synced(&mut self, who: usize) {
        if let Some(durable) = self.lens.iter().rposition(|known| known.by == who)
            && self.doubtful.is_empty()
        {
            let own = self.lens[durable].own;
            let before = self.lens.drain(..durable);
            if self.is_unsure {
                self.back_lens.extend(before.map(|known| known.len.max(own)));
            }
        }
        for byte in &mut self.bytes {
            if let Some(durable) = byte.iter().rposition(|(_, by)| *by == who) {
                byte.drain(..durable);
            }
        }
    }

    /// The file holds this, durably. What a failed write left past the end appears when the file grows.
    pub(crate) fn is(&mut self, found: &[u8]) {
        let bytes = found.iter().map(|byte| vec![(*byte, usize::MAX)]).collect();
        let behind = |doubt: &Doubt| Doubt { from: doubt.from.max(found.len()), by: None, ..*doubt };
        let doubtful = self.doubtful.iter().map(behind).filter(|doubt| doubt.from < doubt.to);
        let doubtful: Vec<Doubt> = doubtful.collect();
        let ends = doubtful.iter().map(|doubt| doubt.to).chain([found.len()]);
        let lens = ends.map(|len| Len { len, by: usize::MAX, own: len }).collect();
        let back = vec![Vec::new(); found.len()];
        *self = Model { bytes, lens, doubtful, back, back_lens: Vec::new(), is_unsure: false };
    }

    /// A store lost its unsynced bytes.
    pub(crate) fn lost_power(&mut self) {
        self.is_unsure = true;
    }

    /// Whether the file may hold this.
    pub(crate) fn check(&self, found: &[u8]) -> Result<(), String> {
        let all_went_well = self.doubtful.is_empty() && !self.is_unsure;
        let may_be = if all_went_well { &self.lens[self.lens.len().saturating_sub(1)..] } else { &self.lens };
        // Failed operations may have been carried out in part.
        let lens = || may_be.iter().map(|known| known.len).chain(self.back_lens.iter().copied());
        let (least, most) = (lens().min().unwrap_or(0), lens().max().unwrap_or(0));
        if !(least..=most).contains(&found.len()) {
            return Err(format!("{} bytes, and not one of {:?}", found.len(), self.lens));
        }
        for (at, byte) in found.iter().enumerate() {
            let history = self.bytes.get(at).map_or(&[(0, usize::MAX)][..], |history| history);
            let may_be = match self.is_unsure {
                true => history.iter().any(|(value, _)| value == byte),
                false => history.last().is_some_and(|(value, _)| value == byte),
            };
            let is_doubtful = |doubt: &Doubt| (doubt.from..doubt.to).contains(&at) && doubt.value == *byte;
            let may_come = || self.doubtful.iter().any(is_doubtful);
            let is_back = || self.back.get(at).is_some_and(|back| back.contains(byte));
            if !may_be && !may_come() && !is_back() {
                return Err(format!("byte {at} is {byte}, and not one of {history:?}"));
            }
        }
        Ok(())
    }
}
