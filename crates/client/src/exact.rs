//! Decodes with exact capacities: vectors are made as long as the arrays they come from.
//!
//! River: beside the decoder; what typed objects are read with.
//! Promise: the same values and the same errors as `serde_json::from_str`. A JSON text does not
//! say how long its arrays are, so vectors would grow by doubling, and elements of the API's types
//! are hundreds of bytes each. Here one pass over the text counts the elements first, and the
//! counts are handed out as size hints. A missing or a wrong count costs room, never truth.

use std::cell::Cell;
use std::fmt;

use memchr::memchr2;
use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use serde_json::value::RawValue;

/// Arrays that are counted; those after them get no hint. An object of the API has a few dozen.
const ARRAYS_MAX: usize = 1 << 16;

/// How deep arrays are counted: as deep as `serde_json` reads.
const DEPTH_MAX: usize = 128;

/// Reads a value from its JSON text.
pub(crate) fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    let arrays = Arrays::count(text);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = T::deserialize(arrays.on(&mut deserializer))?;
    deserializer.end()?;
    Ok(value)
}

/// How many elements the arrays of a text have, in the order in which they begin.
struct Arrays<'t> {
    text: &'t str,
    counted: Vec<Counted>,
    /// The first that the decoder has not come to.
    next: Cell<usize>,
}

struct Counted {
    at: usize,
    elements: usize,
}

impl<'t> Arrays<'t> {
    /// Text that is not JSON gives counts of no meaning; the decoder refuses it.
    fn count(text: &'t str) -> Arrays<'t> {
        let bytes = text.as_bytes();
        let mut counted: Vec<Counted> = Vec::new();
        // What is open at this point: arrays by their place in `counted`, and objects.
        let mut open: Vec<Option<usize>> = Vec::new();
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            at += 1;
            match byte {
                b'"' => at = end_of_string(bytes, at),
                b'[' | b'{' if open.len() == DEPTH_MAX => break,
                b'[' if counted.len() == ARRAYS_MAX => break,
                b'[' => {
                    open.push(Some(counted.len()));
                    let elements = usize::from(!is_empty(bytes, at));
                    counted.push(Counted { at: at - 1, elements });
                }
                b'{' => open.push(None),
                b']' | b'}' => drop(open.pop()),
                b',' => {
                    let array = open.last().copied().flatten();
                    if let Some(counted) = array.and_then(|array| counted.get_mut(array)) {
                        counted.elements += 1;
                    }
                }
                _ => {}
            }
        }
        Arrays { text, counted, next: Cell::new(0) }
    }

    fn on<T>(&self, inner: T) -> Exact<'_, T> {
        Exact { inner, arrays: self }
    }

    /// How many elements the array has that begins now.
    fn begin(&self) -> Option<usize> {
        let next = self.next.get();
        self.next.set(next + 1);
        self.counted.get(next).map(|counted| counted.elements)
    }

    /// The decoder has read this part of the text, with all the arrays in it.
    fn pass(&self, part: &str) {
        let Some(start) = (part.as_ptr() as usize).checked_sub(self.text.as_ptr() as usize) else {
            return;
        };
        let end = start + part.len();
        if end <= self.text.len() {
            let rest = self.counted.get(self.next.get()..).unwrap_or_default();
            let passed = rest.iter().take_while(|counted| counted.at < end).count();
            self.next.set(self.next.get() + passed);
        }
    }
}

/// Where the string ends whose first character is at `at`.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while let Some(rest) = bytes.get(at..)
        && let Some(found) = memchr2(b'"', b'\\', rest)
    {
        if rest.get(found) == Some(&b'"') {
            return at + found + 1;
        }
        at += found + 2;
    }
    bytes.len()
}

/// Whether the array is empty whose inside begins at `at`.
fn is_empty(bytes: &[u8], at: usize) -> bool {
    let inside = bytes.iter().skip(at).find(|byte| !byte.is_ascii_whitespace());
    inside == Some(&b']')
}

