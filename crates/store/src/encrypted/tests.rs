//! Values that are encrypted with keys from a file.

mod envelope;

use super::*;
use crate::memory::Memory;

fn aes(name: &str, byte: u8) -> Provider {
    Provider::Keys(vec![CipherKey::aes_gcm(name, &[byte; 32]).unwrap()])
}

fn secrets(providers: Vec<Provider>) -> Encryption {
    Encryption { rules: vec![EncryptionRule { resources: vec!["secrets".into()], providers }] }
}

fn put(key: &str, guard: Guard) -> Write {
    let action = Action::Put { value: Bytes::from_static(b"{\"a\":1}"), ttl: None };
    Write::one(Key::new(key), guard, action)
}

const SECRET: &str = "/registry/core/secrets/ns/a";
const MAP: &str = "/registry/core/configmaps/ns/a";

async fn stored(store: &dyn Store, key: &str) -> Bytes {
    store.get(&Key::new(key)).await.unwrap().unwrap().value
}

/// S6.24
#[tokio::test]
async fn values_of_the_configured_resources_are_encrypted() {
    let inner = Arc::new(Memory::default());
    let store = Encrypted::new(inner.clone(), secrets(vec![aes("k", 1), Provider::Identity]));
    let mut watch = store.watch(key::ROOT, crate::FIRST).await.unwrap();
    for key in [SECRET, MAP] {
        store.commit(put(key, Guard::Absent)).await.unwrap();
        let change = watch.next().await.unwrap().unwrap().changes.remove(0);
        assert_eq!(change.value, "{\"a\":1}");
        assert_eq!(stored(&store, key).await, "{\"a\":1}");
    }
    assert!(stored(&*inner, SECRET).await.starts_with(b"k8s:enc:aesgcm:v1:k:"));
    assert_eq!(stored(&*inner, MAP).await, "{\"a\":1}");
    let all = store.range(Range { prefix: key::ROOT.into(), ..Range::default() }).await.unwrap();
    assert!(all.records.iter().all(|record| record.value == "{\"a\":1}"));
    // A conflict returns the plain value.
    match store.commit(put(SECRET, Guard::Absent)).await.unwrap_err() {
        Error::Conflict { actual, .. } => assert_eq!(actual.unwrap().value, "{\"a\":1}"),
        other => panic!("{other}"),
    }
    // So do deletes, with the previous value.
    let revision = store.get(&Key::new(SECRET)).await.unwrap().unwrap().revision;
    let delete = Write::one(Key::new(SECRET), Guard::At(revision), Action::Delete);
    store.commit(delete).await.unwrap();
    let change = watch.next().await.unwrap().unwrap().changes.remove(0);
    assert_eq!(change.prev.unwrap().value, "{\"a\":1}");
}

#[tokio::test]
async fn rotation_reads_with_old_keys_and_rewrites_with_the_first() {
    let inner = Arc::new(Memory::default());
    let store = Encrypted::new(inner.clone(), secrets(vec![Provider::Identity]));
    store.commit(put(SECRET, Guard::Absent)).await.unwrap();
    assert_eq!(stored(&*inner, SECRET).await, "{\"a\":1}");
    for (providers, prefix) in [
        (vec![aes("new", 2), Provider::Identity], "k8s:enc:aesgcm:v1:new:"),
        (vec![aes("newer", 3), aes("new", 2)], "k8s:enc:aesgcm:v1:newer:"),
        (vec![Provider::Identity, aes("newer", 3)], "{\"a\":1}"),
    ] {
        store.replace(secrets(providers));
        assert_eq!(stored(&store, SECRET).await, "{\"a\":1}");
        assert_eq!(store.rewrite().await.unwrap(), 1);
        assert_eq!(store.rewrite().await.unwrap(), 0);
        assert!(stored(&*inner, SECRET).await.starts_with(prefix.as_bytes()), "{prefix}");
        assert_eq!(stored(&store, SECRET).await, "{\"a\":1}");
    }
}

#[tokio::test]
async fn an_unreadable_value_is_passed_on_and_harms_no_other() {
    let inner = Arc::new(Memory::default());
    let store = Encrypted::new(inner.clone(), secrets(vec![aes("k", 1)]));
    inner.commit(put(SECRET, Guard::Absent)).await.unwrap();
    store.commit(put("/registry/core/secrets/ns/b", Guard::Absent)).await.unwrap();
    // Plain bytes are not accepted without the identity provider.
    assert_eq!(stored(&store, SECRET).await, MARK);
    assert_eq!(stored(&store, "/registry/core/secrets/ns/b").await, "{\"a\":1}");
    store.replace(secrets(vec![aes("other", 1), Provider::Identity]));
    assert!(stored(&store, "/registry/core/secrets/ns/b").await.starts_with(MARK));
    assert_eq!(stored(&store, SECRET).await, "{\"a\":1}");
}

#[test]
fn the_first_rule_that_names_a_resource_decides() {
    let rule = |resources: &[&str]| EncryptionRule {
        resources: resources.iter().map(|name| (*name).to_owned()).collect(),
        providers: Vec::new(),
    };
    let names =
        |pattern: &str, group: &str, resource: &str| rule(&[pattern]).names(group, resource);
    assert!(names("secrets", "core", "secrets") && !names("secrets", "apps", "secrets"));
    assert!(names("deployments.apps", "apps", "deployments"));
    assert!(names("*.apps", "apps", "x") && !names("*.apps", "core", "x"));
    assert!(names("*.", "core", "pods") && !names("*.", "apps", "pods"));
    assert!(names("*.*", "a.example.org", "x") && names("*.a.example.org", "a.example.org", "x"));
    let all = Encryption { rules: vec![rule(&["secrets"]), rule(&["*.*"])] };
    let found = all.rule(SECRET).unwrap();
    assert_eq!(found.resources, ["secrets"]);
    assert_eq!(all.rule(MAP).unwrap().resources, ["*.*"]);
}
