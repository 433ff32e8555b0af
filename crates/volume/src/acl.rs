//! POSIX access control lists (ACLs): who else may access a file than its owner and group.
//!
//! Model: a list has the form that setxattr(2) takes. The permissions of its owner, of its mask (or of the group, if there
//! is no mask) and of others are the permission bits of the file, so a change of either changes the other. A list that
//! says no more than the bits is not kept. A directory may also have a default list, which what is made there inherits.
//! Non-goals: enforcement, which the kernel does for the programs of a mount.

/// The extended attribute with a file's list.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The extended attribute with a directory's default list.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
/// The tags of entries, in the order in which a list has them.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const NAMED_GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The number in entries for no user or group of their own.
const NOBODY: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    /// Read, write and execute, as in a digit of the permission bits.
    may: u16,
    id: u32,
}

/// A list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// The list in the value of an extended attribute; `None` if the kernel would not take it.
    pub(crate) fn read(value: &[u8]) -> Option<Acl> {
        let (version, entries) = value.split_first_chunk::<4>()?;
        let (entries, []) = entries.as_chunks::<8>() else { return None };
        let entry = |[t0, t1, m0, m1, id @ ..]: &[u8; 8]| Entry {
            tag: u16::from_le_bytes([*t0, *t1]),
            may: u16::from_le_bytes([*m0, *m1]),
            id: u32::from_le_bytes(*id),
        };
        let acl = Acl(entries.iter().map(entry).collect());
        (u32::from_le_bytes(*version) == VERSION && acl.is_sound()).then_some(acl)
    }

    /// The value of the extended attribute.
    pub(crate) fn value(&self) -> Vec<u8> {
        let entry = |entry: &Entry| {
            let Entry { tag, may, id } = *entry;
            [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let entries = self.0.iter().flat_map(entry);
        VERSION.to_le_bytes().into_iter().chain(entries).collect()
    }

    /// Whether each entry is there that must be, once, in order; named users and groups need a mask.
    fn is_sound(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let is_named = |entry: &Entry| matches!(entry.tag, USER | NAMED_GROUP);
        let masks = count(MASK);
        [OWNER, GROUP, OTHER].iter().all(|tag| count(*tag) == 1)
            && (masks == 1 || masks == 0 && !self.0.iter().any(is_named))
            && self.0.iter().all(|entry| {
                let is_known = matches!(entry.tag, OWNER | USER | GROUP | NAMED_GROUP | MASK | OTHER);
                is_known && entry.may <= 7 && (!is_named(entry) || entry.id != NOBODY)
            })
            && self.0.is_sorted_by(|one, next| {
                one.tag < next.tag || is_named(one) && one.tag == next.tag && one.id < next.id
            })
    }

    /// The permission of the group class: of the mask, or of the group if there is no mask.
    fn of_class(&self, tag: u16) -> u16 {
        let has_mask = self.0.iter().any(|entry| entry.tag == MASK);
        let tag = if tag == GROUP && has_mask { MASK } else { tag };
        self.0.iter().find(|entry| entry.tag == tag).map_or(0, |entry| entry.may)
    }

    /// The permission bits of a file with this list.
    pub(crate) fn mode(&self) -> u32 {
        let [owner, group, other] = [OWNER, GROUP, OTHER].map(|tag| u32::from(self.of_class(tag)));
        owner << 6 | group << 3 | other
    }

    /// Whether it says no more than the permission bits.
    pub(crate) fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The list after the permission bits were set.
    pub(crate) fn with_mode(&self, mode: u32) -> Acl {
        let [owner, group, other] = [mode >> 6, mode >> 3, mode].map(|bits| bits as u16 & 7);
        self.with_classes(owner, group, other)
    }

    /// The list of what is made, with these permission bits, in a directory whose default list this is.
    pub(crate) fn inherited(&self, mode: u32) -> Acl {
        let both = self.mode() & mode;
        self.with_mode(both)
    }

    fn with_classes(&self, owner: u16, group: u16, other: u16) -> Acl {
        let has_mask = self.0.iter().any(|entry| entry.tag == MASK);
        let changed = |entry: &Entry| {
            let may = match entry.tag {
                OWNER => owner,
                MASK => group,
                GROUP if !has_mask => group,
                OTHER => other,
                _ => entry.may,
            };
            Entry { may, ..*entry }
        };
        Acl(self.0.iter().map(changed).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        Acl(entries.iter().map(|(tag, may, id)| Entry { tag: *tag, may: *may, id: *id }).collect()).value()
    }

    const NAMED: [(u16, u16, u32); 6] = [
        (OWNER, 7, NOBODY),
        (USER, 6, 1000),
        (USER, 4, 65534),
        (GROUP, 5, NOBODY),
        (MASK, 6, NOBODY),
        (OTHER, 1, NOBODY),
    ];

    #[test]
    fn a_list_and_permission_bits_say_the_same() {
        let named = Acl::read(&acl(&NAMED)).unwrap();
        assert_eq!((named.mode(), named.is_minimal()), (0o761, false));
        assert_eq!(named.value(), acl(&NAMED));
        let changed = named.with_mode(0o640);
        // The mask changes, not the group.
        assert_eq!((changed.mode(), changed.0[3].may), (0o640, 5));
        assert_eq!(named.inherited(0o666).mode(), 0o660);
        let minimal = Acl::read(&acl(&[(OWNER, 7, NOBODY), (GROUP, 5, NOBODY), (OTHER, 0, NOBODY)])).unwrap();
        assert_eq!((minimal.mode(), minimal.is_minimal()), (0o750, true));
        assert_eq!(minimal.with_mode(0o604).mode(), 0o604);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let mut wrong = vec![vec![], VERSION.to_le_bytes().to_vec(), acl(&NAMED)[..20].to_vec()];
        let change = |at: usize, entry| {
            let mut entries = NAMED;
            entries[at] = entry;
            acl(&entries)
        };
        wrong.push(change(0, (OWNER, 8, NOBODY)));
        wrong.push(change(1, (USER, 6, 65534)));
        wrong.push(change(2, (USER, 6, 999)));
        wrong.push(change(4, (0x40, 6, NOBODY)));
        wrong.push(change(5, (MASK, 6, NOBODY)));
        wrong.push(acl(&[NAMED[0], NAMED[1], NAMED[3], NAMED[5]]));
        let mut old = acl(&NAMED);
        old[0] = 1;
        wrong.push(old);
        for value in wrong {
            assert_eq!(Acl::read(&value), None, "{value:?}");
        }
    }
}
