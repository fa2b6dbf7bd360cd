//! Disk space: what the engine does before the disk is full.
//!
//! Promise: creates and updates are refused while there is still room to delete, compact and read,
//! and are accepted again when space is available. A reserve is kept allocated for this and freed
//! when space runs out.

use std::mem::discriminant;

use super::disk::{Disk, Space};

/// The name of the file that holds the reserve.
const RESERVE: &str = "RESERVE";

const MIB: u64 = 1 << 20;

/// Below this much free space a warning is logged: 15 % or 1 GiB, whichever is less.
fn soft(space: Space) -> u64 {
    (space.total / 100 * 15).min(1024 * MIB)
}

/// Below this much free space only deletes are accepted: 5 % or 256 MiB, whichever is less.
fn hard(space: Space) -> u64 {
    (space.total / 100 * 5).min(256 * MIB)
}

/// The size of the reserve for deletes and the cleaner: at most 64 MiB.
fn reserve(space: Space) -> u64 {
    hard(space) / 4
}

/// The state of the free space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Room {
    #[default]
    Unknown,
    Enough,
    /// A warning was logged.
    Low,
    /// Only deletes are accepted; so many bytes are free.
    Full {
        free: u64,
    },
}

impl Room {
    /// Reads the free space, or takes note that a write found none. If the state is another one,
    /// logs it, and allocates or releases the reserve.
    pub(super) fn look(&mut self, disk: &dyn Disk, ran_out: bool) {
        let space = match disk.space() {
            Ok(space) => space,
            Err(_) if ran_out => Space { free: 0, total: 0 },
            Err(_) => return,
        };
        let room = if ran_out { Room::Full { free: space.free } } else { next(*self, space) };
        self.enter(disk, room, space);
    }

    fn enter(&mut self, disk: &dyn Disk, room: Room, space: Space) {
        let before = std::mem::replace(self, room);
        if discriminant(&before) == discriminant(&room) {
            return;
        }
        let free_mib = space.free / MIB;
        match room {
            Room::Full { .. } => tracing::error!(
                free_mib,
                "the disk is nearly full; only deletes are accepted until space is freed"
            ),
            Room::Low => tracing::warn!(
                free_mib,
                "the disk is filling up; free space soon, or only deletes will be accepted"
            ),
            Room::Unknown | Room::Enough => {}
        }
        let done = match (room, disk.exists(RESERVE)) {
            (Room::Full { .. }, Ok(true)) => disk.remove(RESERVE),
            (Room::Full { .. }, exists) => exists.map(drop),
            _ => disk.allocate(RESERVE, reserve(space)),
        };
        if let Err(error) = done {
            tracing::warn!(%error, "cannot allocate or remove the file RESERVE");
        }
    }

    /// Why nothing but deletes is accepted, if so.
    pub(super) fn refusal(self) -> Option<String> {
        let Room::Full { free } = self else { return None };
        let free = free / MIB;
        Some(format!("the disk is nearly full ({free} MiB free); only deletes are accepted"))
    }
}

/// After a full disk, 1.5 times the reserve must be free in addition: the released reserve must not
/// count as free space.
fn next(now: Room, space: Space) -> Room {
    let enough = match now {
        Room::Full { .. } => hard(space) + reserve(space) / 2 * 3,
        _ => hard(space),
    };
    match space.free {
        free if free < enough => Room::Full { free },
        free if free < soft(space) => Room::Low,
        _ => Room::Enough,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::super::disk::Directory;
    use super::*;

    const TOTAL: u64 = 100 * 1024 * MIB;

    #[test]
    fn the_marks_are_shares_of_small_disks_and_sizes_on_large_ones() {
        check(Room::Enough, 2_000, Room::Enough);
        check(Room::Enough, 1_000, Room::Low);
        check(Room::Low, 256, Room::Low);
        check(Room::Low, 255, Room::Full { free: 255 * MIB });
        let small = Space { free: 10 * MIB, total: 100 * MIB };
        assert_eq!((soft(small) / MIB, hard(small) / MIB), (15, 5));
        assert_eq!(next(Room::Enough, small), Room::Low);
    }

    #[test]
    fn giving_up_the_reserve_does_not_count_as_room() {
        let full = Room::Full { free: 0 };
        check(full, 255 + 64, Room::Full { free: (255 + 64) * MIB });
        check(full, 256 + 96, Room::Low);
        check(full, 2_000, Room::Enough);
    }

    #[test]
    fn a_state_is_logged_once_while_the_free_space_changes() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Directory::lock(dir.path()).unwrap();
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let mut room = Room::Enough;
            for free in [100 * MIB, 90 * MIB, 80 * MIB] {
                room.enter(&disk, Room::Full { free }, Space { free, total: TOTAL });
            }
            assert!(room.refusal().unwrap().contains("80 MiB"));
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches("nearly full").count(), 1, "{text}");
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[track_caller]
    fn check(now: Room, free_mib: u64, expected: Room) {
        assert_eq!(next(now, Space { free: free_mib * MIB, total: TOTAL }), expected);
    }
}
