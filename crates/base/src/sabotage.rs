//! For canaries: breaks one mechanism on purpose.
//!
//! Model: with the feature `sabotage`, the environment of a process names the mechanism to break. Without it, nothing
//! is ever broken and no code remains.
//! Invariant: nothing here is compiled into a release.

/// Whether this mechanism is broken.
#[cfg(feature = "sabotage")]
pub fn breaks(mechanism: &str) -> bool {
    static BROKEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let broken = BROKEN.get_or_init(|| std::env::var("THALWEG_SABOTAGE").ok());
    broken.as_deref() == Some(mechanism)
}

/// Always false.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub const fn breaks(_mechanism: &str) -> bool {
    false
}

/// Whether to break this mechanism now: true only on the first call.
#[inline(always)]
pub fn strikes(mechanism: &str) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering};
    static SPENT: AtomicBool = AtomicBool::new(false);
    breaks(mechanism) && !SPENT.swap(true, Ordering::Relaxed)
}
