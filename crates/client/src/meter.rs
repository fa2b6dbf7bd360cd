//! Measures what a decoded object costs: a decoder that counts what the types allocate.
//!
//! River: beside the decoder; one object in many is measured, for the memory estimate.
//! Promise: it decodes like the plain decoder; the figure follows the allocator's rounding, the
//! capacity of vectors and the node size of maps, and is an estimate all the same.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// What a value costs beyond its own size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) bytes: usize,
    pub(crate) allocations: usize,
}

/// The cost of the value that `text` decodes to.
pub(crate) fn measure<T: for<'de> Deserialize<'de>>(text: &str) -> Result<Cost, serde_json::Error> {
    let tally = RefCell::new(Cost { bytes: size_of::<T>() + 16, allocations: 0 });
    let mut deserializer = serde_json::Deserializer::from_str(text);
    T::deserialize(Meter { inner: &mut deserializer, tally: &tally })?;
    Ok(tally.into_inner())
}

impl Cost {
    /// One allocation, with the allocator's own overhead.
    fn allocate(&mut self, bytes: usize) {
        if bytes > 0 {
            self.allocations += 1;
            self.bytes += (bytes + 8).next_multiple_of(16).max(32);
        }
    }

    /// A vector that was made as long as it is.
    fn exact(&mut self, len: usize, element: usize) {
        self.allocate(len * element);
    }

    /// A vector that grew by doubling.
    fn grown(&mut self, len: usize, element: usize) {
        if len > 0 {
            let first = if element <= 1024 { 4 } else { 1 };
            let capacity = first.max(len.next_power_of_two());
            self.allocate(capacity * element);
        }
    }

    /// A B-tree map: leaves of eleven pairs, a little more than half full when there are many.
    fn map(&mut self, len: usize, pair: usize) {
        let leaves = if len <= 11 { usize::from(len > 0) } else { len.div_ceil(7) };
        for _ in 0..leaves {
            self.allocate(11 * pair + 16);
        }
    }
}

/// A deserializer, visitor, access or seed that counts.
struct Meter<'a, T> {
    inner: T,
    tally: &'a RefCell<Cost>,
}

impl<'a, T> Meter<'a, T> {
    fn around<U>(&self, inner: U) -> Meter<'a, U> {
        Meter { inner, tally: self.tally }
    }
}

macro_rules! counted {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            let visitor = Counting { inner: visitor, tally: self.tally, owned: true };
            self.inner.$method(visitor)
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Meter<'_, D> {
    type Error = D::Error;

    counted! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32
        deserialize_i64 deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32
        deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64 deserialize_char
        deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf
        deserialize_option deserialize_unit deserialize_seq deserialize_map
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = Counting { inner: visitor, tally: self.tally, owned: true };
        self.inner.deserialize_newtype_struct(name, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple(len, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple_struct(name, len, visitor)
    }

    /// The fields of a struct lie in the struct itself.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = Counting { inner: visitor, tally: self.tally, owned: false };
        self.inner.deserialize_struct(name, fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_enum(name, variants, visitor)
    }

    /// Field names are compared, not kept.
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_identifier(visitor)
    }

    /// What is skipped costs nothing.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_ignored_any(visitor)
    }
}

/// A visitor that counts what it passes on.
struct Counting<'a, V> {
    inner: V,
    tally: &'a RefCell<Cost>,
    /// Whether members of a map are on the heap: true for maps, false for structs.
    owned: bool,
}

