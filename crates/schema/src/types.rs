//! The type table of built-in kinds: fields and their types.
//!
//! River: [`crate::decode`], protobuf, strategic patches, apply and OpenAPI read **types**. The table is
//! `types/types.txt`; no code here names a kind.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::LazyLock;

use headwater_json::{Map, MemberKey, Value};

use headwater_api::kind::Kind;
use headwater_json::wide::begin;

mod reach;
mod when;

pub(crate) use reach::Reach;
pub(crate) use when::{Steps, When, get, is_absent, steps};

/// Every built-in type.
pub struct Types {
    types: Vec<Type>,
    names: HashMap<&'static str, TypeId>,
}

/// The index of a type in [`Types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeId(u32);

impl TypeId {
    /// A number below [`Types::len`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A type with fields.
#[derive(Debug)]
pub struct Type {
    /// Its index.
    pub id: TypeId,
    /// The name, such as `core/v1.PodSpec`.
    pub name: &'static str,
    /// Whether apply treats it as atomic.
    pub atomic: bool,
    /// The JSON fields sorted by name, including those of inlined types.
    pub fields: Vec<Field>,
    /// The protobuf fields sorted by number.
    pub wire: Vec<Wire>,
    /// The first bytes of each of `fields` as a number, for fast lookup.
    begins: Vec<u64>,
    /// The index of `fields` by name.
    slots: Slots,
    /// Indexes of the fields that are always present.
    always: Vec<u32>,
}

/// A field in JSON.
#[derive(Clone, Debug)]
pub struct Field {
    /// The key.
    pub name: &'static str,
    /// The type of its value.
    pub shape: ValueType,
    /// The handling of absent and empty values.
    pub zero: Zero,
    /// Whether it is documented as required.
    pub required: bool,
    /// How a strategic merge patch treats it.
    pub patch: Patch,
    /// How apply treats it.
    pub merge: Merge,
}

/// A field on the protobuf wire.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Field number.
    pub number: u32,
    /// The key in JSON; `None` for an inlined message.
    pub name: Option<&'static str>,
    /// The type of its value.
    pub shape: ValueType,
    /// Whether an absent value is left out. Other scalars and messages are always written.
    pub optional: bool,
    /// The index in [`Type::fields`]; not for an inlined message.
    pub place: usize,
    /// The fields of an inlined message, with places in the fields of the type around it.
    pub inlined: Vec<Wire>,
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// A string.
    Text,
    /// A number from -2³¹ to 2³¹-1.
    Int32,
    /// A number from -2⁶³ to 2⁶³-1.
    Int64,
    /// Any number.
    Float,
    /// A boolean.
    Bool,
    /// Base64.
    Bytes,
    /// RFC 3339, seconds.
    Time,
    /// RFC 3339, six decimals.
    MicroTime,
    /// A quantity such as `100m` or `1Gi`.
    Quantity,
    /// A number, or a string such as `25%`.
    IntOrString,
    /// Anything.
    Any,
    /// An object of that type.
    Struct(TypeId),
    /// A list.
    List(Box<ValueType>),
    /// A list that is a message of its own in protobuf.
    Wrapped(Box<ValueType>),
    /// An object with arbitrary keys.
    Map(Box<ValueType>),
    /// A JSON schema or a list of them.
    SchemaOrList(TypeId),
    /// A JSON schema or a boolean.
    SchemaOrBool(TypeId),
    /// A JSON schema or a list of strings.
    SchemaOrTexts(TypeId),
}

/// The handling of a field that is absent or empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zero {
    /// Omitted: empty and absent are the same.
    Dropped,
    /// Kept: `0` and absent differ.
    Kept,
    /// Always present.
    Filled,
    /// `null` when absent.
    Null,
}

/// How a strategic merge patch treats a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// Lists merge by [`Patch::key`]; lists of scalars are sets.
    pub merge: bool,
    /// `retainKeys`: keys that the patch does not name are removed.
    pub retain_keys: bool,
    /// The merge key.
    pub key: Option<&'static str>,
}

