//! The benches run, and their figures are for programs too.

use serde_json::Value;

use crate::process::headwater;

#[test]
fn the_client_bench_compares_ways_to_keep_pods() {
    let home = tempfile::tempdir().unwrap();
    let ways = ["--keep", "kube-runtime", "--keep", "packed"];
    let size = ["--objects", "20", "--updates", "40"];
    let mut bench = headwater(&["bench", "client", "--memory", "--json"]);
    let output = bench.args(size).args(ways).current_dir(&home).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let counts: Vec<(&str, u64)> = lines
        .iter()
        .map(|line| (line["name"].as_str().unwrap(), line["count"].as_u64().unwrap()))
        .collect();
    assert_eq!(
        counts,
        [
            ("sync 20 pods, kube-runtime", 20),
            ("updates with 20 pods, kube-runtime", 40),
            ("sync 20 pods, packed", 20),
            ("updates with 20 pods, packed", 40),
        ]
    );
    assert!(lines[2]["against"]["cpu"].is_number(), "{}", lines[2]);
    assert!(std::fs::read_dir(home.path()).unwrap().next().is_none(), "nothing is left behind");
}
