//! A description of this machine, for the results.

use std::path::Path;
use std::process::Command;

use thalweg_api::BenchMachine;
use thalweg_io::process;

/// Describes the machine, and the disk of `directory`.
pub(crate) fn look(directory: &Path) -> BenchMachine {
    BenchMachine {
        host: kernel_says("hostname"),
        kernel: kernel_says("osrelease"),
        cpu: cpu(),
        cores: cores() as u32,
        memory_bytes: process::machine_memory_bytes(),
        disk: disk(directory),
    }
}

/// Cores that this process may run on.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn kernel_says(name: &str) -> String {
    let said = std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
    said.map_or_else(|_| "unknown".to_string(), |text| text.trim().to_string())
}

fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or("unknown", |(_, name)| name).to_string()
}

/// `ext4 on vda`. Only the device's name, without paths of this machine.
fn disk(directory: &Path) -> String {
    let mut df = Command::new("df");
    let told = df.args(["--output=fstype,source"]).arg(directory).output();
    let text = told.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let mut words = text.lines().nth(1).unwrap_or("").split_whitespace();
    match (words.next(), words.next()) {
        (Some(kind), Some(device)) => format!("{kind} on {}", device.rsplit('/').next().unwrap_or(device)),
        _ => "unknown".to_string(),
    }
}
