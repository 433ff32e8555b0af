//! For canaries: breaks one mechanism on purpose.
//!
//! Model: in a build with debug assertions, as tests are, the environment of a process names the mechanism to break.
//! Invariant: a release breaks nothing, and holds no code for it.

/// The mechanism that this process is to break.
#[inline(always)]
pub fn broken() -> Option<&'static str> {
    static BROKEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    if !cfg!(debug_assertions) {
        return None;
    }
    BROKEN.get_or_init(|| std::env::var("THALWEG_SABOTAGE").ok()).as_deref()
}

/// Whether this mechanism is broken.
#[inline(always)]
pub fn breaks(mechanism: &str) -> bool {
    broken() == Some(mechanism)
}

/// Whether to break this mechanism now: true only on the first call.
#[inline(always)]
pub fn strikes(mechanism: &str) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering};
    static SPENT: AtomicBool = AtomicBool::new(false);
    breaks(mechanism) && !SPENT.swap(true, Ordering::Relaxed)
}
