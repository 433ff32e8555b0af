//! A node's part in a sort on several nodes.
//!
//! Model: whoever asks talks to every node on a stream of its own, in the steps that `thalweg_api`'s `share` shows. When
//! all cuts are known, each node opens a stream to every other on the link that is kept with it, waits for theirs, and
//! runs.
//! Law: what whoever asked for has gone from, or what fails, leaves nothing behind. At most [`SORTS_MAX`] at once.
//! Non-goals: how a share is sorted; that is the facade's.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg::share::{Share, ShareOptions, Starts};
use thalweg::{Endpoint, Error, IoChoice, KeyPart, Layout, Progress, Result, Size, SortOptions};
use thalweg_api::{Edge, NodeRequest, ShareEnd, ShareSaid, ShareTold, SortShare, from_json, to_json};
use thalweg_base::clock::Stopwatch;
use thalweg_record::{pack_cuts, unpack_cuts};
use thalweg_river::{Inlet, Outlet, Reach};
use thalweg_transfer::{Streams, escaped, unescaped};
use thalweg_wire::{Incoming, Link, Outgoing};

use crate::daemon::{BLOCK_BYTES, Node};
use crate::pump::could_not;
use crate::talk::{Hearing, say};

/// The most sorts that a node takes part in at once.
const SORTS_MAX: usize = 16;
/// How long the streams of the other nodes may take to come.
const STREAMS_SECONDS: u64 = 10;
/// How often a node says how far it is.
const PROGRESS: Duration = Duration::from_millis(100);
/// How often somebody who waits looks whether to go on.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of the keys of all cuts.
const CUTS_BYTES: usize = 64 << 20;
/// In whose name a share is stopped.
const SIGTERM: i32 = 15;
/// What is put before why somebody gave up if he only follows somebody else.
pub(crate) const FOLLOWS: &str = "another node: ";

/// A stream of another node, and its link.
type Came = (Streams, Arc<Link>);

/// The sorts that a node takes part in, each with the streams that other nodes have opened.
#[derive(Default)]
pub(crate) struct Sorts {
    table: Mutex<HashMap<String, Vec<Option<Came>>>>,
    came: Condvar,
}

impl Sorts {
    /// A stream of a river has come.
    pub(crate) fn river(&self, job: &str, from: usize, streams: Streams, link: &Arc<Link>) {
        let mut table = self.table.lock().expect("no holder panics");
        match table.get_mut(job).and_then(|places| places.get_mut(from)).filter(|place| place.is_none()) {
            Some(place) => *place = Some((streams, Arc::clone(link))),
            None => drop(streams.0.abort("a stream of a sort that is not known here")),
        }
        self.came.notify_all();
    }

    fn begin(&self, request: &SortShare) -> Result<Place<'_>> {
        let (job, nodes) = (request.job.clone(), request.hosts.len());
        if request.index >= nodes {
            return Err(could_not(format!("node {} of {nodes} is none", request.index)));
        }
        let mut table = self.table.lock().expect("no holder panics");
        if table.len() >= SORTS_MAX {
            return Err(could_not(format!(
                "{SORTS_MAX} sorts go on here, as many as may; wait for one to end"
            )));
        }
        if table.insert(job.clone(), (0..nodes).map(|_| None).collect()).is_some() {
            return Err(could_not(format!("sort {job} goes on here already")));
        }
        Ok(Place { sorts: self, job })
    }
}

/// A sort's place in the table, as long as it lasts.
struct Place<'n> {
    sorts: &'n Sorts,
    job: String,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.sorts.table.lock().expect("no holder panics").remove(&self.job);
    }
}

impl Place<'_> {
    /// The streams of all other nodes, when they have come.
    fn streams(&self, request: &SortShare) -> Result<Vec<Option<Came>>> {
        let missing = |table: &HashMap<String, Vec<Option<Came>>>| -> Vec<usize> {
            let places = table[&self.job].iter().enumerate();
            places.filter(|(i, place)| place.is_none() && *i != request.index).map(|(i, _)| i).collect()
        };
        let table = self.sorts.table.lock().expect("no holder panics");
        let patience = Duration::from_secs(STREAMS_SECONDS);
        let waiting = |table: &mut HashMap<String, Vec<Option<Came>>>| !missing(table).is_empty();
        let (mut table, _) =
            self.sorts.came.wait_timeout_while(table, patience, waiting).expect("no holder panics");
        if let Some(first) = missing(&table).first() {
            let host = &request.hosts[*first];
            return Err(Error::Gone(format!("no stream of {host} came within {STREAMS_SECONDS} s")));
        }
        Ok(std::mem::take(table.get_mut(&self.job).expect("it is there until this goes")))
    }
}

