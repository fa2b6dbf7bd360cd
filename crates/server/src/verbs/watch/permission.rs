//! The permission of an open watch at a relay, confirmed again at an interval.
//!
//! River: timer of a watch → **permission** → authorizers → the end of the watch.
//! Promise: a watch ends after its reader has lost the right to it (R98). A review delays no event, and
//! one that fails ends nothing. Reviews of the same question share their answer, as those of requests do.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use headwater_api::Status;
use headwater_api::query::Query;
use tokio::time::Instant;

use crate::front::identity::Identity;
use crate::request::authorize::{self, AccessRequest};
use crate::request::call::Call;
use crate::request::route::Route;
use crate::server::Server;

/// The permission of one watch.
pub(super) struct WatchPermission {
    server: Server,
    question: Arc<WatchQuestion>,
    every: Duration,
    due: Instant,
    /// Returns why the watch must end, or nothing.
    review: Option<BoxFuture<'static, Option<Status>>>,
}

/// Who watches what.
struct WatchQuestion {
    identity: Arc<Identity>,
    route: Route,
    query: Query,
}

impl WatchPermission {
    /// The permission of a watch that starts now; `None` on servers that do not confirm it again.
    pub(super) fn new(server: &Server, call: &Call, route: &Route) -> Option<Box<WatchPermission>> {
        let every = server.settings().recheck_watches?;
        let question = WatchQuestion {
            identity: Arc::clone(&call.identity),
            route: route.clone(),
            query: call.query.clone(),
        };
        Some(Box::new(WatchPermission {
            server: server.clone(),
            question: Arc::new(question),
            every,
            due: Instant::now() + every,
            review: None,
        }))
    }

    /// When the next review is due.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Begins a review if one is due.
    pub(super) fn tick(&mut self, now: Instant) {
        if now < self.due {
            return;
        }
        self.due = now + self.every;
        if self.review.is_none() {
            self.review = Some(review(self.server.clone(), Arc::clone(&self.question)).boxed());
        }
    }
}

async fn review(server: Server, question: Arc<WatchQuestion>) -> Option<Status> {
    let asked = AccessRequest::of(&question.route, &question.query);
    let decision = server.access().decide(&question.identity, &asked).await;
    // If the upstream cannot be asked, it sends nothing new either.
    let is_lost = !decision.is_allowed() && !decision.is_failure();
    is_lost.then(|| authorize::refusal(&question.identity, &asked.attributes, &decision.reason))
}

/// Why the watch must end, as soon as a review says so.
pub(super) async fn lost(permission: &mut Option<Box<WatchPermission>>) -> Status {
    if let Some(permission) = permission
        && let Some(review) = &mut permission.review
    {
        let lost = review.await;
        permission.review = None;
        if let Some(status) = lost {
            return status;
        }
    }
    std::future::pending().await
}
