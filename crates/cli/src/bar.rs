//! Progress on standard error, drawn by its own thread from the values that the verb publishes.
//!
//! Invariant: the thread looks at most ten times a second and has a small stack, because the promise of `--memory`
//! covers the whole process. When [`Shown::end`] returns, nothing more is drawn.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use thalweg::ProgressView;
use thalweg_base::clock::Stopwatch;

use crate::interpret;
use crate::show::{seconds, traffic};

const STACK_BYTES: usize = 128 << 10;
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LINE_EVERY_SECONDS: f64 = 1.0;
/// A rate measured over less time than this is a guess, and so is the time left that follows from it.
const PACE_AFTER_SECONDS: f64 = 0.5;
/// The shortest time left that is shown.
const LEFT_SECONDS_MIN: f64 = 0.1;

// The bar takes the rest of the terminal's width; the other fields fit in 80 columns.
const MEASURED: &str =
    "{prefix} {msg} {wide_bar} {percent:>3} %  {decimal_bytes} of {decimal_total_bytes}{pace}";
const UNMEASURED: &str = "{prefix} {msg} {spinner}  {decimal_bytes}{pace}";

/// A running display of progress.
pub(crate) struct Shown {
    end: Sender<bool>,
    thread: JoinHandle<()>,
}

impl Shown {
    /// Starts to show progress. `None` if it is off, or the system refuses a thread.
    pub(crate) fn start(how: interpret::Progress, progress: Arc<thalweg::Progress>) -> Option<Shown> {
        let canvas = match how {
            interpret::Progress::Off => return None,
            interpret::Progress::Bar => Canvas::Bar(None),
            interpret::Progress::Lines => Canvas::Lines,
        };
        let (end, ended) = channel();
        let builder = std::thread::Builder::new().name("progress".into()).stack_size(STACK_BYTES);
        let thread = builder.spawn(move || Drawer::new(canvas).draw_until(&ended, &progress)).ok()?;
        Some(Shown { end, thread })
    }

    /// Draws the last state: that the verb is done, or where it stopped.
    pub(crate) fn end(self, done: bool) {
        // The thread may have ended by a panic, which was reported already.
        let _ = self.end.send(done);
        let _ = self.thread.join();
    }
}

/// Where to draw.
enum Canvas {
    /// A terminal, with the bar of the current stage.
    Bar(Option<ProgressBar>),
    /// Anything else.
    Lines,
}

struct Drawer {
    canvas: Canvas,
    /// The last state that was seen.
    last: ProgressView,
    since_look: Stopwatch,
    since_stage: Stopwatch,
    since_line: Stopwatch,
}

impl Drawer {
    fn new(canvas: Canvas) -> Drawer {
        let last = ProgressView::default();
        let now = Stopwatch::start();
        Drawer { canvas, last, since_look: now, since_stage: now, since_line: now }
    }

    fn draw_until(mut self, ended: &Receiver<bool>, progress: &thalweg::Progress) {
        loop {
            let end = ended.recv_timeout(LOOK_EVERY);
            self.look(progress.view());
            match end {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(done) => return self.leave_stage(done),
                Err(RecvTimeoutError::Disconnected) => return self.leave_stage(false),
            }
        }
    }

    fn look(&mut self, mut now: ProgressView) {
        let is_new = (now.stage_index, &now.stage) != (self.last.stage_index, &self.last.stage);
        if is_new {
            self.leave_stage(true);
            // The stage began at some time after the last look. Counting from that look overstates the rate least.
            self.since_stage = self.since_look;
        }
        self.since_look = Stopwatch::start();
        if now.total_bytes > 0 {
            // A stage may read a little more than was estimated.
            now.done_bytes = now.done_bytes.min(now.total_bytes);
        }
        self.last = now;
        if self.last.stage.is_empty() {
            return;
        }
        match &mut self.canvas {
            Canvas::Bar(bar) => {
                let bar = bar.get_or_insert_with(|| new_bar(&self.last, self.since_stage));
                bar.set_position(self.last.done_bytes);
            }
            Canvas::Lines if is_new || self.since_line.seconds() >= LINE_EVERY_SECONDS => {
                self.since_line = Stopwatch::start();
                print_line(&line(&self.last, self.since_stage.seconds()));
            }
            Canvas::Lines => {}
        }
    }

    /// Draws the last state of the stage.
    fn leave_stage(&mut self, done: bool) {
        if self.last.stage.is_empty() {
            return;
        }
        match &mut self.canvas {
            Canvas::Bar(bar) => {
                let Some(bar) = bar.take() else { return };
                if done && self.last.total_bytes > 0 {
                    bar.finish();
                } else {
                    bar.abandon();
                }
                // The bar fills its line to the margin and leaves the cursor there.
                print_line("");
            }
            Canvas::Lines => {
                let end = if done { "done after" } else { "stopped after" };
                let took = seconds(self.since_stage.seconds());
                print_line(&format!("{} {end} {took}", head(&self.last)));
            }
        }
    }
}