/// Serves a stream on which a share is talked about, to its end.
pub(crate) fn serve(node: &Arc<Node>, link: &Link, request: &SortShare, (out, inc): (Outgoing, Incoming)) {
    let saying = Saying(Mutex::new(Some(out)));
    let mut hearing = match Hearing::new(inc, link.peer(), BLOCK_BYTES) {
        Ok(hearing) => hearing,
        Err(why) => return saying.give_up(&could_not(why)),
    };
    if let Err(why) = take_part(node, request, &saying, &mut hearing) {
        return saying.give_up(&why);
    }
    if let Some(mut out) = saying.0.into_inner().expect("no holder panics") {
        let _ = out.end(&[]);
    }
    // To want no more before the end would give the stream up.
    while let Ok(Some(_)) = hearing.next() {}
}

/// Says things from several threads.
struct Saying(Mutex<Option<Outgoing>>);

impl Saying {
    /// Gives the stream up, and says why.
    fn give_up(&self, why: &Error) {
        let Some(out) = self.0.lock().expect("no holder panics").take() else { return };
        let _ = match why {
            Error::Gone(why) => out.abort(&format!("{FOLLOWS}{why}")),
            why => out.abort(&why.to_string()),
        };
    }

    fn say(&self, said: &ShareSaid, behind: &[u8]) -> Result<()> {
        let mut out = self.0.lock().expect("no holder panics");
        let out = out.as_mut().ok_or_else(|| could_not("the stream was given up"))?;
        say(out, &to_json(said), behind).map_err(could_not)
    }
}

fn told(hearing: &mut Hearing) -> Result<(ShareTold, Vec<u8>)> {
    let (told, behind) =
        hearing.next().map_err(could_not)?.ok_or_else(|| could_not("whoever asked for the sort has gone"))?;
    Ok((from_json(&told).map_err(could_not)?, behind))
}

fn take_part(node: &Arc<Node>, request: &SortShare, saying: &Saying, hearing: &mut Hearing) -> Result<()> {
    let place = node.sorts.begin(request)?;
    let watch = Stopwatch::start();
    let share = Share::open(options_of(node, request)?)?;
    let (input_bytes, memory_bytes) = share.found();
    saying.say(&ShareSaid::Found { input_bytes, memory_bytes, rates: node.kept_rates() }, &[])?;
    let (ShareTold::Sample { memory_bytes, all_bytes }, _) = told(hearing)? else {
        return Err(could_not("first comes a sample"));
    };
    let (mut laid, mut sample) = share.sample(memory_bytes, all_bytes)?;
    let makes = request.index == 0 && !request.own_output;
    let shared = if makes { Some(word_of(&laid.make_shared()?)) } else { None };
    let packed = pack_cuts(&mut sample);
    drop(sample);
    saying.say(&ShareSaid::Sampled { pages: laid.pages(), shared }, &packed)?;
    let (ShareTold::Go { pages, range_bytes, shared }, cuts) = told(hearing)? else {
        return Err(could_not("after a sample come the cuts"));
    };
    let cuts = unpack_cuts(&cuts, CUTS_BYTES).ok_or_else(|| could_not("cuts that are none"))?;
    let river = u64::from_str_radix(request.job.get(..16).unwrap_or(""), 16).unwrap_or(0);
    let (ends, links) = join(node, request, &place, |to, from| {
        Ok(laid.bed(river, cuts, &pages)?.node(request.index, to, from)?)
    })?;
    let shared = shared.as_deref().map(path_of).transpose()?;
    let heard = Heard::default();
    let talk = Talk { node, saying, heard: &heard, watch: &watch, own: request.own_output };
    let (progress, written) = (Progress::default(), Progress::default());
    let (bytes, edges) = std::thread::scope(|scope| {
        scope.spawn(|| heard.hear_all(hearing, &progress));
        scope.spawn(|| talk.tell_progress(&progress, &written));
        let ran = laid.run(ends, (&pages, range_bytes), shared.as_deref(), &talk, (&progress, &written));
        let published = ran.and_then(|end| talk.done(end, &links));
        heard.stop();
        if let Err(why) = &published {
            // Ends the stream, and with it the thread that hears.
            saying.give_up(why);
        }
        published
    })?;
    laid.publish(bytes, edges)?;
    saying.say(&ShareSaid::Published, &[])
}

