//! The place of a part of a volume on a node of a cluster: `NODE:/DIR`.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A directory of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// The node's name in its cluster.
    pub node: String,
    /// The directory there, an absolute path.
    pub directory: PathBuf,
}

impl Location {
    /// Parses `NODE:/DIR`; `None` for a path of this machine.
    pub fn of(text: &Path) -> Option<Location> {
        let (node, directory) = text.to_str()?.split_once(':')?;
        let is_one = thalweg_wire::is_host_name(node) && directory.starts_with('/');
        is_one.then(|| Location { node: node.into(), directory: directory.into() })
    }

    /// Parses `NODE:/DIR`; an error for anything else.
    pub(crate) fn needed(text: &str) -> Result<Location> {
        Location::of(Path::new(text)).ok_or_else(|| Error::Refused(format!("'{text}' is not NODE:/DIR")))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.node, self.directory.display())
    }
}

/// An order of the slots in which no two neighbours are on one node, where the last and the first count as neighbours:
/// the given order if possible; `None` if there is none. Copies of a strip lie in neighbouring slots.
pub(crate) fn apart(stores: &[Location]) -> Option<Vec<Location>> {
    let is_apart = |stores: &[Location]| {
        stores.len() < 2 || (0..stores.len()).all(|i| stores[i].node != stores[(i + 1) % stores.len()].node)
    };
    if is_apart(stores) {
        return Some(stores.to_vec());
    }
    let count = |node: &str| stores.iter().filter(|store| store.node == node).count();
    let mut by_node: Vec<&Location> = stores.iter().collect();
    // The slots of each node in a run, the fullest node first; they fill every second place, then those between.
    by_node.sort_by(|a, b| count(&b.node).cmp(&count(&a.node)).then_with(|| a.node.cmp(&b.node)));
    let places = (0..stores.len()).step_by(2).chain((1..stores.len()).step_by(2));
    let mut ordered: Vec<(usize, &Location)> = places.zip(by_node).collect();
    ordered.sort_by_key(|(place, _)| *place);
    let ordered: Vec<Location> = ordered.into_iter().map(|(_, store)| store.clone()).collect();
    is_apart(&ordered).then_some(ordered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stores(nodes: &str) -> Vec<Location> {
        let of = |(i, node): (usize, char)| Location { node: node.into(), directory: format!("/{i}").into() };
        nodes.chars().enumerate().map(of).collect()
    }

    #[test]
    fn what_is_on_a_node_has_a_name_before_its_path() {
        let of = |text: &str| Location::of(Path::new(text)).map(|location| location.to_string());
        assert_eq!(of("n1:/d/1").as_deref(), Some("n1:/d/1"));
        for here in ["/d1", "d1", "n1:d1", "a/b:/c", ":/d", "n1"] {
            assert_eq!(of(here), None, "{here}");
        }
    }

    #[test]
    fn neighbours_are_on_different_nodes_where_that_can_be() {
        for nodes in ["abc", "ab", "a", "aabb", "aaabbb", "aabbc", "aaabbbcc", "abbcca", "aabbccd"] {
            let given = stores(nodes);
            let mut ordered = apart(&given).unwrap();
            let order: String = ordered.iter().map(|store| store.node.clone()).collect();
            let next = order.chars().cycle().skip(1);
            assert!(nodes.len() < 2 || order.chars().zip(next).all(|(a, b)| a != b), "{nodes}: {order}");
            ordered.sort_by(|a, b| a.directory.cmp(&b.directory));
            assert_eq!(ordered, given, "each is there once");
        }
        for nodes in ["aab", "aa", "aaabb"] {
            assert_eq!(apart(&stores(nodes)), None, "{nodes}");
        }
    }
}
