//! The pictures of the documentation, on request:
//! `HEADWATER_PICTURES=1 cargo nextest run -p headwater page::pictures`.

use serde_json::json;

use super::PageCluster;
use crate::browser::Browser;

/// The pictures that the documentation shows.
const KEPT: [&str; 7] = [
    "overview-light",
    "table-dark",
    "object-light",
    "river-dark",
    "connection-light",
    "phone-dark",
    "phone-river-light",
];

/// Writes docs/pictures if the environment asks for it, and always shows every view in both themes.
#[test]
fn every_view_is_shown_in_both_themes() {
    let Some(browser) = Browser::start() else { return };
    let cluster = PageCluster::dev(&["--nodes", "6"]);
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    let wanted = std::env::var_os("HEADWATER_PICTURES").is_some();
    for namespace in ["shop", "billing"] {
        cluster.kubectl(&format!("create namespace {namespace}"));
    }
    for (namespace, name, replicas) in [
        ("shop", "web", 24),
        ("shop", "cart", 12),
        ("shop", "checkout", 9),
        ("shop", "search", 16),
        ("billing", "ledger", 8),
        ("billing", "invoices", 6),
        ("default", "gateway", 10),
    ] {
        let image = format!("registry.example.com/{name}:1.4.0");
        cluster.kubectl(&format!(
            "create deployment {name} -n {namespace} --image={image} --replicas={replicas}"
        ));
        let requests = "--requests=cpu=400m,memory=900Mi";
        cluster.kubectl(&format!("set resources deployment/{name} -n {namespace} {requests}"));
    }
    browser.open(&cluster.url);
    browser.until("[...document.querySelectorAll('.dep')].length === 7");
    let counts = "[...document.querySelectorAll('.dep .dn')].map((n) => n.innerText.split('/'))";
    browser.until(&format!("{counts}.every(([ready, wanted]) => ready === wanted)"));
    let roll = |version: u32| {
        for (namespace, name) in [("shop", "web"), ("billing", "ledger")] {
            let image = format!("{name}=registry.example.com/{name}:1.{version}.0");
            cluster.kubectl(&format!("set image deployment/{name} -n {namespace} {image}"));
        }
    };
    for (round, theme) in [(5, "light"), (6, "dark")] {
        browser.value(&format!("void (document.documentElement.dataset.theme = {})", json!(theme)));
        let picture = |name: &str| {
            browser.paint();
            if wanted && KEPT.contains(&format!("{name}-{theme}").as_str()) {
                std::fs::create_dir_all(&folder).unwrap();
                browser.picture(&folder.join(format!("page-{name}-{theme}.png")));
            }
        };
        browser.resize(1280, 800);
        browser.show("#/overview");
        roll(round);
        browser.until("document.querySelectorAll('.dep.rolling').length > 0");
        picture("overview");
        browser.show("#/t/pods");
        browser.until("document.querySelectorAll('.tr:not([hidden])').length > 20");
        picture("table");
        browser.show("#/o/deployments/shop/web");
        browser.until("+document.querySelector('.tl')?.ariaValueMax > 5");
        browser.press(&["d"]);
        browser.until("document.querySelector('.ln.add')");
        picture("object");
        browser.show("#/river");
        browser.until("document.querySelectorAll('.watchers .tr:not([hidden])').length > 8");
        roll(round + 10);
        browser.until(
            "[...document.querySelectorAll('.frow .fa')].some((n) => parseFloat(n.innerText) > 1)",
        );
        picture("river");
        browser.show("#/connection");
        browser.until("document.querySelectorAll('.st a').length > 20");
        picture("connection");
        browser.resize(390, 800);
        browser.show("#/overview");
        browser.until("document.querySelectorAll('.dep').length === 7");
        picture("phone");
        browser.show("#/river");
        browser.until("document.querySelectorAll('.frow .fa').length > 3");
        picture("phone-river");
    }
    assert_eq!(browser.console(), Vec::<String>::new());
}
