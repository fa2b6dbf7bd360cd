//! Size ranges with saturating arithmetic; the largest number means "unlimited".

/// The minimum and maximum number of characters, bytes, elements or entries of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) min: u64,
    pub(super) max: u64,
}

pub(super) const UNKNOWN: Size = Size { min: 0, max: u64::MAX };
pub(super) const ONE: Size = Size { min: 1, max: 1 };

impl Size {
    pub(super) const NOTHING: Size = Size { min: 0, max: 0 };

    pub(super) fn exactly(size: u64) -> Size {
        Size { min: size, max: size }
    }

    /// The range that covers both.
    pub(super) fn or(self, other: Size) -> Size {
        Size { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    pub(super) fn plus(self, other: Size) -> Size {
        let (min, max) = (self.min.saturating_add(other.min), self.max.saturating_add(other.max));
        Size { min, max }
    }

    pub(super) fn times(self, other: Size) -> Size {
        let (min, max) = (self.min.saturating_mul(other.min), self.max.saturating_mul(other.max));
        Size { min, max }
    }
}

/// The sizes of the keys and values of a constructed value.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntrySize {
    pub(super) is_list: bool,
    pub(super) key: Size,
    pub(super) value: Size,
}

impl EntrySize {
    /// The range that covers both.
    pub(super) fn or(self, other: EntrySize) -> EntrySize {
        let (key, value) = (self.key.or(other.key), self.value.or(other.value));
        EntrySize { is_list: self.is_list, key, value }
    }
}

/// A fraction of a size, rounded up; saturating.
pub(super) fn scaled(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}
