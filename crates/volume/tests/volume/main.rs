//! Volumes against a model, with restarts, crashes and lost stores.
#![allow(clippy::disallowed_methods)] // Tests look at what is on the disk behind a volume's back.

mod bed;
mod clients;
mod crash;
mod history;
mod lost;
mod manager;
mod model;
mod names;
mod places;
mod repair;
mod runs;
mod tree;
