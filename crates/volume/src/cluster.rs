//! Volumes on the nodes of a cluster: made, opened, and removed by a client.
//!
//! Invariant: a volume that could not be made everywhere is removed everywhere. If several nodes have stores, the two
//! copies of a strip are on two of them.
//! Non-goals: what the nodes do; see service.rs.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use thalweg_api::{
    JobVolume, ServiceRequest, VolumeChange, VolumeCluster, VolumeDestroyed, VolumeEntry, VolumeRequest,
    VolumeWork,
};
use thalweg_io::process;
use thalweg_wire::{Host, Id, message};

use crate::alone::{Alone, OpenAlone, OpenVolume, UNFINISHED, Watch};
use crate::attach::Attachment;
use crate::callers::Turns;
use crate::client::Client;
use crate::forward::Forward;
use crate::layout::Policy;
use crate::location::{Location, apart};
use crate::manager::{Change, ROOT};
use crate::managers::IN_USE;
use crate::registry::{Registry, part};
use crate::remote::{Dial, Links, RemoteManager, RemoteStore, number};
use crate::store::Store;
use crate::stores::{Slot, Stores};
use crate::{Error, Result, Volume, VolumeFs, place};

/// The cluster of a new volume.
#[derive(Debug, Clone, Copy)]
pub struct OfCluster<'a> {
    /// The directory of the client's identity.
    pub identity: &'a Path,
    /// The name that the cluster should have, if one was given.
    pub name: Option<&'a str>,
    /// The clients that may use the volume; all clients if this is empty.
    pub clients: &'a [String],
}

/// Makes a volume with a store in each of these directories of nodes. Its manager is in the first of them, unless
/// another is given. With copies, the order of slots puts neighbours on different nodes.
pub fn create_on_nodes(
    registry: &Registry,
    cluster: OfCluster<'_>,
    name: &str,
    (stores, manager): (&[Location], Option<&Location>),
    policy: &Policy,
) -> Result<()> {
    let Some(first) = stores.first() else {
        return Err(Error::Refused("a volume has at least one store; give --stores NODE:/DIR,...".into()));
    };
    let mut sorted = stores.to_vec();
    sorted.sort();
    if let Some(twice) = sorted.windows(2).find(|two| two[0] == two[1]) {
        let place = &twice[0];
        return Err(Error::Refused(format!("{place} is given twice; each store has a directory of its own")));
    }
    policy.check(stores.len() as u32)?;
    let slots = apart(stores).unwrap_or_else(|| stores.to_vec());
    check_apart(&slots, policy)?;
    let client = thalweg_wire::Client::load_named(cluster.identity, cluster.name).map_err(refused)?;
    let manager = manager.unwrap_or(first);
    let nodes: Vec<String> = slots.iter().chain([manager]).map(|place| place.node.clone()).collect();
    client.hosts(&nodes).map_err(refused)?;
    let known = &client.file().clients;
    if let Some(unknown) =
        cluster.clients.iter().find(|name| known.iter().all(|client| client.name != **name))
    {
        let of = &client.file().name;
        return Err(Error::Refused(format!(
            "cluster {of} has no client '{unknown}'; thalweg cluster client {unknown} makes one"
        )));
    }
    let volume = Id(place::new_number()).to_string();
    let below = |place: &Location, what| -> Result<String> {
        let directory = place.directory.join(part(name, what)?);
        Ok(Location { node: place.node.clone(), directory }.to_string())
    };
    let identity = std::path::absolute(cluster.identity).map_err(refused)?;
    let entry = VolumeEntry {
        name: name.into(),
        cluster: Some(VolumeCluster {
            name: client.file().name.clone(),
            identity: identity.to_string_lossy().into_owned(),
            volume: volume.clone(),
        }),
        manager: below(manager, "manager")?,
        stores: slots.iter().map(|place| below(place, "store")).collect::<Result<_>>()?,
        clients: cluster.clients.to_vec(),
    };
    let links = Links::new(client);
    let made_by = entry.clone();
    let mut made = Vec::new();
    let added = registry.add(entry, || make(&links, &made_by, (&slots, manager), policy, &mut made));
    if added.is_err() {
        // The first error is returned; what cannot be removed is left.
        made.iter().for_each(|(place, slot)| _ = remove(&links, place, &volume, *slot));
    }
    added
}

/// Makes the parts of a volume on the nodes, and adds each to the list of what was made.
fn make(
    links: &Links,
    entry: &VolumeEntry,
    (slots, manager): (&[Location], &Location),
    policy: &Policy,
    made: &mut Vec<(String, Option<u32>)>,
) -> Result<()> {
    let name = entry.name.clone();
    let volume = of(entry).volume.clone();
    for (slot, place) in (0..).zip(slots) {
        let directory = place.directory.display().to_string();
        let (name, volume, clients) = (name.clone(), volume.clone(), entry.clients.clone());
        ask(links, &place.node, VolumeChange::MakeStore { name, directory, volume, slot, clients })?;
        made.push((entry.stores[slot as usize].clone(), Some(slot)));
    }
    let (user, group) = process::user_and_group();
    let directory = manager.directory.display().to_string();
    let (stores, layout, clients) = (entry.stores.clone(), (*policy).into(), entry.clients.clone());
    let request = VolumeChange::MakeManager { name, directory, volume, stores, layout, user, group, clients };
    ask(links, &manager.node, request)?;
    made.push((entry.manager.clone(), None));
    Ok(())
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::Refused(why.to_string())
}

