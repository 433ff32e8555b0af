//! What a canary does to the engine: one mechanism, broken on purpose.
//!
//! Model: built with the feature `sabotage`, a process reads once from its environment which mechanism is broken in it.
//! Built without, nothing is ever broken and no code is left of the question.
//! Invariant: nothing here is compiled into a build that users get.

/// Whether this mechanism breaks now: it does once, the first time that it is asked.
#[cfg(feature = "sabotage")]
pub fn strikes(mechanism: &str) -> bool {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    static BROKEN: OnceLock<Option<String>> = OnceLock::new();
    static SPENT: AtomicBool = AtomicBool::new(false);
    let broken = BROKEN.get_or_init(|| std::env::var("THALWEG_SABOTAGE").ok());
    broken.as_deref() == Some(mechanism) && !SPENT.swap(true, Ordering::Relaxed)
}

/// Whether this mechanism breaks now: it never does.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub const fn strikes(_mechanism: &str) -> bool {
    false
}