/// A deserializer, visitor, access or seed that knows the arrays.
struct Exact<'a, T> {
    inner: T,
    arrays: &'a Arrays<'a>,
}

macro_rules! wrapped {
    ($($method:ident($($name:ident: $type:ty),*))*) => {$(
        fn $method<V: Visitor<'de>>(
            self,
            $($name: $type,)*
            visitor: V,
        ) -> Result<V::Value, D::Error> {
            self.inner.$method($($name,)* self.arrays.on(visitor))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Exact<'_, D> {
    type Error = D::Error;

    wrapped! {
        deserialize_any() deserialize_bool() deserialize_i8() deserialize_i16() deserialize_i32()
        deserialize_i64() deserialize_i128() deserialize_u8() deserialize_u16() deserialize_u32()
        deserialize_u64() deserialize_u128() deserialize_f32() deserialize_f64() deserialize_char()
        deserialize_str() deserialize_string() deserialize_bytes() deserialize_byte_buf()
        deserialize_option() deserialize_unit() deserialize_seq() deserialize_map()
        deserialize_identifier()
        deserialize_unit_struct(name: &'static str)
        deserialize_newtype_struct(name: &'static str)
        deserialize_tuple(len: usize)
        deserialize_tuple_struct(name: &'static str, len: usize)
        deserialize_struct(name: &'static str, fields: &'static [&'static str])
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
    }

    /// Arrays that are skipped are never visited. A raw value is skipped in the same way and tells
    /// how far that went.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let skipped = <&RawValue>::deserialize(self.inner)?;
        self.arrays.pass(skipped.get());
        visitor.visit_unit()
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! passed {
    ($($method:ident($type:ty))*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Exact<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    passed! {
        visit_bool(bool) visit_i8(i8) visit_i16(i16) visit_i32(i32) visit_i64(i64)
        visit_i128(i128) visit_u8(u8) visit_u16(u16) visit_u32(u32) visit_u64(u64)
        visit_u128(u128) visit_f32(f32) visit_f64(f64) visit_char(char)
        visit_bytes(&[u8]) visit_borrowed_bytes(&'de [u8]) visit_byte_buf(Vec<u8>)
        visit_str(&str) visit_string(String)
    }

    /// A string, or the text of a raw value, whose arrays were not visited.
    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<V::Value, E> {
        self.arrays.pass(value);
        self.inner.visit_borrowed_str(value)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(self.arrays.on(inner))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(self.arrays.on(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let left = self.arrays.begin();
        self.inner.visit_seq(Elements { inner, arrays: self.arrays, left })
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(self.arrays.on(inner))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(self.arrays.on(inner))
    }
}

/// The elements of an array, and how many are left.
struct Elements<'a, A> {
    inner: A,
    arrays: &'a Arrays<'a>,
    left: Option<usize>,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Elements<'_, A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.inner.next_element_seed(self.arrays.on(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.left
    }
}

/// Keys are strings and need no wrapping.
impl<'de, A: MapAccess<'de>> MapAccess<'de> for Exact<'_, A> {
    type Error = A::Error;

    fn next_key_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        self.inner.next_key_seed(seed)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.inner.next_value_seed(self.arrays.on(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'a, 'de, A: EnumAccess<'de>> EnumAccess<'de> for Exact<'a, A> {
    type Error = A::Error;
    type Variant = Exact<'a, A::Variant>;

    fn variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<(T::Value, Self::Variant), A::Error> {
        let (value, inner) = self.inner.variant_seed(seed)?;
        Ok((value, self.arrays.on(inner)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Exact<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.inner.newtype_variant_seed(self.arrays.on(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(len, self.arrays.on(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.struct_variant(fields, self.arrays.on(visitor))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Exact<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(self.arrays.on(deserializer))
    }
}

#[cfg(test)]
mod tests;