/// What was heard while a share runs.
#[derive(Default)]
struct Heard {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    start: Option<u64>,
    publish: Option<(u64, Vec<Edge>)>,
    /// Why nothing more will be heard.
    gone: Option<String>,
    stopped: bool,
    /// Seconds until the range had come.
    crossed_seconds: f64,
}

impl Heard {
    fn set(&self, what: impl FnOnce(&mut State)) {
        what(&mut self.state.lock().expect("no holder panics"));
        self.news.notify_all();
    }

    fn stop(&self) {
        self.set(|state| state.stopped = true);
    }

    /// Hears until it is told to publish, or nobody is there any more.
    fn hear_all(&self, hearing: &mut Hearing, progress: &Progress) {
        let gone = loop {
            match told(hearing) {
                Ok((ShareTold::Start(at), _)) => self.set(|state| state.start = Some(at)),
                Ok((ShareTold::Publish { bytes, edges }, _)) => {
                    return self.set(|state| state.publish = Some((bytes, edges)));
                }
                Ok(_) => break "what was said has another place".to_string(),
                Err(why) => break why.to_string(),
            }
        };
        progress.cancel(SIGTERM);
        self.set(|state| state.gone = Some(gone));
    }

    /// Waits for something to be heard; nothing if `go_on` says so, an error if nothing will be.
    fn wait<T>(
        &self,
        go_on: &dyn Fn() -> bool,
        mut what: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut state = self.state.lock().expect("no holder panics");
        while go_on() {
            if let Some(found) = what(&mut state) {
                return Ok(Some(found));
            }
            if let Some(gone) = &state.gone {
                return Err(could_not(gone));
            }
            state = self.news.wait_timeout(state, LOOK).expect("no holder panics").0;
        }
        Ok(None)
    }
}

/// A share that runs, and whoever asked for it.
#[derive(Clone, Copy)]
struct Talk<'a> {
    node: &'a Node,
    saying: &'a Saying,
    heard: &'a Heard,
    watch: &'a Stopwatch,
    /// Whether the output is the node's own, and begins where it begins.
    own: bool,
}

impl Starts for Talk<'_> {
    fn say(&self, bytes: u64) -> Result<()> {
        self.heard.set(|state| state.crossed_seconds = self.watch.seconds());
        self.saying.say(&ShareSaid::Range(bytes), &[])
    }

    fn wait(&self, go_on: &dyn Fn() -> bool) -> Result<Option<u64>> {
        if self.own { Ok(Some(0)) } else { self.heard.wait(go_on, |state| state.start) }
    }
}

impl Talk<'_> {
    fn tell_progress(&self, read: &Progress, written: &Progress) {
        let mut state = self.heard.state.lock().expect("no holder panics");
        while !state.stopped {
            let (waited, late) = self.heard.news.wait_timeout(state, PROGRESS).expect("no holder panics");
            state = waited;
            if late.timed_out() && !state.stopped {
                drop(state);
                let done = ShareSaid::Progress(read.view().done_bytes, written.view().done_bytes);
                let _ = self.saying.say(&done, &[]);
                state = self.heard.state.lock().expect("no holder panics");
            }
        }
    }

    /// Says that all is written, and waits until it is to have its name.
    fn done(&self, mut end: ShareEnd, links: &Links) -> Result<(u64, Vec<Edge>)> {
        end.node.host = self.node.name().to_string();
        end.node.link_bytes = links.bytes();
        end.node.seconds[1] = self.heard.state.lock().expect("no holder panics").crossed_seconds;
        self.saying.say(&ShareSaid::Done(Box::new(end)), &[])?;
        let told = self.heard.wait(&|| true, |state| state.publish.take())?;
        Ok(told.expect("nobody stops this"))
    }
}

/// The links with the other nodes, and what they had carried before.
struct Links(Vec<(Arc<Link>, (u64, u64))>);

impl Links {
    fn bytes(&self) -> (u64, u64) {
        let since = |(link, before): &(Arc<Link>, (u64, u64))| {
            let now = link.bytes();
            (now.0 - before.0, now.1 - before.1)
        };
        self.0.iter().map(since).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }
}

