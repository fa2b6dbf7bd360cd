use std::collections::BTreeMap;
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
    let names =
        certificate::with_certificate(&second.server.certificate, certificate::subject_names)
            .unwrap();
    assert!(names.contains("api.example.org") && names.contains("10.0.0.7"), "{names:?}");
}

/// Freed memory cannot be read in a test. That the type of a key overwrites it can be checked.
#[test]
fn private_keys_are_overwritten_when_they_are_dropped_and_never_printed() {
    fn is_overwritten(_: &impl zeroize::ZeroizeOnDrop) {}
    let pki = Pki::in_memory(&loopback(&[]), &At::new("2026-11-01T00:00:00Z")).unwrap();
    let issuer = crate::front::service_account::Issuer::new(&pki.service_account_key).unwrap();
    let printed = format!("{pki:?} {:?} {issuer:?} {:#?}", pki.admin, pki.service_account_key);
    let Pki { server, admin, signing, front_proxy, service_account_key, .. } = &pki;
    let pairs = [server, admin, signing, &front_proxy.client].map(|pair| &pair.key);
    for Secret(text) in pairs.into_iter().chain([service_account_key]) {
        is_overwritten(text);
        let is_secret = |line: &&str| !line.is_empty() && !line.contains("-----");
        // The last line is a part of the public key, which the certificate shows too.
        let secret: Vec<&str> = text.lines().map(str::trim).filter(is_secret).take(2).collect();
        assert!(!secret.is_empty());
        for line in secret {
            assert!(!printed.contains(line), "{printed}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    private_file::replace(&path, "secret", private_file::PRIVATE).unwrap();
    is_overwritten(&private_file::read(&path, OthersMayRead::Refuse).unwrap());
    let (_, key) = SigningAuthority::create("2026-11-01T00:00:00Z".parse().unwrap()).unwrap();
    is_overwritten(&key);
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

/// The content of every file, by name, except the lock.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.is_file() && !path.ends_with(".lock"));
    files.map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect()
}

/// R96, B266
#[test]
fn a_start_with_a_wrong_clock_changes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    open(&path, &[], &clock);
    clock.pass(400);
    open(&path, &[], &clock);
    let before = files(&path);
    for wrong in [
        "1965-01-01T00:00:00Z",
        "1999-01-01T00:00:00Z",
        "2040-01-01T00:00:00Z",
        "2200-01-01T00:00:00Z",
    ] {
        open(&path, &[], &At::new(wrong));
        assert_eq!(files(&path), before, "{wrong}");
    }
}

#[test]
fn with_a_wrong_clock_new_certificates_have_dates_of_the_authority() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    let first = open(&path, &[], &clock);
    let authority = certificate::Dates::of(&first.ca).unwrap();
    for wrong in ["1999-01-01T00:00:00Z", "2040-01-01T00:00:00Z"] {
        let renewed = open(&path, &[wrong.get(..4).unwrap()], &At::new(wrong));
        assert_eq!(renewed.ca, first.ca);
        assert_ne!(renewed.server.certificate, first.server.certificate);
        let dates = certificate::Dates::of(&renewed.server.certificate).unwrap();
        assert!(authority.from <= dates.from && dates.to <= authority.to, "{dates:?}");
    }
}

#[test]
fn the_dates_of_an_authority_are_a_warning() {
    let (authority, _) = SigningAuthority::create("2026-11-01T00:00:00Z".parse().unwrap()).unwrap();
    for (now, expected) in [
        ("1999-01-01T00:00:00Z", Some("correct the clock")),
        ("2026-11-01T00:00:00Z", None),
        ("2036-04-01T00:00:00Z", None),
        ("2036-10-01T00:00:00Z", Some("expires at 2036-10-31")),
        ("2040-01-01T00:00:00Z", Some("expired at 2036-10-31")),
    ] {
        let concern = authority.concern(now.parse().unwrap());
        assert_eq!(concern.is_some(), expected.is_some(), "{now}: {concern:?}");
        assert!(concern.unwrap_or_default().contains(expected.unwrap_or_default()), "{now}");
    }
}

#[test]
fn a_damaged_or_incomplete_authority_fails_the_start_and_is_not_replaced() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage, &str); 7] = [
        ("no key", |path| fs::remove_file(path.join("ca.key")).unwrap(), "restore it"),
        ("no certificate", |path| fs::remove_file(path.join("ca.crt")).unwrap(), "restore it"),
        (
            "neither",
            |path| ["ca.crt", "ca.key"].iter().for_each(|f| fs::remove_file(path.join(f)).unwrap()),
            "restore it",
        ),
        ("damaged", |path| fs::write(path.join("ca.crt"), b"\xff\xfe").unwrap(), "restore it"),
        ("damaged key", |path| fs::write(path.join("ca.key"), "?").unwrap(), "restore it"),
        (
            "unreadable",
            |path| {
                fs::remove_file(path.join("ca.crt")).unwrap();
                fs::create_dir(path.join("ca.crt")).unwrap();
            },
            "cannot read",
        ),
        (
            "another key",
            |path| fs::copy(path.join("admin.key"), path.join("ca.key")).map(|_| ()).unwrap(),
            "does not belong",
        ),
    ];
    for (name, damage, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
        open(&path, &[], &clock);
        damage(&path);
        let before = files(&path);
        let error = Pki::open(&path, &loopback(&[]), OthersMayRead::Refuse, &clock).unwrap_err();
        assert!(error.to_string().contains(expected), "{name}: {error}");
        assert_eq!(files(&path), before, "{name}");
    }
}

