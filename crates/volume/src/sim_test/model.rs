//! What a file may hold: for each byte the values that it may have, and the lengths.
//!
//! Model: while all goes well, a byte has the value that was written last. A power loss of a store may bring back values that
//! were not synced since. A write that failed may still be carried out, so its bytes may come at any time.

/// One file.
#[derive(Debug)]
pub(crate) struct Model {
    /// For each byte the values since its last sync, the oldest first, each with who wrote it.
    bytes: Vec<Vec<(u8, usize)>>,
    /// The lengths likewise.
    lens: Vec<(usize, usize)>,
    /// Writes that failed: from, to, value.
    doubtful: Vec<(usize, usize, u8)>,
    /// Values that were not synced may have come back.
    is_unsure: bool,
}

impl Default for Model {
    /// A new file.
    fn default() -> Model {
        Model { bytes: Vec::new(), lens: vec![(0, usize::MAX)], doubtful: Vec::new(), is_unsure: false }
    }
}

impl Model {
    fn len(&self) -> usize {
        self.lens.last().map_or(0, |(len, _)| *len)
    }

    fn grow(&mut self, end: usize) {
        while self.bytes.len() < end {
            self.bytes.push(vec![(0, usize::MAX)]);
        }
    }

    pub(crate) fn write(&mut self, who: usize, at: usize, len: usize, value: u8, is_done: bool) {
        let end = at + len;
        self.grow(end);
        if is_done {
            self.bytes[at..end].iter_mut().for_each(|byte| byte.push((value, who)));
            self.lens.push((self.len().max(end), who));
        } else {
            self.doubtful.push((at, end, value));
            let len = self.len();
            self.lens.push((len.max(end), who));
            self.lens.push((len, who));
        }
    }

    pub(crate) fn resize(&mut self, who: usize, len: usize, is_done: bool) {
        let before = self.len();
        self.grow(len.max(before));
        if is_done {
            self.bytes[len..].iter_mut().for_each(|byte| byte.push((0, who)));
            self.lens.push((len, who));
        } else {
            self.doubtful.push((len, self.bytes.len(), 0));
            self.lens.push((len, who));
            self.lens.push((before, who));
        }
    }

    /// What this client wrote last is durable.
    pub(crate) fn synced(&mut self, who: usize) {
        if let Some(durable) = self.lens.iter().rposition(|(_, by)| *by == who)
            && self.doubtful.is_empty()
        {
            self.lens.drain(..durable);
        }
        for byte in &mut self.bytes {
            if let Some(durable) = byte.iter().rposition(|(_, by)| *by == who) {
                byte.drain(..durable);
            }
        }
    }

    /// It holds this, and everything is durable. What a write that failed left behind the end comes when the file grows.
    pub(crate) fn is(&mut self, found: &[u8]) {
        let bytes = found.iter().map(|byte| vec![(*byte, usize::MAX)]).collect();
        let behind = self.doubtful.iter().map(|(from, to, value)| (*from.max(&found.len()), *to, *value));
        let doubtful: Vec<_> = behind.filter(|(from, to, _)| from < to).collect();
        let ends = doubtful.iter().map(|(_, to, _)| *to).chain([found.len()]);
        let lens = ends.map(|len| (len, usize::MAX)).collect();
        *self = Model { bytes, lens, doubtful, is_unsure: false };
    }

    /// A store lost what was not synced.
    pub(crate) fn lost_power(&mut self) {
        self.is_unsure = true;
    }

    /// Whether the file may hold this.
    pub(crate) fn check(&self, found: &[u8]) -> Result<(), String> {
        let all_went_well = self.doubtful.is_empty() && !self.is_unsure;
        let may_be = if all_went_well { &self.lens[self.lens.len().saturating_sub(1)..] } else { &self.lens };
        // What failed may have been done in part.
        let (least, most) =
            (may_be.iter().map(|(len, _)| *len).min(), may_be.iter().map(|(len, _)| *len).max());
        if !(least.unwrap_or(0)..=most.unwrap_or(0)).contains(&found.len()) {
            return Err(format!("{} bytes, and not one of {:?}", found.len(), self.lens));
        }
        for (at, byte) in found.iter().enumerate() {
            let history = self.bytes.get(at).map_or(&[(0, usize::MAX)][..], |history| history);
            let may_be = match self.is_unsure {
                true => history.iter().any(|(value, _)| value == byte),
                false => history.last().is_some_and(|(value, _)| value == byte),
            };
            let is_doubtful =
                || self.doubtful.iter().any(|(from, to, value)| (*from..*to).contains(&at) && value == byte);
            if !may_be && !is_doubtful() {
                return Err(format!("byte {at} is {byte}, and not one of {history:?}"));
            }
        }
        Ok(())
    }
}
