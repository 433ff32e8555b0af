//! The tests in `python/tests`, run by pytest against the package as `pip install .` installs it.
//!
//! Model: pip installs the package into a new virtual environment, as the guide says, but in the profile of the tests,
//! so that cargo finds most of it built. The environment also sees the packages of the one that `.ci/need` makes:
//! pytest, Ray, maturin and others. `conftest.py` prints what a test program prints, so that `./test` counts each test.
#![allow(clippy::disallowed_methods)] // A test lays out files.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

/// The tests with Ray.
const OF_RAY: [&str; 3] =
    ["python/tests/test_ray.py", "python/tests/test_ray_faults.py", "python/tests/test_ray_hosts.py"];

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository");
    let own = std::env::current_exe().expect("this program has a path");
    let tools = target_of(&own).join("python/bin");
    if !tools.join("maturin").exists() {
        return skipped("there is no virtual environment: see need_python in .ci/need");
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{}", std::process::id()));
    let bin = place.join("venv/bin");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{}:{path}", bin.display(), tools.display());
    install(&root, &tools, &place, &path);
    let names: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    // Ray's tests mostly wait, so the others run beside them.
    let (ray, others) = (OF_RAY.map(String::from), OF_RAY.map(|name| format!("--ignore={name}")));
    let runs = match &names[..] {
        [] => vec![ray.to_vec(), [vec!["python/tests".to_string()], others.to_vec()].concat()],
        names => vec![names.to_vec()],
    };
    let start = |(number, words): (usize, Vec<String>)| {
        let mut pytest = Command::new(bin.join("python"));
        pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp"]);
        pytest.arg(place.join(format!("tmp{number}"))).args(words);
        pytest.current_dir(&root).env("PATH", &path).env("PYTHONDONTWRITEBYTECODE", "1");
        // If a test hangs, the file stays and shows which.
        let log = place.join(format!("pytest{number}.log"));
        pytest.stdout(fs::File::create(&log).expect("it can be written"));
        (pytest.spawn().expect("python starts"), log)
    };
    let started: Vec<(Child, PathBuf)> = runs.into_iter().enumerate().map(start).collect();
    let mut is_good = true;
    for (mut pytest, log) in started {
        is_good &= pytest.wait().expect("python ends").success();
        print!("{}", String::from_utf8_lossy(&fs::read(log).expect("it was written")));
    }
    fs::remove_dir_all(&place).expect("what was installed is removed");
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The target directory, which holds the profile's directory, which holds `deps`.
fn target_of(own: &Path) -> PathBuf {
    own.ancestors().nth(3).expect("cargo has built this program").to_path_buf()
}

/// Makes the virtual environment `venv` and installs the package there.
fn install(root: &Path, tools: &Path, place: &Path, path: &str) {
    let run = |program: &Path, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).current_dir(root).env("PATH", path);
        // The profile of tests has this level, so that what they are built from is used again.
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "2");
        // With what cargo has told this program about its package, ring would be built again: see xtask's `command`.
        let names = std::env::vars_os().map(|(name, _)| name);
        let told = |name: &str| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_");
        names.filter(|name| name.to_str().is_some_and(told)).for_each(|name| _ = command.env_remove(name));
        let output = command.output().expect("it starts");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout).trim().to_string()
    };
    let python = tools.join("python");
    let venv = place.join("venv");
    let new = venv.join("bin/python");
    run(&python, &["-m", "venv", "--without-pip", venv.to_str().expect("it is text")]);
    let packages = ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"];
    let shared = run(&python, &packages);
    fs::write(Path::new(&run(&new, &packages)).join("tools.pth"), shared).expect("it can be written");
    let to = ["-m", "pip", "--python", new.to_str().expect("it is text"), "--disable-pip-version-check"];
    let how = ["--quiet", "--no-deps", "--no-build-isolation", "-C", "build-args=--profile dev", "."];
    run(&python, &[&to[..], &["install"], &how].concat());
}

/// Says that none of the tests can run. `./test` counts the lines of `THALWEG_SKIPPED`.
fn skipped(why: &str) -> ExitCode {
    if let Some(file) = std::env::var_os("THALWEG_SKIPPED") {
        let mut file =
            fs::OpenOptions::new().create(true).append(true).open(file).expect("it can be written");
        writeln!(file, "python {why}").expect("it can be written");
    }
    println!("test result: ok. 1 passed; 0 failed; 0 ignored; {why}");
    ExitCode::SUCCESS
}
