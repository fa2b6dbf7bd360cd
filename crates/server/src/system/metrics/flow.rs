//! Metrics of priority and fairness, by level and schema.
//!
//! River: flow control counts. The gauges of the levels are registered by flow control itself.

use headwater_api::metrics::{Counter, Desc, Family, Gauge, Histogram, Registry};

const TIMES: &[f64] = &[0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const QUEUE_LENGTHS: &[f64] = &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const WIDTHS: &[f64] = &[1.0, 2.0, 4.0, 10.0, 20.0, 50.0, 100.0];

families! {
    /// Families about the flows of requests.
    pub struct FlowFamilies {
        dispatched: Counter = apiserver_flowcontrol_dispatched_requests_total(
            priority_level, flow_schema
        ),
            "Requests that got seats.";
        /// `reason` is `queue-full`, `concurrency-limit`, `time-out` or `cancelled`.
        rejected: Counter = apiserver_flowcontrol_rejected_requests_total(
            priority_level, flow_schema, reason
        ),
            "Requests that got none.";
        queued: Gauge = apiserver_flowcontrol_current_inqueue_requests(priority_level, flow_schema),
            "Requests that wait now.";
        queued_seats: Gauge = apiserver_flowcontrol_current_inqueue_seats(
            priority_level, flow_schema
        ),
            "Seats that waiting requests want.";
        running: Gauge = apiserver_flowcontrol_current_executing_requests(
            priority_level, flow_schema
        ),
            "Requests that hold seats now; of watches, those that begin.";
        seats: Gauge = apiserver_flowcontrol_current_executing_seats(priority_level, flow_schema),
            "Seats that requests hold now.";
        queue_length: Histogram(QUEUE_LENGTHS) = apiserver_flowcontrol_request_queue_length_after_enqueue(
            priority_level, flow_schema
        ),
            "The length of the queue that a request joined.";
        /// `execute` is whether it got seats.
        waited: Histogram(TIMES) = apiserver_flowcontrol_request_wait_duration_seconds(
            priority_level, flow_schema, execute
        ),
            "Time in a queue.";
        /// `type` is `regular` or `watch`.
        ran: Histogram(TIMES) = apiserver_flowcontrol_request_execution_seconds(
            priority_level, flow_schema, type
        ),
            "Time with seats.";
        width: Histogram(WIDTHS) = apiserver_flowcontrol_work_estimated_seats(
            priority_level, flow_schema
        ),
            "Seats that requests were estimated to need.";
    }
}
