//! What is said about tables.

use serde::{Deserialize, Serialize};

/// A server of tables that is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableServer {
    /// Where Redis clients connect: `ADDRESS:PORT` or `unix:PATH`.
    pub resp: String,
    /// Bytes for records and what orders them.
    pub memory_bytes: u64,
    /// Whether clients have to give a password.
    pub password: bool,
}