/// How apply treats a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Merge {
    /// Lists are atomic, objects and maps are merged by key.
    #[default]
    Ordinary,
    /// Atomic.
    Atomic,
    /// A set.
    Set,
    /// A list map with these keys.
    Keyed(Vec<&'static str>),
}

static TYPES: LazyLock<Types> = LazyLock::new(|| Types::read(include_str!("types/types.txt")));

impl Types {
    /// The types of all built-in kinds; read on first use.
    pub fn builtin() -> &'static Types {
        &TYPES
    }

    /// The type of a built-in kind.
    pub fn of(&self, kind: &Kind) -> Option<&Type> {
        if kind.custom {
            return None;
        }
        self.find(&kind.group, &kind.version, &kind.kind)
    }

    /// A type by group, version and kind.
    pub fn find(&self, group: &str, version: &str, kind: &str) -> Option<&Type> {
        let package = match group {
            "" => "core",
            group => group.split('.').next().unwrap_or_default(),
        };
        self.named(&[package, "/", version, ".", kind].concat())
    }

    /// A type by its name in [`Type::name`], such as `meta/v1.ObjectMeta`.
    pub fn named(&self, name: &str) -> Option<&Type> {
        self.names.get(name).map(|id| self.get(*id))
    }

    /// A type that a shape refers to.
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.index()]
    }

    /// The number of types.
    #[expect(clippy::len_without_is_empty, reason = "there are always types")]
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// All types.
    pub fn iter(&self) -> impl Iterator<Item = &Type> {
        self.types.iter()
    }

    /// The zero value of a type.
    pub fn empty(&self, shape: &ValueType) -> Value {
        match shape {
            ValueType::Text | ValueType::Bytes => "".into(),
            ValueType::Int32 | ValueType::Int64 | ValueType::Float | ValueType::IntOrString => {
                0.into()
            }
            ValueType::Bool | ValueType::SchemaOrBool(_) => false.into(),
            ValueType::Quantity => "0".into(),
            ValueType::Time | ValueType::MicroTime | ValueType::Any => Value::Null,
            ValueType::List(_) | ValueType::Wrapped(_) => Value::Array(Vec::new()),
            ValueType::Map(_) | ValueType::SchemaOrList(_) | ValueType::SchemaOrTexts(_) => {
                Value::Object(Map::new())
            }
            ValueType::Struct(id) => {
                let fields = self.get(*id).always();
                fields.map(|field| (field.name.to_owned(), self.absent(field))).collect()
            }
        }
    }

    /// The value of an absent field that is always present.
    pub fn absent(&self, field: &Field) -> Value {
        match field.zero {
            Zero::Filled => self.empty(&field.shape),
            _ => Value::Null,
        }
    }

    fn read(text: &'static str) -> Types {
        let mut blocks: Vec<Block> = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match line.strip_prefix(' ') {
                Some(field) => {
                    blocks.last_mut().expect("the table begins with a type").rows.push(field);
                }
                None => blocks.push(Block::new(line)),
            }
        }
        let names: HashMap<&'static str, TypeId> =
            (0..).map(TypeId).zip(&blocks).map(|(id, block)| (block.name, id)).collect();
        let types = blocks.iter().map(|block| block.read(&blocks, &names)).collect();
        Types { types, names }
    }
}

impl ValueType {
    /// The innermost object type, if any: for a list of pods, Pod.
    pub fn heart(&self) -> Option<TypeId> {
        match self {
            ValueType::Struct(id)
            | ValueType::SchemaOrList(id)
            | ValueType::SchemaOrBool(id)
            | ValueType::SchemaOrTexts(id) => Some(*id),
            ValueType::List(inner) | ValueType::Wrapped(inner) | ValueType::Map(inner) => {
                inner.heart()
            }
            _ => None,
        }
    }
}

impl Type {
    /// The field with that key.
    pub fn field(&self, name: &str) -> Option<&Field> {
        let mut found = self.slots.places(name).map(|at| &self.fields[at]);
        found.find(|field| field.name == name)
    }

