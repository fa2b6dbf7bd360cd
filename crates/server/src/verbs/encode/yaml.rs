//! Lists as YAML, object by object.
//!
//! River: list → **yaml** → HTTP body. Promise: the text is that of the list as one document, and one
//! chunk of it is in memory.

use bytes::BytesMut;
use headwater_json::{Map, Value};
use headwater_schema::yaml::to_string;

use super::{ChunkState, Chunks, READ_MAX};
use crate::answer::body::{CHUNK, Data};
use crate::object::tree;

/// The body of a list as YAML.
pub(super) struct YamlChunks {
    list: Chunks,
    /// The members that follow the items: a document is printed in the order of its keys.
    after: Map,
}

impl YamlChunks {
    pub(super) fn new(list: Chunks) -> YamlChunks {
        YamlChunks { list, after: Map::new() }
    }

    /// The members before the items, and the key of the items.
    fn head(&mut self) -> String {
        let mut head = BytesMut::new();
        self.list.head(&mut head);
        head.extend_from_slice(b"]}");
        let mut before = Map::new();
        let Ok(Value::Object(members)) = tree(&head) else { return String::new() };
        let items = if members.contains_key("rows") { "rows" } else { "items" };
        for (key, value) in members {
            match key.as_str().cmp(items) {
                std::cmp::Ordering::Less => drop(before.insert(key, value)),
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => drop(self.after.insert(key, value)),
            }
        }
        let mut text = members_text(before);
        text.push_str(items);
        text.push_str(if self.list.objects.ahead().is_empty() { ": []\n" } else { ":\n" });
        text
    }
}

/// Members without braces: nothing for none.
fn members_text(members: Map) -> String {
    match members.is_empty() {
        true => String::new(),
        false => to_string(&Value::Object(members)),
    }
}

impl Iterator for YamlChunks {
    type Item = Data;

    fn next(&mut self) -> Option<Data> {
        let (mut text, mut item, mut read) = (String::new(), BytesMut::new(), 0);
        while text.len() < CHUNK && read < READ_MAX {
            match self.list.state {
                ChunkState::End => break,
                ChunkState::Head => {
                    text.push_str(&self.head());
                    self.list.state = ChunkState::Items { is_first: true };
                }
                ChunkState::Items { .. } => {
                    let Some(object) = self.list.objects.next() else {
                        text.push_str(&members_text(std::mem::take(&mut self.after)));
                        self.list.state = ChunkState::End;
                        break;
                    };
                    read += object.as_slice().len();
                    item.clear();
                    self.list.item(&object, &mut item);
                    // What was encoded a line above can be parsed.
                    if let Ok(value) = tree(&item) {
                        text.push_str(&to_string(&Value::Array(vec![value])));
                    }
                }
            }
        }
        (!text.is_empty()).then(|| text.into())
    }
}
