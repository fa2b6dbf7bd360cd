//! Calls to a plugin over a real socket.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail")]

use std::path::PathBuf;
use std::time::Duration;

use headwater_kms::KmsPlugin;
use headwater_store::encrypted::{KeyService, KeyServiceError, SealedSeed};
use headwater_testkit::kms::TestKms;
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(30);

fn socket() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kms.sock");
    (dir, socket)
}

fn is_unavailable<T: std::fmt::Debug>(result: Result<T, KeyServiceError>, expected: &str) {
    match result.unwrap_err() {
        KeyServiceError::Unavailable(why) => assert!(why.contains(expected), "{why}"),
        other @ KeyServiceError::Refused(_) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_seed_is_encrypted_and_decrypted_by_the_plugin() {
    let (_dir, socket) = socket();
    let kms = TestKms::start(&socket, "key-1");
    let plugin = KmsPlugin::new(&kms.endpoint(), DEADLINE).unwrap();
    assert_eq!(plugin.key_id().await.unwrap(), "key-1");
    let sealed = plugin.encrypt(&[7; 32]).await.unwrap();
    assert_eq!(sealed.key_id, "key-1");
    assert_ne!(sealed.ciphertext, [7; 32]);
    // The key of the ciphertext decides, not the current one.
    kms.state().key_id = "key-2".into();
    assert_eq!(plugin.key_id().await.unwrap(), "key-2");
    assert_eq!(*plugin.decrypt(&sealed).await.unwrap(), [7; 32]);
    assert_eq!(kms.state().calls, (1, 1));
}

#[tokio::test]
async fn a_plugin_that_comes_back_is_connected_again() {
    let (_dir, socket) = socket();
    let endpoint = format!("unix://{}", socket.display());
    let plugin = KmsPlugin::new(&endpoint, DEADLINE).unwrap();
    is_unavailable(plugin.key_id().await, "No such file");
    let kms = TestKms::start(&socket, "key-1");
    let sealed = plugin.encrypt(&[7; 32]).await.unwrap();
    drop(kms);
    is_unavailable(plugin.key_id().await, &endpoint);
    let _kms = TestKms::start(&socket, "key-1");
    assert_eq!(*plugin.decrypt(&sealed).await.unwrap(), [7; 32]);
}

#[tokio::test]
async fn only_what_says_that_a_seed_is_lost_is_final() {
    let (_dir, socket) = socket();
    let kms = TestKms::start(&socket, "key-1");
    let plugin = KmsPlugin::new(&kms.endpoint(), DEADLINE).unwrap();
    let sealed = plugin.encrypt(&[7; 32]).await.unwrap();
    for code in [2, 4, 7, 8, 9, 13, 14, 16] {
        kms.state().failure = Some((code, "the HSM is closed"));
        is_unavailable(plugin.decrypt(&sealed).await, "the HSM is closed");
    }
    for code in [3, 5, 11, 15] {
        kms.state().failure = Some((code, "the key was destroyed"));
        let error = plugin.decrypt(&sealed).await.unwrap_err();
        assert!(matches!(&error, KeyServiceError::Refused(why) if why.contains("destroyed")));
    }
    kms.state().failure = None;
    let foreign = SealedSeed { key_id: "key-9".into(), ..sealed };
    assert!(matches!(plugin.decrypt(&foreign).await, Err(KeyServiceError::Refused(_))));
}

#[tokio::test]
async fn an_unhealthy_or_silent_plugin_is_unavailable() {
    let (_dir, socket) = socket();
    let kms = TestKms::start(&socket, "key-1");
    let plugin = KmsPlugin::new(&kms.endpoint(), DEADLINE).unwrap();
    kms.state().healthz = "sealed".into();
    is_unavailable(plugin.key_id().await, "it reports \"sealed\"");
    kms.state().is_silent = true;
    let hasty = KmsPlugin::new(&kms.endpoint(), Duration::from_millis(50)).unwrap();
    is_unavailable(hasty.key_id().await, "no response from");
}

#[tokio::test]
async fn an_endpoint_is_the_path_of_a_socket() {
    for endpoint in ["", "/run/kms.sock", "tcp://127.0.0.1:1", "unix://kms.sock", "unix:///@kms"] {
        let error = KmsPlugin::new(endpoint, DEADLINE).unwrap_err().to_string();
        assert!(error.contains("must be unix:///"), "{error}");
    }
}