#[test]
fn a_first_start_that_was_interrupted_is_completed_with_the_same_key() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    open(&path, &[], &clock);
    for name in ["ca.crt", "server.crt", "server.key", "admin.crt", "admin.key"] {
        fs::remove_file(path.join(name)).unwrap();
    }
    let key = fs::read(path.join("ca.key")).unwrap();
    open(&path, &[], &clock);
    assert_eq!(fs::read(path.join("ca.key")).unwrap(), key);
}

#[test]
fn a_renewed_certificate_keeps_a_copy_of_its_predecessor() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    let first = open(&path, &[], &clock);
    clock.pass(340);
    open(&path, &[], &clock);
    let kept = |name: &str| fs::read_to_string(path.join(name)).unwrap();
    assert_eq!(kept("admin.crt.old"), first.admin.certificate);
    assert_eq!(kept("admin.key.old"), first.admin.key.reveal());
}

#[test]
fn during_a_rotation_both_authorities_are_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    let first = open(&path, &[], &clock);
    rotation::begin(&path, OthersMayRead::Refuse, &clock).unwrap();
    let both = open(&path, &[], &clock);
    assert!(both.ca.starts_with(&first.ca) && both.ca.len() > first.ca.len());
    assert_eq!(both.server.certificate, first.server.certificate);
    assert_ne!(both.admin.certificate, first.admin.certificate);
    let again = rotation::begin(&path, OthersMayRead::Refuse, &clock).unwrap_err();
    assert!(again.to_string().contains("--finish"), "{again}");

    let retired = rotation::finish(&path, OthersMayRead::Refuse).unwrap();
    assert_eq!(fs::read_to_string(retired.join("ca.crt")).unwrap(), first.ca);
    let last = open(&path, &[], &clock);
    assert_eq!(format!("{}{}", first.ca, last.ca), both.ca);
    assert_eq!(last.admin.certificate, both.admin.certificate);
    assert_ne!(last.server.certificate, both.server.certificate);
    let none = rotation::finish(&path, OthersMayRead::Refuse).unwrap_err();
    assert!(none.to_string().contains("begin with"), "{none}");
}

#[test]
fn an_interrupted_end_of_a_rotation_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    let first = open(&path, &[], &clock);
    rotation::begin(&path, OthersMayRead::Refuse, &clock).unwrap();
    // The first of the two renames.
    fs::rename(path.join("next/ca.key"), path.join("ca.key")).unwrap();
    let error = Pki::open(&path, &loopback(&[]), OthersMayRead::Refuse, &clock).unwrap_err();
    assert!(error.to_string().contains("repeat"), "{error}");
    rotation::finish(&path, OthersMayRead::Refuse).unwrap();
    assert_ne!(open(&path, &[], &clock).ca, first.ca);
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

/// S5
#[test]
fn a_revoked_administrator_gets_a_new_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let (path, clock) = (dir.path().join("pki"), At::new("2026-11-01T00:00:00Z"));
    let first = open(&path, &[], &clock);
    revoked::revoke(&path, &first.admin.certificate, OthersMayRead::Refuse).unwrap();
    let second = open(&path, &[], &clock);
    assert_ne!(second.admin.certificate, first.admin.certificate);
    assert_eq!(second.server.certificate, first.server.certificate);
    assert_eq!(open(&path, &[], &clock).admin.certificate, second.admin.certificate);
}
