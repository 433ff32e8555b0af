//! System calls shared by the two real back ends.
