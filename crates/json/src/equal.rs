//! Comparisons of trees with plain values: `pod["metadata"]["name"] == "web"`.

use super::{Text, Value};

impl PartialEq<str> for Value {
    fn eq(&self, text: &str) -> bool {
        self.as_str() == Some(text)
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, text: &&str) -> bool {
        self.as_str() == Some(*text)
    }
}

impl PartialEq<String> for Value {
    fn eq(&self, text: &String) -> bool {
        self.as_str() == Some(text)
    }
}

impl PartialEq<Text> for Value {
    fn eq(&self, text: &Text) -> bool {
        self.as_str() == Some(text)
    }
}

impl PartialEq<Value> for &str {
    fn eq(&self, value: &Value) -> bool {
        value == self
    }
}

impl PartialEq<Value> for String {
    fn eq(&self, value: &Value) -> bool {
        value == self
    }
}

impl PartialEq<bool> for Value {
    fn eq(&self, truth: &bool) -> bool {
        self.as_bool() == Some(*truth)
    }
}

impl PartialEq<f64> for Value {
    fn eq(&self, float: &f64) -> bool {
        self.as_f64() == Some(*float)
    }
}

macro_rules! equal_numbers {
    ($read:ident: $($number:ty),*) => {
        $(impl PartialEq<$number> for Value {
            fn eq(&self, number: &$number) -> bool {
                self.$read().is_some_and(|read| <$number>::try_from(read) == Ok(*number))
            }
        }

        impl PartialEq<$number> for &Value {
            fn eq(&self, number: &$number) -> bool {
                **self == *number
            }
        })*
    };
}
equal_numbers!(as_i64: i32, i64);
equal_numbers!(as_u64: u16, u32, u64, usize);

impl PartialEq<serde_json::Value> for Value {
    fn eq(&self, other: &serde_json::Value) -> bool {
        match (self, other) {
            (Value::Null, serde_json::Value::Null) => true,
            (Value::Bool(one), serde_json::Value::Bool(other)) => one == other,
            (Value::Number(one), serde_json::Value::Number(other)) => one == other,
            (Value::String(one), serde_json::Value::String(other)) => one == other,
            (Value::Array(one), serde_json::Value::Array(other)) => one == other,
            (Value::Object(one), serde_json::Value::Object(other)) => {
                one.len() == other.len()
                    && one.iter().all(|(key, value)| {
                        other.get(key.as_str()).is_some_and(|other| value == other)
                    })
            }
            _ => false,
        }
    }
}