/// Opens a stream to every other node and waits for theirs. `build` makes the ends of the river of them: how outlets
/// are reached, and how inlets are.
fn join(
    node: &Arc<Node>,
    request: &SortShare,
    place: &Place<'_>,
    build: impl FnOnce(Vec<Reach>, Vec<Reach>) -> Result<(Inlet, Outlet)>,
) -> Result<((Inlet, Outlet), Links)> {
    let mut links: Vec<Arc<Link>> = Vec::new();
    let mut to = Vec::with_capacity(request.hosts.len());
    let river = to_json(&NodeRequest::River { job: request.job.clone(), from: request.index });
    for (i, host) in request.hosts.iter().enumerate() {
        if i == request.index {
            to.push(Reach::Here);
            continue;
        }
        let link = node.link_with(host).map_err(|why| Error::Gone(why.to_string()))?;
        let (out, inc) = link.open(river.as_bytes()).map_err(|why| Error::Gone(why.to_string()))?;
        to.push(Reach::Stream(out, inc));
        links.push(link);
    }
    let mut from = Vec::with_capacity(request.hosts.len());
    for came in place.streams(request)? {
        from.push(match came {
            Some(((out, inc), link)) => {
                links.push(link);
                Reach::Stream(out, inc)
            }
            None => Reach::Here,
        });
    }
    links.sort_by_key(Arc::as_ptr);
    links.dedup_by(|a, b| Arc::ptr_eq(a, b));
    let with_bytes = |link: Arc<Link>| {
        let bytes = link.bytes();
        (link, bytes)
    };
    let links = Links(links.into_iter().map(with_bytes).collect());
    Ok((build(to, from)?, links))
}

/// A path as a word.
pub(crate) fn word_of(path: &Path) -> String {
    escaped(path.as_os_str().as_bytes())
}

fn path_of(word: &str) -> Result<PathBuf> {
    let bytes = unescaped(word).ok_or_else(|| could_not(format!("'{word}' is no path")))?;
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

/// What was asked, made definite on this host.
fn options_of(node: &Node, request: &SortShare) -> Result<ShareOptions> {
    let paths = |words: &[String]| words.iter().map(|word| path_of(word)).collect::<Result<Vec<PathBuf>>>();
    let here = |path: PathBuf| node.data().join(path);
    let mut inputs = paths(&request.inputs)?;
    if request.own_inputs {
        let found = inputs.into_iter().map(|pattern| matching(&here(pattern)));
        inputs = found.collect::<Result<Vec<_>>>()?.concat();
    }
    let mut output = path_of(&request.output)?;
    if request.own_output {
        let width = (request.hosts.len() - 1).to_string().len();
        let number = format!("{:0width$}", request.index);
        output = here(path_of(&request.output.replace("{}", &number))?);
    }
    let part = |&(offset, length, descending): &(u32, u32, bool)| KeyPart { offset, length, descending };
    Ok(ShareOptions {
        sort: SortOptions {
            inputs: inputs.into_iter().map(Endpoint::Path).collect(),
            output: Endpoint::Path(output),
            layout: request.record.map_or(Layout::Lines, Layout::Fixed),
            keys: request.keys.iter().map(part).collect(),
            memory: None,
            scratch: paths(&request.scratch)?.into_iter().map(here).collect(),
            scratch_limit: request.scratch_limit.map(Size::Bytes),
            threads: request.threads,
            nodes: 1,
            unique: request.unique,
            resume: false,
            io: IoChoice::Auto,
            proof: true,
        },
        node: (request.index, request.hosts.len()),
        own_inputs: request.own_inputs,
        own_output: request.own_output,
    })
}

/// The files that a pattern means, in the order of their names.
fn matching(pattern: &Path) -> Result<Vec<PathBuf>> {
    let shown = pattern.display();
    let no_text = || could_not(format!("{shown} is no text, and a pattern must be"));
    let text = pattern.to_str().ok_or_else(no_text)?;
    if !text.contains(['*', '?', '[']) {
        return Ok(vec![pattern.to_path_buf()]);
    }
    let found = glob::glob(text).map_err(|why| could_not(format!("{shown} is no pattern: {why}")))?;
    let found: Vec<PathBuf> = found.collect::<std::result::Result<_, _>>().map_err(could_not)?;
    if found.is_empty() {
        return Err(could_not(format!("nothing matches {shown}; check the name")));
    }
    Ok(found)
}
