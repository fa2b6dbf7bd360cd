//! The cost of each stage of a write: a pod of about 6 KB, from its body to the stored bytes.
//!
//! `cargo bench -p headwater-schema --bench write [stage]`. Each line is the median of many rounds on one thread.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use headwater_api::{Kind, kind, name};
use headwater_json as json;
use headwater_json::Value;
use headwater_schema::decode::Format;
use headwater_schema::managed::{self, Builtin, Write};
use headwater_schema::{decode, defaults, validate};

/// As in the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of rounds of a stage; the median is reported.
const ROUNDS: usize = 201;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let bench = Bench { wanted };
    let pods =
        kind::builtin().into_iter().find(|kind| kind.plural == "pods").expect("there are pods");
    let body = include_bytes!("pod.json");
    let parsed = headwater_json::parse(body).expect("it is JSON").value;
    let decoded = object(&pods, body);
    let defaulted = defaulted(&pods, decoded.clone());
    let created = tracked(&pods, None, defaulted.clone(), "kubectl-create");
    let mut changed = created.clone();
    changed["metadata"]["annotations"]["bench.headwater/mark"] = "1".into();
    let mut whole = created.clone();
    managed::unpack(&mut whole);
    let stored = bytes(&whole);
    let config = parsed;
    println!("body {} bytes, stored {} bytes", body.len(), stored.len());

    bench.stage("parse JSON", || headwater_json::parse(body));
    bench.stage("read stored JSON", || decode::stored(&stored));
    bench.stage("clone the tree", || created.clone());
    bench.stage("decode (parse and fit)", || object(&pods, body));
    bench.of("defaults", || decoded.clone(), |value| self::defaulted(&pods, value));
    bench.stage("validate, create", || {
        (name::metadata_on_create(&pods, &defaulted), validate::create(&pods, &defaulted))
    });
    bench.stage("validate, update", || {
        (
            name::metadata_on_update(&pods, &changed, &created),
            validate::update(&pods, &changed, &created),
        )
    });
    bench.of(
        "track, create",
        || defaulted.clone(),
        |value| tracked(&pods, None, value, "kubectl-create"),
    );
    bench.of(
        "track, update",
        || changed.clone(),
        |value| tracked(&pods, Some(&created), value, "kubectl-edit"),
    );
    bench.of("apply, new", || config.clone(), |value| applied(&pods, None, &value));
    let live = applied(&pods, None, &config);
    let live = self::defaulted(&pods, live);
    bench.of("apply, same again", || config.clone(), |value| applied(&pods, Some(&live), &value));
    let mut other = config;
    other["metadata"]["annotations"]["bench.headwater/mark"] = "1".into();
    bench.of("apply, one change", || other.clone(), |value| applied(&pods, Some(&live), &value));
    bench.stage("write JSON", || bytes(&created));
}

struct Bench {
    wanted: Vec<String>,
}

impl Bench {
    fn stage<T>(&self, name: &str, mut run: impl FnMut() -> T) {
        self.of(name, || (), |()| run());
    }

    /// Only `run` is timed, including the drop of its result, as in the server.
    fn of<I, T>(&self, name: &str, mut input: impl FnMut() -> I, mut run: impl FnMut(I) -> T) {
        if !self.wanted.is_empty()
            && !self.wanted.iter().any(|wanted| name.contains(wanted.as_str()))
        {
            return;
        }
        let mut times: Vec<Duration> = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            const BATCH: usize = 20;
            let inputs: Vec<I> = (0..BATCH).map(|_| input()).collect();
            let began = Instant::now();
            for input in inputs {
                drop(black_box(run(black_box(input))));
            }
            times.push(began.elapsed() / BATCH as u32);
        }
        times.sort_unstable();
        println!("{name:<28} {:>8.1} µs", times[ROUNDS / 2].as_nanos() as f64 / 1000.0);
    }
}

fn object(kind: &Kind, body: &[u8]) -> Value {
    decode::object(kind, Format::Json, body).expect("it is a pod").value
}

fn defaulted(kind: &Kind, mut value: Value) -> Value {
    defaults::apply(kind, &mut value, None);
    defaults::prepare_for_create(kind, &mut value);
    value
}

fn write<'a>(manager: &'a str) -> Write<'a> {
    Write {
        manager,
        subresource: "",
        api_version: "v1",
        now: jiff::Timestamp::UNIX_EPOCH,
        ignored: &["status"],
    }
}

fn tracked(kind: &Kind, old: Option<&Value>, mut value: Value, manager: &str) -> Value {
    let structure = Builtin::of(kind).expect("pods are built in");
    managed::track_update(old, &mut value, &write(manager), structure).expect("it is tracked");
    value
}

fn applied(kind: &Kind, live: Option<&Value>, config: &Value) -> Value {
    let structure = Builtin::of(kind).expect("pods are built in");
    managed::apply(live, config, &write("kubectl"), false, kind, structure).expect("it applies")
}

fn bytes(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8192);
    json::push_value(&mut bytes, value);
    bytes
}
