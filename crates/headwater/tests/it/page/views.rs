//! What each view shows, and how it is used.

use serde_json::{Value, json};

use super::PageCluster;
use crate::browser::Browser;

/// Keys that have no character, as WebDriver names them.
const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";
const LEFT: &str = "\u{e012}";
const END: &str = "\u{e010}";

/// The budget of what the page loads, uncompressed.
const LOADED_MAX: f64 = 300.0 * 1024.0;

#[test]
fn a_pod_shows_up_in_the_overview_and_in_the_table() {
    let Some(browser) = Browser::start() else { return };
    let cluster = PageCluster::dev(&["--nodes", "2"]);
    browser.open(&cluster.url);
    browser.until("document.querySelectorAll('a.node').length === 2");
    assert_eq!(browser.text("location.search"), "", "the secret is not kept in the address");
    assert_eq!(browser.text("document.cookie"), "", "scripts do not see the cookie");

    cluster.kubectl("create deployment web --image=nginx:1 --replicas=3");
    browser.until("/^web/.test(document.querySelector('.dep .dname')?.innerText)");
    browser.until("document.querySelector('.dep .dn')?.innerText === '3/3'");
    let pods = "[...document.querySelectorAll('a.node')].map((n) => +/(\\d+) of/.exec(n.ariaLabel)[1])\
                .reduce((a, b) => a + b)";
    browser.until(&format!("{pods} === 3"));
    browser.until_shown("Created pod: web-");

    browser.press(&["g", "p"]);
    browser.until("document.querySelectorAll('.tr:not([hidden])').length === 3");
    let heads = "[...document.querySelectorAll('.th')].map((c) => c.innerText.trim()).join('|')";
    let heads = browser.text(heads);
    assert!(heads.contains("Status") && heads.contains("Restarts"), "{heads}");
    cluster.kubectl("run single --image=nginx");
    browser
        .until("[...document.querySelectorAll('.td.main')].some((c) => c.innerText === 'single')");
    browser.until("document.querySelector('.vt').getAttribute('aria-rowcount') === '4'");
    cluster.kubectl("delete pod single --now");
    browser.until("document.querySelectorAll('.tr:not([hidden])').length === 3");

    assert_eq!(browser.console(), Vec::<String>::new());
    let loaded = "performance.getEntriesByType('resource')";
    let foreign = format!("{loaded}.filter((e) => !e.name.startsWith(location.origin)).length");
    assert_eq!(browser.value(&foreign), 0);
    let files = format!("{loaded}.filter((e) => /\\.(js|css|svg)$/.test(e.name))");
    let files = format!("{files}.reduce((sum, e) => sum + e.decodedBodySize, 0)");
    let size = browser.number(&files);
    assert!(size > 10_000.0 && size < LOADED_MAX, "{size}");
}

