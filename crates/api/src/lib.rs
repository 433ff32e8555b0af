//! What crosses a process boundary: receipts, plans and reports, as JSON objects.
//!
//! Invariant: plain data, every field with its unit in its name; `serde` lives in this crate only.
//! Non-goals: the engine; nothing here computes.

mod audit;
mod bench;
mod check;
mod cluster;
mod hex;
mod job;
mod node;
mod partition;
mod plan;
mod pump;
mod rates;
mod receipt;
mod report;
mod request;
mod table;
mod volume;
mod vote;
mod work;

pub use audit::AuditLine;
pub use bench::{
    AccessRun, BenchFloor, BenchHost, BenchMachine, BenchMeasure, BenchOther, BenchPhase, BenchRate,
    BenchReport, BenchRow, BenchTable, BenchTableRun, BenchTarget, Iperf, IperfEnd, IperfSum, RivalRun,
};
pub use check::{CheckSaid, CheckShare, Examined, SharedFiles};
pub use cluster::{ClusterClient, ClusterFile, ClusterHost, DroppedHost, Links, May};
pub use job::{
    AttemptEnd, ClientFile, ClientFileRequest, Detached, Edge, FromParticipant, JobAttempt, JobSpec,
    JobVolume, KeyBound, LongEnd, LostRange, NodeReceipt, ParticipantEnd, ParticipantView, PieceEnd,
    ToParticipant, Trouble,
};
pub use node::{
    ClusterDoctor, ClusterReport, ExecEnd, ExecReport, ExecRequest, HostDoctor, HostEnd, HostReport,
    HostStep, HostSteps, JobList, JobReport, JobState, NodeReady, NodeStatus, RelayRequest,
};
pub use partition::{PartReceipt, PartitionPick, PartitionReceipt};
pub use plan::{Hardware, Plan, PlanStage};
pub use pump::{
    FailureKind, LeftOut, LeftOutKind, Note, PumpChange, PumpChoice, PumpCompare, PumpEnd, PumpItem,
    PumpLink, PumpReceipt, PumpRequest, PumpSaid, PumpVerdict, SshAnswer, SshGreeting, SshMeeting,
};
pub use rates::{
    ClusterPlan, ClusterStage, ExchangeAsk, ExchangeReport, NodePlan, NodeRates, NodeRole, ProbeReport,
    ProbeRequest, ProbeSaid, ProbedHost, RatesFrom, Schedule,
};
pub use receipt::{Disk, GrownInputs, IoReceipt, MemoryReceipt, Proof, Receipt, Sides, Stage};
pub use report::{Check, DoctorReport, Finding, NodeCheck, Verdict};
pub use request::{
    CommandRequest, HostProcess, HostRequest, JobRequest, Request, ServiceRequest, TableRequest,
    TransferRequest, VolumeChange, VolumeRequest, VolumeWork,
};
pub use table::{
    TableBucket, TableEntry, TableForm, TableGroup, TableGroups, TableHeld, TableKind, TableList,
    TableLoaded, TableMove, TableMulticast, TableRecord, TableSeat, TableServer, TableShare, TableStatus,
};
pub use volume::{
    VolumeCheck, VolumeCluster, VolumeDestroyed, VolumeEntry, VolumeFile, VolumeLayout, VolumeList,
    VolumeMount, VolumeRepair, VolumeSalvage, VolumeStatus, VolumeStore,
};
pub use vote::{
    AttemptId, Ballot, Decision, FileStamp, ReadyFile, VoteAsk, VoteRecord, VoteRequest, VoteSaid,
};
pub use work::{IoChoice, JobOptions, JoinKind, JoinSpec, KeyPart, KeyPartError, RecordForm, Work, WorkSpec};

/// The text of any of this crate's objects: one line of JSON.
pub fn to_json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("plain data always has a JSON form")
}

/// Reads back what [`to_json`] wrote.
pub fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}
