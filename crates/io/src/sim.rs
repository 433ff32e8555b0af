//! Simulated disk.