fn new_bar(view: &ProgressView, since_stage: Stopwatch) -> ProgressBar {
    let (length, template) = match view.total_bytes {
        0 => (None, UNMEASURED),
        total => (Some(total), MEASURED),
    };
    let style = ProgressStyle::with_template(template).expect("the template is fixed, and right");
    let (has_total, behind_percent) = (view.total_bytes > 0, view.behind_percent);
    let style = style.with_key("pace", move |state: &ProgressState, to: &mut dyn std::fmt::Write| {
        let left = if has_total { state.eta().as_secs_f64() } else { 0.0 };
        let elapsed = since_stage.seconds();
        let left = of_job(elapsed, left, behind_percent);
        // If the terminal cannot be written, nothing is shown, and the work continues.
        let _ = to.write_str(&pace(elapsed, state.per_sec(), left, "  "));
    });
    let target = ProgressDrawTarget::stderr_with_hz(10);
    ProgressBar::with_draw_target(length, target)
        .with_style(style.progress_chars("=> "))
        .with_prefix(place(view))
        .with_message(Cow::from(view.stage.clone()))
        // The rate does not count bytes from before the first look: the time that they took is unknown.
        .with_position(view.done_bytes)
}

fn place(view: &ProgressView) -> String {
    format!("[{}/{}]", view.stage_index, view.stages)
}

fn head(view: &ProgressView) -> String {
    format!("{} {}", place(view), view.stage)
}

fn line(view: &ProgressView, elapsed_seconds: f64) -> String {
    let (done, total) = (view.done_bytes, view.total_bytes);
    let per_second = if elapsed_seconds > 0.0 { done as f64 / elapsed_seconds } else { 0.0 };
    if total == 0 {
        return format!("{}: {}{}", head(view), traffic(done), pace(elapsed_seconds, per_second, 0.0, ", "));
    }
    let percent = done as f64 * 100.0 / total as f64;
    let left = if done == 0 { 0.0 } else { (total - done) as f64 / per_second };
    let pace = pace(elapsed_seconds, per_second, of_job(elapsed_seconds, left, view.behind_percent), ", ");
    format!("{}: {percent:.0} %, {} of {}{pace}", head(view), traffic(done), traffic(total))
}

/// The time left of all stages, if this one has this much left; 0 if that is not known.
fn of_job(elapsed_seconds: f64, left_seconds: f64, behind_percent: u64) -> f64 {
    if left_seconds == 0.0 {
        return 0.0;
    }
    left_seconds + (elapsed_seconds + left_seconds) * behind_percent as f64 / 100.0
}

/// The rate and the time left, each after `gap`; nothing at the beginning of a stage, when they are not known yet.
fn pace(elapsed_seconds: f64, bytes_per_second: f64, left_seconds: f64, gap: &str) -> String {
    if elapsed_seconds < PACE_AFTER_SECONDS {
        return String::new();
    }
    let rate = format!("{gap}{}/s", traffic(bytes_per_second as u64));
    let worth_it = left_seconds >= LEFT_SECONDS_MIN;
    if worth_it { format!("{rate}{gap}{} left", seconds(left_seconds)) } else { rate }
}

fn print_line(line: &str) {
    // If the output has no reader, the work continues.
    let _ = crate::print::say(&format!("{line}\n"), true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_how_fast_and_how_long_yet() {
        let mut view = ProgressView {
            stage: "read+distribute".into(),
            stage_index: 1,
            stages: 2,
            done_bytes: 250_000_000,
            total_bytes: 1_000_000_000,
            behind_percent: 0,
        };
        let expected = "[1/2] read+distribute: 25 %, 250 MB of 1.00 GB, 500 MB/s, 1.50 s left";
        assert_eq!(line(&view, 0.5), expected);
        // The stage will take 2 s, and those after it three times as long.
        view.behind_percent = 300;
        let expected = "[1/2] read+distribute: 25 %, 250 MB of 1.00 GB, 500 MB/s, 7.50 s left";
        assert_eq!(line(&view, 0.5), expected);
        view.total_bytes = 0;
        assert_eq!(line(&view, 0.5), "[1/2] read+distribute: 250 MB, 500 MB/s");
        view.done_bytes = 0;
        view.total_bytes = 10;
        assert_eq!(line(&view, 0.0), "[1/2] read+distribute: 0 %, 0 B of 10 B");
        assert_eq!(line(&view, 2.0), "[1/2] read+distribute: 0 %, 0 B of 10 B, 0 B/s");
    }

    /// Rates of 886 GB/s and `0s left` were once shown at the first look of a stage.
    #[test]
    fn nothing_is_foretold_before_there_is_anything_to_go_by() {
        assert_eq!(pace(0.0001, 886e9, 0.001, "  "), "");
        assert_eq!(pace(0.49, 1e9, 60.0, "  "), "");
        assert_eq!(pace(0.5, 1e9, 60.0, "  "), "  1.00 GB/s  60.0 s left");
        assert_eq!(pace(0.5, 1e9, 0.04, "  "), "  1.00 GB/s");
        // A stage that has not moved has no time left to show.
        assert_eq!(pace(0.5, 0.0, f64::from(0u8), "  "), "  0 B/s");
    }

    #[test]
    fn drawing_ends_when_told_and_when_the_verb_is_gone() {
        let progress = Arc::new(thalweg::Progress::default());
        for how in [interpret::Progress::Bar, interpret::Progress::Lines] {
            let shown = Shown::start(how, progress.clone()).expect("a thread can be had");
            progress.begin("one", 1, 2, 100);
            progress.advance(1000);
            shown.end(true);
            assert_eq!(Arc::strong_count(&progress), 1);
        }
        assert!(Shown::start(interpret::Progress::Off, progress.clone()).is_none());
    }
}
