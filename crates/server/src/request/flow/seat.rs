//! The seat of an admitted request: who holds it, and how long.
//!
//! River: admission → **seat** → handler, body. Promise: a seat is held until the response has been
//! sent, or a watch has sent its initial events (S7.7).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;

use super::classify::Flow;
use super::level::LevelSeat;
use super::plain::PlainSeat;
use crate::answer::body::{Body, Data, Response};

/// What an admitted request holds.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    held: Option<HeldSeat>,
    flow: Option<Arc<Flow>>,
}

/// A seat that is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct HeldSeat {
    _by: SeatOwner,
}

/// Who gets the seat back.
#[derive(Debug)]
enum SeatOwner {
    Level { _seat: LevelSeat },
    Server { _seat: PlainSeat },
}

impl Seat {
    pub(super) fn of_level(seat: LevelSeat, flow: &Arc<Flow>) -> Seat {
        let held = HeldSeat { _by: SeatOwner::Level { _seat: seat } };
        Seat { held: Some(held), flow: Some(Arc::clone(flow)) }
    }

    pub(super) fn plain(seat: PlainSeat) -> Seat {
        Seat { held: Some(HeldSeat { _by: SeatOwner::Server { _seat: seat } }), flow: None }
    }

    /// The priority level of the request; empty without fairness.
    pub(crate) fn level(&self) -> &str {
        self.flow.as_ref().map_or("", |flow| flow.level.name.as_str())
    }

    /// Takes the seat out, to hold it for another time than the request. Dropped, it is given back.
    pub(crate) fn take(&mut self) -> Option<HeldSeat> {
        self.held.take()
    }

    /// Names the flow in the response, and holds the seat until the response has been sent.
    pub(crate) fn answered(mut self, mut response: Response) -> Response {
        if let Some(flow) = &self.flow {
            flow.sign(&mut response);
        }
        // Short responses are complete already.
        let is_streamed = response.body().size_hint().exact().is_none();
        match self.take().filter(|_| is_streamed) {
            Some(seat) => response.map(|body| SeatedBody { body, _seat: seat }.boxed_unsync()),
            None => response,
        }
    }
}

/// A body with the seat of its request.
struct SeatedBody {
    body: Body,
    _seat: HeldSeat,
}

impl http_body::Body for SeatedBody {
    type Data = Data;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Data>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
