//! Size ranges with saturating arithmetic; the largest number means "unlimited".

/// The minimum and maximum number of characters, bytes, elements or entries of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

pub(crate) const UNKNOWN: Size = Size { min: 0, max: u64::MAX };
pub(crate) const ONE: Size = Size { min: 1, max: 1 };

impl Size {
    pub(crate) const NOTHING: Size = Size { min: 0, max: 0 };

    pub(crate) fn exactly(size: u64) -> Size {
        Size { min: size, max: size }
    }

    /// The range that covers both.
    pub(crate) fn or(self, other: Size) -> Size {
        Size { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    pub(crate) fn plus(self, other: Size) -> Size {
        let (min, max) = (self.min.saturating_add(other.min), self.max.saturating_add(other.max));
        Size { min, max }
    }

    pub(crate) fn times(self, other: Size) -> Size {
        let (min, max) = (self.min.saturating_mul(other.min), self.max.saturating_mul(other.max));
        Size { min, max }
    }
}

/// The sizes of the keys and values of a constructed value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntrySize {
    pub(crate) is_list: bool,
    pub(crate) key: Size,
    pub(crate) value: Size,
}

impl EntrySize {
    /// The range that covers both.
    pub(crate) fn or(self, other: EntrySize) -> EntrySize {
        let (key, value) = (self.key.or(other.key), self.value.or(other.value));
        EntrySize { is_list: self.is_list, key, value }
    }
}

/// A fraction of a size, rounded up; saturating.
pub(crate) fn scaled(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}
