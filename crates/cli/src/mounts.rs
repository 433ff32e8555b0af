//! The command `mount`, in the foreground, in the background, and as mount(8) calls it.
//!
//! Invariant: a mount in the background is this command started again, in a process of its own. The process that starts
//! it waits for the line that says that the volume is ready.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use thalweg::mount::{self, Options};
use thalweg::volume::{self, Registry};
use thalweg_api::{VolumeMount, from_json, to_json};

use crate::failure::{DONE, Failure};
use crate::interpret::Show;
use crate::interpret::volume::MountAsk;
use crate::print::{complain, pass_on, report};
use crate::signals::Runs;
use crate::{mount_options, program, signals};

/// The name under which mount(8) calls this program for file systems of the type `fuse.thalweg`.
const HELPER: &str = "mount.fuse.thalweg";

/// Mounts a volume. Returns when it is unmounted; in the background, when it is ready.
pub(crate) fn mount(asked: &MountAsk, how: Show) -> Result<u8, Failure> {
    if asked.background {
        return in_background(asked, how);
    }
    thalweg_io::process::one_heap();
    let open = volume::open(&Registry::of_user()?, &asked.volume)?;
    open.volume.set_cache(asked.cache_bytes, asked.hint)?;
    let options = Options { flags: asked.options.flags, complain: std::sync::Arc::new(complain) };
    let mounted = mount::mount(open, &asked.at, options)?;
    let place = mounted.place();
    // Programs with open files keep the mount busy; the process then runs until a second signal.
    signals::on_first_signal(Runs::Server, move |_| {
        if let Err(why) = mount::unmount(&place) {
            complain(&why.to_string());
        }
    })
    .map_err(Failure::Signals)?;
    shown(how, &VolumeMount { name: asked.volume.clone(), at: mounted.at().display().to_string() })?;
    mounted.wait()?;
    Ok(DONE)
}

fn shown(how: Show, mount: &VolumeMount) -> Result<u8, Failure> {
    report(how, || to_json(mount), || format!("{} is mounted on {}\n", mount.name, mount.at))
}

fn in_background(asked: &MountAsk, how: Show) -> Result<u8, Failure> {
    let mut command = Command::new(program::path().map_err(Failure::Program)?);
    let options = asked.options.typed.join(",");
    command.args(["mount", "--json"]).args((!options.is_empty()).then(|| format!("--options={options}")));
    command.arg(format!("--cache={}", asked.cache_bytes)).arg(format!("--hint={}", asked.hint));
    command.arg("--").arg(&asked.volume).arg(&asked.at);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(Failure::Program)?;
    let mut ready = String::new();
    let out = child.stdout.take().expect("a pipe was asked for");
    // If this fails, the process has ended and has printed why.
    let _ = BufReader::new(out).read_line(&mut ready);
    match from_json(&ready) {
        Ok(mount) => shown(how, &mount),
        Err(_) => {
            let ended = child.wait_with_output().map_err(Failure::Program)?;
            // If this fails, there is no way left to report it.
            let _ = pass_on(&ended.stderr, true);
            Ok(ended
                .status
                .code()
                .and_then(|code| u8::try_from(code).ok())
                .unwrap_or(crate::failure::COULD_NOT))
        }
    }
}

/// The arguments for this command if mount(8) started it, with `NAME DIR [-o OPTION,...]` and flags of one letter.
pub(crate) fn of_helper(program: &OsStr, args: &[OsString]) -> Option<Vec<OsString>> {
    if Path::new(program).file_name() != Some(OsStr::new(HELPER)) {
        return None;
    }
    let mut words = vec!["mount".into(), "--background".into(), "--quiet".into()];
    let (mut options, mut tolerates) = (Vec::new(), false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-o") => options.extend(args.next().and_then(|list| list.to_str()).unwrap_or("").split(',')),
            Some("-s") => tolerates = true,
            // mount(8) itself has looked for the type, and has entered the namespace.
            Some("-t" | "-N") => drop(args.next()),
            // Others, such as -v and -n, are not for a volume.
            Some(flag) if flag.starts_with('-') => {}
            _ => words.push(arg.clone()),
        }
    }
    options.retain(|option| !option.is_empty() && (!tolerates || mount_options::is_known(option)));
    words.extend((!options.is_empty()).then(|| format!("--options={}", options.join(",")).into()));
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_8_calls_it_by_another_name() {
        let of = |program: &str, args: &str| {
            let args: Vec<OsString> = args.split(' ').map(OsString::from).collect();
            let words = of_helper(OsStr::new(program), &args)?;
            Some(words.iter().map(|word| word.to_str().unwrap().to_string()).collect::<Vec<_>>().join(" "))
        };
        let helped = |args| of("/sbin/mount.fuse.thalweg", args).unwrap();
        let asked = "mount --background --quiet films /mnt --options=";
        assert_eq!(helped("films /mnt -o rw,noauto"), format!("{asked}rw,noauto"));
        assert_eq!(helped("films /mnt -n -v -t fuse.thalweg -o ro"), format!("{asked}ro"));
        assert_eq!(helped("films /mnt -o cahce=1GiB,ro -o x-a"), format!("{asked}cahce=1GiB,ro,x-a"));
        assert_eq!(helped("films /mnt -s -o cahce=1GiB,hint=once"), format!("{asked}hint=once"));
        assert_eq!(helped("films /mnt"), "mount --background --quiet films /mnt");
        assert_eq!(of("/usr/bin/thalweg", "films /mnt"), None);
    }
}
