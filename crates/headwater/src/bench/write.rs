//! Writes: what a durable create or update costs, and how long it takes.

use anyhow::Result;
use http::Method;

use super::load::{Work, create_pod, load, make_namespaces};
use super::measure::{Meter, rss};
use super::object::{config_map, namespace, pod, pod_name};
use super::report::{Line, Report};
use super::target::Target;

pub(super) async fn run(target: &Target, objects: usize, report: &mut Report) -> Result<()> {
    make_namespaces(target).await?;
    let alone = (objects / 10).max(1);
    let measured =
        |name: &str, clients, count, from| Case { name: name.into(), clients, count, from };

    let case = measured("create pod, 16 clients", 16, objects, 0);
    case.run(target, report, "≤ 150 µs, ≥ 6,000/s, p50 ≤ 3 ms", create_pod).await?;
    let case = measured("update pod, 16 clients", 16, objects, 0);
    case.run(target, report, "≤ 150 µs, ≥ 6,000/s", update_pod).await?;
    let case = measured("apply pod, 16 clients", 16, objects, 0);
    case.run(target, report, "≤ 200 µs", apply_pod).await?;
    let case = measured("create config map, 64 clients", 64, objects, 0);
    case.run(target, report, "≤ 80 µs, ≥ 12,000/s", create_config_map).await?;
    let case = measured("create pod, 1 client", 1, alone, objects);
    case.run(target, report, "p50 ≤ 0.6 ms", create_pod).await?;
    report.line(&Line::new("memory after all of them", "bytes").bytes(rss(target)));
    Ok(())
}

struct Case {
    name: String,
    clients: usize,
    count: usize,
    /// The index of the first object.
    from: usize,
}

impl Case {
    async fn run(
        self,
        target: &Target,
        report: &mut Report,
        goal: &'static str,
        work: fn(usize) -> Work,
    ) -> Result<()> {
        let from = self.from;
        let meter = Meter::start(target);
        let done =
            load(&target.endpoint, self.clients, self.count, move |index| work(from + index));
        let done = done.await?;
        let used = meter.stop();
        let line = Line::new(self.name, "writes").used(self.count as u64, used);
        report.line(&line.latency(&done.micros).target(goal));
        Ok(())
    }
}

fn update_pod(index: usize) -> Work {
    let namespace = namespace(index);
    Work {
        method: Method::PUT,
        path: format!("/api/v1/namespaces/{namespace}/pods/{}", pod_name(index)),
        body: pod(index, &namespace, 1),
    }
}

/// Server-side apply, by a manager that takes over every field of the pod.
fn apply_pod(index: usize) -> Work {
    let namespace = namespace(index);
    let query = "fieldManager=bench-apply&force=true";
    Work {
        method: Method::PATCH,
        path: format!("/api/v1/namespaces/{namespace}/pods/{}?{query}", pod_name(index)),
        body: pod(index, &namespace, 2),
    }
}

fn create_config_map(index: usize) -> Work {
    let namespace = namespace(index);
    Work {
        method: Method::POST,
        path: format!("/api/v1/namespaces/{namespace}/configmaps"),
        body: config_map(index, &namespace),
    }
}
