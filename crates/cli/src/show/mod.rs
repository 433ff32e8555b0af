//! Results as text: receipts, plans, checks and reports. Each function is pure, from an object to text, and is tested
//! with the text of a sample.

use thalweg_api::from_json;

mod cluster_plan;
mod cluster_tables;
mod columns;
mod nodes;
mod partition;
mod plan;
mod pump;
mod receipt;
mod reports;
mod sorts;
mod volumes;

pub(crate) use cluster_plan::{cluster_plan, exchange, probe};
pub(crate) use cluster_tables::{is_table_safe, table_lines, table_list, table_loaded, table_status};
pub(crate) use columns::{counted, seconds, traffic};
pub(crate) use nodes::{cluster, cluster_doctor, jobs, pings, steps, version, whole};
pub(crate) use plan::plan;
pub(crate) use pump::{left_out, pump};
pub(crate) use receipt::receipt;
pub(crate) use reports::{check, doctor};
pub(crate) use sorts::{Watched, end_of_sort};
pub(crate) use volumes::{
    volume_check, volume_destroyed, volume_file, volume_files, volume_layout, volume_list, volume_salvage,
    volume_status,
};

/// The text that the command prints for an object of this kind, the name of its struct in `thalweg_api`. `None` if the
/// object is not of that kind, or the kind has no text.
pub fn text(kind: &str, object: &str) -> Option<String> {
    Some(match kind {
        "Receipt" => receipt(&from_json(object).ok()?),
        "PumpReceipt" => pump(&from_json(object).ok()?),
        "Plan" => plan(&from_json(object).ok()?),
        "ClusterPlan" => cluster_plan(&from_json(object).ok()?),
        "Check" => check(&from_json(object).ok()?),
        "DoctorReport" => doctor(&from_json(object).ok()?),
        "ClusterReport" => cluster(&from_json(object).ok()?),
        "JobList" => jobs(&from_json(object).ok()?),
        _ => return None,
    })
}
