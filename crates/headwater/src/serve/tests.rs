use std::sync::Mutex;

use jiff::{SignedDuration, Timestamp};

use super::*;

const URL: &str = "https://127.0.0.1:6443";

/// A clock that the test moves.
struct MovedClock(Mutex<Timestamp>);

impl Clock for MovedClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

/// S11
#[tokio::test(start_paused = true)]
async fn a_running_server_renews_the_certificates_of_the_administrator_and_of_its_controllers() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(MovedClock(Mutex::new("2026-11-01T00:00:00Z".parse().unwrap())));
    let names = pki::names(Ipv4Addr::LOCALHOST.into(), &[]);
    let directory = dir.path().join("pki");
    let pki = load(Some(&directory), &names, OthersMayRead::Refuse, &*clock).unwrap();
    let path = dir.path().join("admin.kubeconfig");
    let first = kubeconfig::admin(&pki, URL);
    private_file::replace(&path, &first, private_file::PRIVATE).unwrap();
    let credentials = ControllerCredentials::new(&pki, URL, &*clock).unwrap();
    let (renewals, mut newest) = watch::channel(credentials);
    let admin = AdminRenewal {
        url: URL.to_owned(),
        path: path.clone(),
        published: first.clone(),
        clock: clock.clone(),
        renewals,
    };
    let certificates = Certificates {
        acceptor: Acceptor::new(&pki, clock.clone()).unwrap(),
        pki,
        directory: Some(directory),
        names,
        others: OthersMayRead::Refuse,
        clock: clock.clone(),
        revocations: None,
    };
    let stop = CancellationToken::new();
    let mut renewing = JoinSet::new();
    renewing.spawn(certificates.keep_renewed(admin, stop.clone()));
    tokio::time::sleep(10 * RENEW_EVERY).await;
    assert!(!newest.has_changed().unwrap(), "a certificate is renewed long before it expires");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
    let before = newest.borrow().kubeconfigs.clone();

    *clock.0.lock().unwrap() += SignedDuration::from_hours(24 * 340);
    let renewed = tokio::time::timeout(2 * RENEW_EVERY, newest.changed()).await;
    renewed.expect("the controllers keep certificates that expire").unwrap();
    assert_ne!(std::fs::read_to_string(&path).unwrap(), first);
    let after = newest.borrow().kubeconfigs.clone();
    assert!(before.keys().eq(after.keys()) && !before.is_empty());
    assert!(before.iter().all(|(user, kubeconfig)| after[user] != *kubeconfig));
    stop.cancel();
    renewing.join_next().await.unwrap().unwrap();
}