macro_rules! passed {
    ($($method:ident($type:ty))*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Counting<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    passed! {
        visit_bool(bool) visit_i8(i8) visit_i16(i16) visit_i32(i32) visit_i64(i64)
        visit_i128(i128) visit_u8(u8) visit_u16(u16) visit_u32(u32) visit_u64(u64)
        visit_u128(u128) visit_f32(f32) visit_f64(f64) visit_char(char)
        visit_bytes(&[u8]) visit_borrowed_bytes(&'de [u8]) visit_byte_buf(Vec<u8>)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<V::Value, E> {
        self.tally.borrow_mut().allocate(value.len());
        self.inner.visit_str(value)
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<V::Value, E> {
        self.tally.borrow_mut().allocate(value.len());
        self.inner.visit_borrowed_str(value)
    }

    fn visit_string<E: Error>(self, value: String) -> Result<V::Value, E> {
        self.tally.borrow_mut().allocate(value.len());
        self.inner.visit_string(value)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Meter { inner, tally: self.tally })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Meter { inner, tally: self.tally })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let mut elements =
            Elements { inner, tally: self.tally, len: 0, size: 0, asked: Cell::new(false) };
        let value = self.inner.visit_seq(&mut elements)?;
        let (len, size) = (elements.len, elements.size);
        match elements.asked.get() {
            true => self.tally.borrow_mut().exact(len, size),
            false => self.tally.borrow_mut().grown(len, size),
        }
        Ok(value)
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let mut members = Members { inner, tally: self.tally, len: 0, key: 0, value: 0 };
        let value = self.inner.visit_map(&mut members)?;
        if self.owned {
            self.tally.borrow_mut().map(members.len, members.key + members.value);
        }
        Ok(value)
    }
}

struct Elements<'a, A> {
    inner: A,
    tally: &'a RefCell<Cost>,
    len: usize,
    size: usize,
    /// Whether the vector wanted to know how long it will be. The decoder that makes the objects
    /// says it ([`exact`](crate::exact)); the arrays of a JSON tree do not ask, and grow.
    asked: Cell<bool>,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for &mut Elements<'_, A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        self.size = size_of::<T::Value>();
        let element = self.inner.next_element_seed(Meter { inner: seed, tally: self.tally })?;
        self.len += usize::from(element.is_some());
        Ok(element)
    }

    fn size_hint(&self) -> Option<usize> {
        self.asked.set(true);
        self.inner.size_hint()
    }
}

struct Members<'a, A> {
    inner: A,
    tally: &'a RefCell<Cost>,
    len: usize,
    key: usize,
    value: usize,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for &mut Members<'_, A> {
    type Error = A::Error;

    fn next_key_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        self.key = size_of::<T::Value>();
        self.inner.next_key_seed(Meter { inner: seed, tally: self.tally })
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.len += 1;
        self.value = size_of::<T::Value>();
        self.inner.next_value_seed(Meter { inner: seed, tally: self.tally })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Meter<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let deserializer = self.around(deserializer);
        self.inner.deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn strings_vectors_and_maps_are_counted_and_structs_are_not() {
        #[derive(serde::Deserialize)]
        #[expect(dead_code, reason = "only measured")]
        struct Outer {
            name: String,
            inner: Inner,
            skipped: Option<u8>,
        }
        #[derive(serde::Deserialize)]
        #[expect(dead_code, reason = "only measured")]
        struct Inner {
            list: Vec<u64>,
            map: BTreeMap<String, u64>,
        }
        let text =
            r#"{"name":"abc","inner":{"list":[1,2,3,4,5],"map":{"k":1}},"extra":["not","kept"]}"#;
        let cost = measure::<Outer>(text).unwrap();
        // The name, the list of exactly five, the map's leaf and its key.
        assert_eq!(cost.allocations, 4);
        let leaf = (11 * (24 + 8) + 16 + 8usize).next_multiple_of(16);
        assert_eq!(cost.bytes, size_of::<Outer>() + 16 + 32 + 48 + leaf + 32);
    }

    #[test]
    fn arrays_of_a_json_tree_are_counted_with_the_room_they_have_left() {
        let value = serde_json::Value::Null;
        let room = |elements: usize| (elements * size_of_val(&value) + 8).next_multiple_of(16);
        let tree = measure::<serde_json::Value>("[1,2,3,4,5]").unwrap();
        assert_eq!(tree.bytes, size_of_val(&value) + 16 + room(8));
        let list = measure::<Vec<serde_json::Value>>("[1,2,3,4,5]").unwrap();
        assert_eq!(list.bytes, size_of::<Vec<serde_json::Value>>() + 16 + room(5));
    }
}