#[test]
fn stepping_back_shows_the_exact_version_that_was_stored() {
    let Some(browser) = Browser::start() else { return };
    let cluster = PageCluster::dev(&["--nodes", "0"]);
    cluster.kubectl("create configmap settings --from-literal=color=blue");
    let stored = |cluster: &PageCluster| -> Value {
        serde_json::from_str(&cluster.kubectl("get configmap settings -o json")).unwrap()
    };
    let first = stored(&cluster);
    cluster.kubectl("annotate configmap settings note=second");
    browser.open(&cluster.url);
    browser.show("#/o/configmaps/default/settings");
    // The version before the page was opened comes from the server.
    browser.until_shown("2 of 2");
    browser.until_shown("note: second");
    // A change arrives, and the page follows it.
    cluster.kubectl("annotate configmap settings note=third --overwrite");
    browser.until_shown("3 of 3");
    browser.until("document.querySelector('.ln.chg')?.innerText.includes('note: third')");
    let last = stored(&cluster);

    browser.press(&[LEFT, LEFT]);
    browser.until_shown("1 of 3");
    let shown = "[...document.querySelectorAll('.code .src')].map((l) => l.innerText).join('\\n')";
    let text = browser.text(shown);
    let version =
        |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    assert!(text.contains(&format!("resourceVersion: \"{}\"", version(&first))), "{text}");
    assert!(text.contains("color: blue") && !text.contains("note:"), "{text}");
    // A change that arrives does not move the reader.
    cluster.kubectl("annotate configmap settings note=fourth --overwrite");
    browser.until_shown("1 of 4");
    browser.until_shown("3 newer");
    assert_eq!(browser.text(shown), text);
    browser.press(&[END]);
    browser.until_shown("4 of 4");
    browser.press(&["d"]);
    browser.until(
        "[...document.querySelectorAll('.ln.del')].some((l) => l.innerText.includes('third'))",
    );
    browser.until(
        "[...document.querySelectorAll('.ln.add')].some((l) => l.innerText.includes('fourth'))",
    );
    assert!(
        browser
            .text("document.querySelector('.vline').innerText")
            .contains(&format!("compared with {}", version(&last)))
    );
    browser.press_with_shift(LEFT);
    browser.until(
        "[...document.querySelectorAll('.ln.del')].some((l) => l.innerText.includes('second'))",
    );
    cluster.kubectl("delete configmap settings");
    browser.until("document.querySelector('.inline-note')?.innerText.includes('Deleted')");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn the_owners_and_owned_objects_and_the_events_of_an_object_are_shown() {
    let Some(browser) = Browser::start() else { return };
    let cluster = PageCluster::dev(&["--nodes", "1"]);
    cluster.kubectl("create deployment web --image=nginx --replicas=2");
    browser.open(&cluster.url);
    browser.show("#/o/deployments/default/web");
    let kinds = "[...document.querySelectorAll('.tree .tk')].map((k) => k.innerText).join()";
    browser.until(&format!("{kinds} === 'Deployment,ReplicaSet,Pod,Pod'"));
    browser.until_shown("ScalingReplicaSet");
    browser.value("document.querySelectorAll('.tree a')[2].click()");
    browser.until("location.hash.startsWith('#/o/pods/default/web-')");
    browser.until(&format!("{kinds} === 'Deployment,ReplicaSet,Pod,Pod'"));
    browser.until("document.querySelector('.ostatus')?.innerText.includes('Running')");
}

#[test]
fn the_values_of_secrets_stay_hidden() {
    let Some(browser) = Browser::start() else { return };
    let cluster = PageCluster::dev(&["--nodes", "0"]);
    cluster.kubectl("create secret generic login --from-literal=password=correct-horse");
    browser.open(&cluster.url);
    browser.show("#/o/secrets/default/login");
    browser.until_shown("hidden, 13 bytes");
    let text = browser.text("document.body.innerText");
    assert!(!text.contains("correct-horse") && !text.contains("Y29ycmVjdC1ob3JzZQ"), "{text}");
}

#[test]
fn the_page_is_used_with_the_keyboard_alone() {
    let Some(browser) = Browser::start() else { return };
    let cluster = PageCluster::dev(&["--nodes", "1"]);
    cluster.kubectl("create deployment web --image=nginx --replicas=3");
    browser.open(&cluster.url);
    browser.until("document.querySelector('.dep .dn')?.innerText === '3/3'");
    browser.press(&["g", "p"]);
    browser.until("document.querySelectorAll('.tr:not([hidden])').length === 3");
    browser.press(&["j", "j"]);
    let selected = browser.until("document.querySelector('.tr.sel .td.main')?.innerText");
    browser.press(&[ENTER]);
    browser.until(&format!("location.hash.endsWith({selected})"));
    browser.until("/^(?!1 of)\\d+ of/.test(document.querySelector('.vline b')?.innerText)");
    let versions = browser.number("+document.querySelector('.tl').ariaValueMax");
    browser.press(&[LEFT]);
    browser.until(&format!("+document.querySelector('.tl').ariaValueNow === {}", versions - 1.0));
    let focus = "document.activeElement !== document.body && document.activeElement.matches(':focus-visible')";
    browser.until(focus);
    browser.press(&[ESCAPE]);
    browser.until("location.hash === '#/t/pods'");
    browser.until("document.querySelectorAll('.tr:not([hidden])').length === 3");
    browser.press(&["/", "z", "z", "z"]);
    browser.until_shown("Nothing matches");
    browser.press(&[ESCAPE]);
    browser.until("document.querySelectorAll('.tr:not([hidden])').length === 3");
    browser.press(&[ESCAPE, ESCAPE]);
    browser.until("location.hash === '#/overview'");
    browser.press(&["/", "n", "o", "d", "e", "-", "0"]);
    browser.until("document.querySelector('.jh.on')?.innerText.includes('node-0')");
    browser.press(&[ENTER]);
    browser.until("location.hash.endsWith('/node-0')");
    browser.press(&["t"]);
    let theme = browser.text("document.documentElement.dataset.theme");
    browser.press(&["t"]);
    browser.until(&format!("document.documentElement.dataset.theme !== {}", json!(theme)));
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn the_page_never_scrolls_sideways() {
    let Some(browser) = Browser::start() else { return };
    let cluster = PageCluster::dev(&["--nodes", "3"]);
    cluster.kubectl("create deployment web --image=nginx --replicas=3");
    browser.open(&cluster.url);
    browser.until("document.querySelector('.dep .dn')?.innerText === '3/3'");
    for (view, ready) in [
        ("#/overview", ".dep"),
        ("#/t/pods", ".tr .td"),
        ("#/o/deployments/default/web", ".ln"),
        ("#/river", ".watchers .tr"),
        ("#/connection", ".st a"),
    ] {
        for width in [390, 1024, 1200, 1440] {
            browser.resize(width, 900);
            browser.show(view);
            browser.until(&format!("document.querySelector({})", json!(ready)));
            let excess = "Math.max(document.documentElement.scrollWidth - innerWidth,\
                          ...[...document.querySelectorAll('.view')].map((v) => v.scrollWidth - v.clientWidth))";
            // The view is laid out again after the window has its new size.
            browser.until(&format!("{excess} <= 0"));
        }
    }
    assert_eq!(browser.console(), Vec::<String>::new());
}