fn ask(dial: &dyn Dial, node: &str, change: VolumeChange) -> Result<()> {
    message::ask(&*dial.link(node)?, &VolumeRequest::Change(change).text()).map(drop).map_err(refused)
}

fn remove(links: &dyn Dial, place: &str, volume: &str, slot: Option<u32>) -> Result<()> {
    let Location { node, directory } = Location::needed(place)?;
    let directory = directory.display().to_string();
    ask(links, &node, VolumeChange::Remove { directory, volume: volume.into(), slot })
}

fn of(entry: &VolumeEntry) -> &VolumeCluster {
    entry.cluster.as_ref().expect("the volume is on a cluster")
}

fn links(entry: &VolumeEntry) -> Result<Links> {
    let VolumeCluster { name, identity, .. } = of(entry);
    let client = thalweg_wire::Client::load_named(Path::new(identity), Some(name));
    client.map(Links::new).map_err(refused)
}

/// An error if the layout puts two copies of a strip on one node although several nodes have stores.
pub(crate) fn check_apart(slots: &[Location], policy: &Policy) -> Result<()> {
    let is_one_node = slots.iter().all(|slot| slot.node == slots[0].node);
    let is_apart = || apart(slots).is_some_and(|ordered| ordered == slots);
    if policy.copies < 2 || is_one_node || is_apart() {
        return Ok(());
    }
    Err(Error::Refused(
        "with --copies 2 no node may have more than half of the stores, so that the two copies of a strip are on two nodes"
            .into(),
    ))
}

/// Opens a volume of a cluster, for this work on it, if any.
pub(crate) fn open(mut entry: VolumeEntry, work: Option<VolumeWork>) -> Result<OpenVolume> {
    let dial: Arc<dyn Dial> = Arc::new(links(&entry)?);
    let watch = Watch::default();
    let volume = open_by(&dial, &mut entry, (work, false), &watch)?;
    Ok(OpenVolume { volume, entry, watch })
}

/// Opens a volume as a node, for a job in which the node takes part.
pub fn open_on_node(host: &Arc<Host>, volume: &JobVolume) -> Result<VolumeFs> {
    let JobVolume { name, volume, manager } = volume.clone();
    let cluster = Some(VolumeCluster { name: String::new(), identity: String::new(), volume });
    let mut entry = VolumeEntry { name, cluster, manager, stores: Vec::new(), clients: Vec::new() };
    let (dial, watch): (Arc<dyn Dial>, _) = (Arc::new(Arc::clone(host)), Watch::default());
    let volume = open_by(&dial, &mut entry, (None, true), &watch)?;
    Ok(VolumeFs::new(OpenVolume { volume, entry, watch }))
}

/// Opens a volume exclusively, for work on its stores.
pub(crate) fn open_alone(mut entry: VolumeEntry, work: VolumeWork) -> Result<OpenAlone> {
    let dial: Arc<dyn Dial> = Arc::new(links(&entry)?);
    let volume = open_by(&dial, &mut entry, (Some(work), false), &Watch::default())?;
    let (name, clients) = (entry.name.clone(), entry.clients.clone());
    let alone = OnNodes { name, volume: of(&entry).volume.clone(), clients, dial };
    Ok(OpenAlone { volume, entry, alone: Box::new(alone) })
}

/// Opens a volume; the manager knows where the stores are.
pub(crate) fn open_by(
    dial: &Arc<dyn Dial>,
    entry: &mut VolumeEntry,
    (work, for_job): (Option<VolumeWork>, bool),
    watch: &Watch,
) -> Result<Arc<Volume>> {
    let (name, place) = (entry.name.clone(), Location::needed(&entry.manager)?);
    let turns = Turns::new();
    let manager = RemoteManager { dial: Arc::clone(dial), name, place, work, for_job, turns };
    let (attachment, _) = Attachment::by(Box::new(manager), &entry.name)?;
    let client = Client::by(attachment);
    entry.stores = client.slots()?.iter().map(|place| place.to_string_lossy().into_owned()).collect();
    let stores = remote_stores(dial, entry, watch)?;
    let forwards = stores.iter().map(|store| Arc::clone(store) as Arc<dyn Forward>).collect();
    Ok(Volume::of(client, Arc::new(Stores::new(slots(&stores)).balanced().forwarding(forwards))))
}

