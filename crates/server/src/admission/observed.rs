//! Metrics of admission: duration and result of its phases and steps.

use std::future::Future;

use headwater_api::Status;
use tokio::time::Instant;

use super::request::Operation;
use crate::system::metrics::Metrics;
use crate::system::metrics::admission::AdmissionLabels;

/// One phase of an admission.
#[derive(Clone, Copy)]
pub(super) struct Observed<'a> {
    metrics: &'a Metrics,
    labels: AdmissionLabels,
}

impl<'a> Observed<'a> {
    /// `step` is `admit` or `validate`.
    pub(super) fn new(
        metrics: &'a Metrics,
        step: &'static str,
        operation: Operation,
    ) -> Observed<'a> {
        Observed { metrics, labels: AdmissionLabels { step, operation: operation.name() } }
    }

    pub(super) fn labels(self) -> AdmissionLabels {
        self.labels
    }

    /// Measures the phase.
    pub(super) async fn step<T>(
        self,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let begun = Instant::now();
        let done = work.await;
        self.metrics.admission.step(self.labels, done.is_err(), begun.elapsed());
        done
    }

    /// Measures a step with `members` policies or webhooks; without any it is not counted.
    pub(super) async fn controller<T>(
        self,
        name: &str,
        members: usize,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        if members == 0 {
            return work.await;
        }
        let begun = Instant::now();
        let done = work.await;
        self.metrics.admission.controller(name, self.labels, done.is_err(), begun.elapsed());
        done
    }
}
