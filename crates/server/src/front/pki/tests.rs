use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use super::*;

/// A clock the test sets.
struct At(Mutex<Timestamp>);

impl At {
    fn new(time: &str) -> At {
        At(Mutex::new(time.parse().unwrap()))
    }

    fn pass(&self, days: i64) {
        let mut now = self.0.lock().unwrap();
        *now += jiff::SignedDuration::from_hours(24 * days);
    }
}

impl Clock for At {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

fn loopback(extra: &[&str]) -> BTreeSet<String> {
    let extra: Vec<String> = extra.iter().map(|name| (*name).to_owned()).collect();
    names("127.0.0.1".parse().unwrap(), &extra)
}

fn open(directory: &Path, extra: &[&str], clock: &At) -> Pki {
    Pki::open(directory, &loopback(extra), OthersMayRead::Refuse, clock).unwrap()
}

#[test]
fn a_second_start_keeps_every_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    let first = open(&path, &[], &clock);
    clock.pass(300);
    let second = open(&path, &[], &clock);
    assert_eq!(first.ca, second.ca);
    assert_eq!(first.server.certificate, second.server.certificate);
    assert_eq!(first.admin.certificate, second.admin.certificate);
    assert_eq!(first.service_account_key.reveal(), second.service_account_key.reveal());
}

#[test]
fn keys_are_readable_by_their_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pki");
    open(&path, &[], &At::new("2026-11-01T00:00:00Z"));
    let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("."), 0o700);
    assert_eq!(mode("ca.crt"), 0o644);
    for key in ["ca.key", "server.key", "admin.key", "sa.key"] {
        assert_eq!(mode(key), 0o600, "{key}");
    }
}

#[test]
fn new_names_renew_the_serving_certificate_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    let first = open(&path, &[], &clock);
    let second = open(&path, &["api.example.org", "10.0.0.7"], &clock);
    assert_ne!(first.server.certificate, second.server.certificate);
    assert_eq!(first.admin.certificate, second.admin.certificate);
    assert_eq!(first.ca, second.ca);
    let names = with_certificate(&second.server.certificate, subject_names).unwrap();
    assert!(names.contains("api.example.org") && names.contains("10.0.0.7"), "{names:?}");
}

#[test]
fn certificates_are_renewed_before_they_expire() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    let first = open(&path, &[], &clock);
    clock.pass(340);
    let second = open(&path, &[], &clock);
    assert_ne!(first.server.certificate, second.server.certificate);
    assert_ne!(first.admin.certificate, second.admin.certificate);
    assert_eq!(first.ca, second.ca);
}

#[test]
fn an_expired_authority_is_replaced_with_all_it_signed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    let first = open(&path, &[], &clock);
    clock.pass(3_650);
    let second = open(&path, &[], &clock);
    assert_ne!(first.ca, second.ca);
    assert_ne!(first.admin.certificate, second.admin.certificate);
}

#[test]
fn an_authority_without_its_key_is_not_silently_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    open(&path, &[], &clock);
    fs::remove_file(path.join("ca.key")).unwrap();
    let error = Pki::open(&path, &loopback(&[]), OthersMayRead::Refuse, &clock).unwrap_err();
    assert!(error.to_string().contains("restore it"), "{error}");
}

#[test]
fn a_certificate_of_another_authority_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let clock = At::new("2026-11-01T00:00:00Z");
    open(&ours, &[], &clock);
    let foreign = open(&theirs, &[], &clock);
    for name in ["server.crt", "server.key"] {
        fs::copy(theirs.join(name), ours.join(name)).unwrap();
    }
    assert_ne!(open(&ours, &[], &clock).server.certificate, foreign.server.certificate);
}

/// B260
#[test]
fn a_key_that_others_may_read_fails_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    open(&path, &[], &clock);
    fs::set_permissions(path.join("ca.key"), fs::Permissions::from_mode(0o640)).unwrap();
    let error = Pki::open(&path, &loopback(&[]), OthersMayRead::Refuse, &clock).unwrap_err();
    assert!(error.to_string().contains("chmod 600"), "{error}");
    Pki::open(&path, &loopback(&[]), OthersMayRead::Allow, &clock).unwrap();
}

/// R96, B266
#[test]
fn a_clock_before_1970_or_in_2200_still_starts() {
    for time in ["1965-01-01T00:00:00Z", "2200-01-01T00:00:00Z"] {
        let dir = tempfile::tempdir().unwrap();
        let (path, clock) = (dir.path().join("pki"), At::new(time));
        let first = open(&path, &[], &clock);
        assert_eq!(first.ca, open(&path, &[], &clock).ca, "{time}");
    }
}

#[test]
fn an_invalid_certificate_name_is_rejected() {
    let clock = At::new("2026-11-01T00:00:00Z");
    let error = Pki::in_memory(&loopback(&["not a name"]), &clock).unwrap_err();
    assert!(error.to_string().contains("not a name"), "{error}");
}

#[test]
fn servers_that_start_at_once_with_one_directory_have_one_authority() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("pki");
    let open = |n: usize| {
        let (directory, name) = (&directory, format!("server-{n}.example.org"));
        move || {
            let clock = At::new("2026-01-01T00:00:00Z");
            open(directory, &[&name], &clock)
        }
    };
    let all: Vec<Pki> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..8).map(|n| scope.spawn(open(n))).collect();
        started.into_iter().map(|started| started.join().unwrap()).collect()
    });
    for pki in &all {
        assert_eq!(pki.ca, all[0].ca);
        assert_eq!(pki.service_account_key.reveal(), all[0].service_account_key.reveal());
        assert_eq!(pki.admin.certificate, all[0].admin.certificate);
    }
}

#[test]
fn nothing_secret_is_printed_by_debug() {
    let pki = Pki::in_memory(&loopback(&[]), &At::new("2026-11-01T00:00:00Z")).unwrap();
    assert!(!format!("{pki:?}").contains("PRIVATE KEY"));
}
