//! Sizes: between which bounds they are. Nothing overflows; the largest number means "no bound".

/// How many characters, bytes, elements or entries a value has at least and at most.
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

    /// That of either.
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

/// What the keys and values of something that was made are like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) is_list: bool,
    pub(super) key: Size,
    pub(super) value: Size,
}

impl Entry {
    /// That of either.
    pub(super) fn or(self, other: Entry) -> Entry {
        let (key, value) = (self.key.or(other.key), self.value.or(other.value));
        Entry { is_list: self.is_list, key, value }
    }
}

/// So much of a size, rounded up. Converting a float saturates.
pub(super) fn scaled(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}
