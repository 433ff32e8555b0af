//! What a canary does to the engine: one mechanism, broken on purpose.
//!
//! Model: built with the feature `sabotage`, a process reads once from its environment which mechanism is broken in it.
//! Built without, nothing is ever broken and no code is left of the question.
//! Invariant: nothing here is compiled into a build that users get.

/// Whether this mechanism is broken.
#[cfg(feature = "sabotage")]
pub fn breaks(mechanism: &str) -> bool {
    static BROKEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let broken = BROKEN.get_or_init(|| std::env::var("THALWEG_SABOTAGE").ok());
    broken.as_deref() == Some(mechanism)
}

/// Whether this mechanism is broken: it never is.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub const fn breaks(_mechanism: &str) -> bool {
    false
}

/// Whether this mechanism breaks now: it does once, the first time that it is asked.
#[inline(always)]
pub fn strikes(mechanism: &str) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering};
    static SPENT: AtomicBool = AtomicBool::new(false);
    breaks(mechanism) && !SPENT.swap(true, Ordering::Relaxed)
}