    /// The field of the next key in sorted order: `from` is the position of the previous key and is
    /// advanced.
    pub(crate) fn next_field(&self, from: &mut usize, key: &MemberKey) -> Option<&Field> {
        loop {
            match key.order(*self.begins.get(*from)?, self.fields[*from].name) {
                Ordering::Less => return None,
                Ordering::Equal => return Some(&self.fields[*from]),
                Ordering::Greater => *from += 1,
            }
        }
    }

    /// The index in [`Type::fields`] of the field with that key.
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        self.slots.places(name).find(|at| self.fields[*at].name == name)
    }

    /// The fields that are always present.
    pub fn always(&self) -> impl Iterator<Item = &Field> {
        self.always.iter().map(|at| &self.fields[*at as usize])
    }

    /// `PodSpec` of `core/v1.PodSpec`.
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or_default()
    }

    /// `v1.PodSpec` of `core/v1.PodSpec`.
    pub fn version_name(&self) -> &'static str {
        self.name.rsplit('/').next().unwrap_or_default()
    }
}

/// An immutable hash table of field indexes by name, half empty.
#[derive(Clone, Debug)]
struct Slots {
    places: Box<[u16]>,
    /// The shift from a 64-bit hash to an index.
    shift: u32,
}

impl Slots {
    const EMPTY: u16 = u16::MAX;

    fn new(fields: &[Field]) -> Slots {
        let length = (2 * fields.len()).next_power_of_two().max(2);
        let places = vec![Slots::EMPTY; length].into();
        let mut slots = Slots { places, shift: u64::BITS - length.ilog2() };
        for (place, field) in (0..).zip(fields) {
            let mut at = slots.first(field.name);
            while slots.places[at] != Slots::EMPTY {
                at = slots.next(at);
            }
            slots.places[at] = place;
        }
        slots
    }

    /// The only possible index of a name.
    fn places(&self, name: &str) -> impl Iterator<Item = usize> {
        let mut at = self.first(name);
        std::iter::from_fn(move || {
            let place = self.places[at];
            at = self.next(at);
            (place != Slots::EMPTY).then_some(usize::from(place))
        })
    }

    fn first(&self, name: &str) -> usize {
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        let mixed = (begin(name) ^ name.len() as u64).wrapping_mul(SPREAD);
        (mixed >> self.shift) as usize
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }
}

/// A type while the table is parsed.
struct Block {
    name: &'static str,
    package: &'static str,
    atomic: bool,
    rows: Vec<&'static str>,
}

type Names = HashMap<&'static str, TypeId>;

impl Block {
    fn new(line: &'static str) -> Block {
        let (name, word) = line.split_once(' ').unwrap_or((line, ""));
        let (package, _) = name.split_once('.').expect("a type has a package");
        Block { name, package, atomic: word == "atomic", rows: Vec::new() }
    }

    fn read(&self, blocks: &[Block], names: &Names) -> Type {
        let mut fields = Vec::new();
        self.fields(blocks, names, &mut fields);
        fields.sort_by_key(|field: &Field| field.name);
        let filled = |field: &Field| matches!(field.zero, Zero::Filled | Zero::Null);
        let always = (0..).zip(&fields).filter(|(_, field)| filled(field)).map(|(at, _)| at);
        Type {
            id: names[self.name],
            name: self.name,
            atomic: self.atomic,
            begins: fields.iter().map(|field| begin(field.name)).collect(),
            slots: Slots::new(&fields),
            always: always.collect(),
            wire: self.wire(blocks, names, &fields),
            fields,
        }
    }

    /// The handling of an absent field. Kubernetes stores most kinds in protobuf, where an empty list
    /// is none at all, and shows it as `null`. Definitions, stored as JSON, keep it.
    fn zero(&self, letter: &str, shape: &str) -> Zero {
        const KEEP: [&str; 4] =
            ["apiextensions/v1", "authentication/v1", "authorization/v1", "meta/v1"];
        match read_zero(letter) {
            Zero::Filled if shape.starts_with('[') && !KEEP.contains(&self.package) => Zero::Null,
            zero => zero,
        }
    }