/// The stores of a volume; `watch` is told when one is lost or back.
fn remote_stores(dial: &Arc<dyn Dial>, entry: &VolumeEntry, watch: &Watch) -> Result<Vec<Arc<RemoteStore>>> {
    let volume = number(&of(entry).volume)?;
    let places = entry.stores.iter().map(|place| Location::needed(place)).collect::<Result<Vec<_>>>()?;
    let nodes: BTreeSet<&String> = places.iter().map(|place| &place.node).collect();
    let peers: Vec<String> = nodes.into_iter().cloned().collect();
    let store = |(slot, place)| {
        Arc::new(RemoteStore::new(dial, place, (volume, slot), (&peers, Turns::new()), watch))
    };
    Ok((0..).zip(&places).map(store).collect())
}

fn slots(stores: &[Arc<RemoteStore>]) -> Vec<Slot> {
    stores.iter().map(|store| Ok(Arc::clone(store) as Arc<dyn Store>)).collect()
}

/// The stores of a volume at the places that the registry has.
pub(crate) fn stores_alone(entry: &VolumeEntry) -> Result<Vec<Slot>> {
    let dial: Arc<dyn Dial> = Arc::new(links(entry)?);
    Ok(slots(&remote_stores(&dial, entry, &Watch::default())?))
}

/// Makes and removes stores on nodes. The session with the manager keeps other clients from the volume.
struct OnNodes {
    name: String,
    volume: String,
    /// The clients that may use the volume.
    clients: Vec<String>,
    dial: Arc<dyn Dial>,
}

impl Alone for OnNodes {
    fn directory(&self, place: &Path) -> Result<String> {
        let Some(Location { node, directory }) = Location::of(place) else {
            return Err(Error::Refused(format!("{} is on no node; write NODE:/DIR", place.display())));
        };
        Ok(Location { node, directory: directory.join(part(&self.name, "store")?) }.to_string())
    }

    fn make(&self, directory: &str, slot: u32) -> Result<Arc<dyn Store>> {
        let place = Location::needed(directory)?;
        let parent = place.directory.parent().unwrap_or(&place.directory).display().to_string();
        let (name, volume, clients) = (self.name.clone(), self.volume.clone(), self.clients.clone());
        let change = VolumeChange::MakeStore { name, directory: parent, volume, slot, clients };
        ask(&*self.dial, &place.node, change)?;
        let volume = number(&self.volume)?;
        let of = (volume, slot);
        Ok(Arc::new(RemoteStore::new(&self.dial, &place, of, (&[], Turns::new()), &Watch::default())))
    }

    fn remove(&self, directory: &str, slot: u32) -> Result<()> {
        remove(&*self.dial, directory, &self.volume, Some(slot))
    }

    fn copy_manager(&self, _from: &str, _to: &str) -> Result<Option<String>> {
        Ok(None)
    }

    fn remove_manager(&self) -> Result<()> {
        Ok(())
    }

    fn give(&self, volume: Arc<Volume>, slot: u32, directory: &str) -> Result<()> {
        volume.manager.change(&Change::Slot(slot, directory.into()))?;
        volume.manager.change(&Change::SetAttribute(ROOT, UNFINISHED.into(), None)).map(drop)
    }
}

/// Goes on with a manager that was restored from a backup, copied or moved.
pub(crate) fn adopt(entry: &VolumeEntry) -> Result<()> {
    let Location { node, directory } = Location::needed(&entry.manager)?;
    let (directory, volume) = (directory.display().to_string(), of(entry).volume.clone());
    ask(&links(entry)?, &node, VolumeChange::Adopt { directory, volume })
}

/// Removes the parts of a volume: first the manager, unless it is in use; then the stores. What could not be removed is
/// left, and the volume is forgotten. With `force`, the manager may be among that.
pub(crate) fn destroy(entry: &VolumeEntry, force: bool) -> Result<VolumeDestroyed> {
    let links = links(entry)?;
    let volume = &of(entry).volume;
    let mut told =
        VolumeDestroyed { name: entry.name.clone(), forgotten: true, ..VolumeDestroyed::default() };
    match remove(&links, &entry.manager, volume, None) {
        Ok(()) => told.manager = Some(entry.manager.clone()),
        // Its clients are there, and so is the manager.
        Err(why) if !force && why.to_string().ends_with(IN_USE) => {
            return Err(place::if_mounted(why, &entry.name));
        }
        Err(why) if !force => {
            return Err(Error::Refused(format!(
                "{why}; if {} is gone for good, thalweg volume destroy {} --force removes what is left and forgets the volume",
                entry.manager, entry.name
            )));
        }
        Err(why) => told.left.push(format!("the manager in {} is left: {why}", entry.manager)),
    }
    for (slot, place) in (0..).zip(&entry.stores) {
        match remove(&links, place, volume, Some(slot)) {
            Ok(()) => told.stores.push(place.clone()),
            Err(why) => told.left.push(format!(
                "the store in {place} is left: {why}; remove that directory on its node by hand"
            )),
        }
    }
    Ok(told)
}
