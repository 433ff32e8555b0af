//! How many requests of a client may be outstanding.
//!
//! Model: a sliding window (paper 002, section 3.1). An adaptive one measures the time from a request to its answer,
//! one request at a time. It grows while that time is near the least one, and shrinks when requests wait in queues, as
//! TCP Vegas does (Brakmo and Peterson, 1995).
//! Invariant: at least [`WINDOW_MIN`] and at most [`WINDOW_MAX`] requests may be outstanding; in datagrams, at most
//! [`DATAGRAM_WINDOW_MAX`].

/// The fewest and the most outstanding requests of an adaptive window.
const WINDOW_MIN: usize = 10;
/// The most outstanding requests of a client.
pub const WINDOW_MAX: usize = 16 << 10;
/// The most in datagrams. A full queue of a network drops them, where it only delays a link: at 100 Mbit/s, so many
/// records of 100 bytes pass in 40 ms.
pub(crate) const DATAGRAM_WINDOW_MAX: usize = 4 << 10;
/// An answer that takes longer than this many times the least time, and this much more, has waited in a queue.
const WAITED: u64 = 3;
const WAITED_NS: u64 = 2_000_000;

/// The limit of a client's outstanding requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Window {
    /// As many as keep the servers busy.
    #[default]
    Adaptive,
    /// So many.
    Of(u32),
    /// No limit but that of all clients.
    Unlimited,
}

/// A window in use.
#[derive(Debug)]
pub(crate) struct Outstanding {
    window: Window,
    most: usize,
    adaptive: usize,
    /// The request whose answer is timed, and when it was submitted.
    timed: Option<(u64, u64)>,
    least_ns: u64,
}

impl Outstanding {
    /// At most `most` requests, whatever the window.
    pub(crate) fn new(window: Window, most: usize) -> Outstanding {
        Outstanding { window, most, adaptive: WINDOW_MIN, timed: None, least_ns: u64::MAX }
    }

    /// How many requests may be outstanding.
    pub(crate) fn limit(&self) -> usize {
        match self.window {
            Window::Adaptive => self.adaptive,
            Window::Of(count) => (count as usize).clamp(1, self.most),
            Window::Unlimited => self.most,
        }
    }

    /// Notes that a request was submitted.
    pub(crate) fn submitted(&mut self, now_ns: u64, number: u64) {
        if self.window == Window::Adaptive && self.timed.is_none() {
            self.timed = Some((number, now_ns));
        }
    }

    /// Notes that a request has ended.
    pub(crate) fn ended(&mut self, now_ns: u64, number: u64) {
        let Some((_, since_ns)) = self.timed.take_if(|(timed, _)| *timed == number) else { return };
        let took_ns = now_ns.saturating_sub(since_ns);
        // The least time is forgotten slowly, because the network may change.
        self.least_ns = self.least_ns.saturating_add(self.least_ns / 4096).min(took_ns);
        let has_waited = took_ns > self.least_ns.saturating_mul(WAITED).saturating_add(WAITED_NS);
        let next = if has_waited { self.adaptive * 3 / 4 } else { self.adaptive * 3 / 2 };
        self.adaptive = next.clamp(WINDOW_MIN, self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window after rounds in which a server answers so many requests in a millisecond, after that time.
    fn settled(per_ms: u64, delay_ns: u64) -> usize {
        let mut window = Outstanding::new(Window::Adaptive, WINDOW_MAX);
        let mut now_ns = 0;
        for number in 0..500 {
            window.submitted(now_ns, number);
            now_ns += delay_ns + window.limit() as u64 * 1_000_000 / per_ms;
            window.ended(now_ns, number);
        }
        window.limit()
    }

    #[test]
    fn an_adaptive_window_keeps_the_server_busy_without_long_queues() {
        // The product of rate and delay, and what the server does in about the time that is no wait yet.
        let near = settled(1000, 200_000);
        assert!((1000..6000).contains(&near), "{near}");
        let far = settled(100, 20_000_000);
        assert!((2000..9000).contains(&far), "{far}");
        let slow = settled(1, 1_000_000);
        assert!((WINDOW_MIN..50).contains(&slow), "{slow}");
    }

    #[test]
    fn other_windows_stay_as_they_are() {
        let mut window = Outstanding::new(Window::Of(10), WINDOW_MAX);
        window.submitted(0, 1);
        window.ended(u64::MAX, 1);
        assert_eq!(window.limit(), 10);
        assert_eq!(Outstanding::new(Window::Unlimited, 5).limit(), 5);
    }
}