    /// The fields in JSON, with those of inlined types.
    fn fields(&self, blocks: &[Block], names: &Names, fields: &mut Vec<Field>) {
        for row in &self.rows {
            let words: Vec<&'static str> = row.split(' ').collect();
            match words[..] {
                ["TypeMeta"] => {
                    fields.extend(["apiVersion", "kind"].map(|name| Field {
                        name,
                        shape: ValueType::Text,
                        zero: Zero::Dropped,
                        required: false,
                        patch: Patch::default(),
                        merge: Merge::default(),
                    }));
                }
                [_, "+", shape] => {
                    let ValueType::Struct(id) = self.shape(shape, names) else {
                        unreachable!("only types are inlined")
                    };
                    blocks[id.index()].fields(blocks, names, fields);
                }
                [_, name, shape, zero, ref rest @ ..] => fields.push(Field {
                    name,
                    shape: self.shape(shape, names),
                    zero: self.zero(zero, shape),
                    required: rest.contains(&"req"),
                    patch: read_patch(rest),
                    merge: read_merge(rest),
                }),
                _ => unreachable!("no field in {row:?}"),
            }
        }
    }

    /// The fields on the wire; `fields` are those in JSON of the type, or of the type around it.
    fn wire(&self, blocks: &[Block], names: &Names, fields: &[Field]) -> Vec<Wire> {
        let mut wire: Vec<Wire> = Vec::new();
        for row in &self.rows {
            let words: Vec<&'static str> = row.split(' ').collect();
            let [number, name, shape, ref rest @ ..] = words[..] else { continue };
            let shape = self.shape(shape, names);
            let number = number.parse().expect("a field has a number");
            let field = match (name, &shape) {
                ("+", ValueType::Struct(id)) => Wire {
                    number,
                    name: None,
                    inlined: blocks[id.index()].wire(blocks, names, fields),
                    shape,
                    optional: false,
                    place: 0,
                },
                _ => Wire {
                    number,
                    name: Some(name),
                    optional: is_pointer(&shape, rest),
                    shape,
                    place: fields.partition_point(|field| field.name < name),
                    inlined: Vec::new(),
                },
            };
            wire.push(field);
        }
        wire.sort_by_key(|field| field.number);
        wire
    }

    fn shape(&self, text: &'static str, names: &Names) -> ValueType {
        let (first, rest) = text.split_at(1);
        let schema = || names["apiextensions/v1.JSONSchemaProps"];
        match first {
            "s" => ValueType::Text,
            "i" => ValueType::Int32,
            "l" => ValueType::Int64,
            "f" => ValueType::Float,
            "b" => ValueType::Bool,
            "y" => ValueType::Bytes,
            "T" => ValueType::Time,
            "M" => ValueType::MicroTime,
            "Q" => ValueType::Quantity,
            "I" => ValueType::IntOrString,
            "*" => ValueType::Any,
            "[" => ValueType::List(Box::new(self.shape(rest, names))),
            "X" => match self.shape(rest, names) {
                ValueType::List(inner) => ValueType::Wrapped(inner),
                other => unreachable!("{other:?} is not a list"),
            },
            "{" => ValueType::Map(Box::new(self.shape(rest, names))),
            "A" => ValueType::SchemaOrList(schema()),
            "B" => ValueType::SchemaOrBool(schema()),
            "C" => ValueType::SchemaOrTexts(schema()),
            "=" if rest.contains('.') => ValueType::Struct(names[rest]),
            "=" => ValueType::Struct(names[format!("{}.{rest}", self.package).as_str()]),
            other => unreachable!("no shape {other}"),
        }
    }
}

/// Whether Go's field is a pointer; `words` are those after the shape.
fn is_pointer(shape: &ValueType, words: &[&str]) -> bool {
    match (shape, words) {
        (ValueType::Any, words) => !words.contains(&"value"),
        (ValueType::Time | ValueType::MicroTime, ["0", ..]) => false,
        (_, words) => matches!(words, ["?" | "0", ..]),
    }
}

fn read_zero(word: &str) -> Zero {
    match word {
        "-" => Zero::Dropped,
        "?" => Zero::Kept,
        "!" => Zero::Filled,
        "0" => Zero::Null,
        other => unreachable!("no zero {other}"),
    }
}

