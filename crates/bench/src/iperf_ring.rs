//! The rate of all links of a lab at once: iperf3 from each host to the next, in a ring.
//!
//! Model: one pair of hosts shows what a single link carries. All pairs together show what this machine can do, because
//! every packet costs its cores the same; with many hosts that is less.
//! Non-goals: disks and records.

use thalweg_api::BenchOther;
use thalweg_io::process::Usage;

use crate::lab::{Lab, cpu_seconds};
use crate::pump_lab::{IPERF, Served, iperf_rate};
use thalweg_measure::Result;
use thalweg_measure::process::{Series, whole_process};

/// With fewer hosts, one pair of them shows enough.
const HOSTS_MIN: u32 = 16;
const PORT: u16 = 5301;
const NAME: &str = "iperf3 on all links at once";

/// The servers of a ring, and the runs so far.
pub(crate) struct Ring {
    served: Vec<Served>,
    series: Series,
}

impl Ring {
    /// Starts servers on all hosts, if there are many and iperf3 is installed.
    pub(crate) fn of(lab: &Lab, hosts: u32) -> Option<Ring> {
        if hosts < HOSTS_MIN {
            return None;
        }
        let serve = |host| Served::iperf_at(lab, host, PORT).ok();
        let served: Option<Vec<Served>> = (1..=hosts).map(serve).collect();
        Some(Ring { served: served?, series: Series::default() })
    }

    /// Every host sends this many bytes to the next one. The time is that of the slowest.
    pub(crate) fn run(&mut self, lab: &Lab, bytes: u64) -> Result<()> {
        let hosts = self.served.len() as u32;
        let cpu = |ring: &Ring| ring.served.iter().map(|served| cpu_seconds(served.id())).sum::<f64>();
        let before = cpu(self);
        let (port, count) = (PORT.to_string(), bytes.to_string());
        let send = |host: u32| {
            let mut command = lab.inside(host, IPERF);
            command.args(["-c", &lab.address(host % hosts + 1), "-p", &port, "-n", &count, "-l", "1M", "-J"]);
            whole_process(&mut command)
        };
        let ended: Vec<_> = std::thread::scope(|scope| {
            let sending: Vec<_> = (1..=hosts).map(|host| scope.spawn(move || send(host))).collect();
            sending
                .into_iter()
                .map(|sends| sends.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let (mut slowest, mut usage) = (f64::INFINITY, Usage::default());
        for ended in ended {
            let ended = ended?;
            slowest = slowest.min(iperf_rate(&ended.out)?);
            usage.cpu_seconds += ended.usage.cpu_seconds;
        }
        usage.cpu_seconds += cpu(self) - before;
        self.series.add(bytes as f64 / slowest, usage);
        Ok(())
    }

    /// The medians.
    pub(crate) fn measured(self) -> BenchOther {
        BenchOther::measured(NAME, self.series.measure())
    }
}
