//! Tables as a library: ordered records, each a key and a value, in memory or on the nodes of a cluster.

pub use thalweg_api::{TableForm, TableLoaded};
pub use thalweg_table::cluster::{
    Answer, Arrange, Beside, CAPACITY, CAPACITY_BYTES, ClusterOptions, Duplicates, Error, Interval,
    Operation, Result, Shape, Tables, Transport, Variant, WINDOW_MAX, Window, scale, text,
};
pub use thalweg_table::{
    CONDITION_BYTES_MAX, Condition, ConditionError, Options, Place, Record, Records, Server, ServerError,
    Stop, Table, Ticket, Tls,
};