fn read_patch(words: &[&'static str]) -> Patch {
    let Some(word) = words.iter().find_map(|word| word.strip_prefix("patch=")) else {
        return Patch::default();
    };
    let (strategies, key) = match word.split_once(':') {
        Some((strategies, key)) => (strategies, Some(key)),
        None => (word, None),
    };
    Patch {
        merge: strategies.contains("merge"),
        retain_keys: strategies.contains("retainKeys"),
        key,
    }
}

fn read_merge(words: &[&'static str]) -> Merge {
    let word = words
        .iter()
        .find_map(|word| word.strip_prefix("list=").or_else(|| word.strip_prefix("map=")));
    match word.map(|word| word.split_once(':').unwrap_or((word, ""))) {
        Some(("atomic", _)) => Merge::Atomic,
        Some(("set", _)) => Merge::Set,
        Some(("map", keys)) => Merge::Keyed(keys.split(',').collect()),
        Some(("granular", _)) | None => Merge::Ordinary,
        Some((other, _)) => unreachable!("no merge {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_api::kind::builtin;

    #[test]
    fn every_field_is_found_by_its_name_and_nothing_else_is() {
        for of in Types::builtin().iter() {
            for field in &of.fields {
                let found = of.field(field.name).expect(field.name);
                assert!(std::ptr::eq(found, field), "{} of {}", field.name, of.name);
            }
            for name in ["", "x", "metadatas", "specification", "nodeNam", "nodeNames"] {
                assert!(of.field(name).is_none(), "{name} of {}", of.name);
            }
        }
    }

    #[test]
    fn every_built_in_kind_has_a_type_with_metadata() {
        for kind in builtin() {
            let found = Types::builtin().of(&kind);
            let found = found.unwrap_or_else(|| panic!("no type for {}", kind.resource()));
            assert!(found.field("metadata").is_some(), "{}", found.name);
            assert!(found.field("apiVersion").is_some(), "{}", found.name);
        }
    }

    #[test]
    fn subresources_of_another_kind_have_types_too() {
        let find = |group, kind| Types::builtin().find(group, "v1", kind).is_some();
        assert!(find("autoscaling", "Scale") && find("policy", "Eviction"));
        assert!(find("authentication.k8s.io", "TokenRequest") && find("", "Binding"));
        assert!(Types::builtin().named("meta/v1.DeleteOptions").is_some());
    }

    #[test]
    fn inlined_fields_are_flat_in_json_and_a_message_on_the_wire() {
        let volume = Types::builtin().named("core/v1.Volume").unwrap();
        assert!(volume.field("configMap").is_some());
        let source = Types::builtin().named("core/v1.VolumeSource").unwrap();
        let inline = volume.wire.iter().find(|field| field.name.is_none()).unwrap();
        assert_eq!(inline.number, 2);
        let ValueType::Struct(id) = inline.shape else { panic!() };
        assert_eq!(Types::builtin().get(id).name, source.name);
    }

    #[test]
    fn markers_for_patches_are_read() {
        let container = Types::builtin().named("core/v1.Container").unwrap();
        let ports = container.field("ports").unwrap();
        assert_eq!(ports.patch.key, Some("containerPort"));
        assert_eq!(ports.merge, Merge::Keyed(vec!["containerPort", "protocol"]));
        assert_eq!(container.field("resources").unwrap().zero, Zero::Filled);
        let deployment = Types::builtin().named("apps/v1.DeploymentSpec").unwrap();
        assert!(deployment.field("strategy").unwrap().patch.retain_keys);
        assert!(Types::builtin().named("meta/v1.LabelSelector").unwrap().atomic);
    }

    #[test]
    fn keys_are_found_only_in_their_own_letter_case() {
        let pod = Types::builtin().named("core/v1.Pod").unwrap();
        assert!(pod.field("spec").is_some() && pod.field("Spec").is_none());
        assert_eq!((pod.short_name(), pod.version_name()), ("Pod", "v1.Pod"));
    }
}
