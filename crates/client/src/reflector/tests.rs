//! Tests of the reflector with parts of it dropped.

use super::source::TypedSource;
use super::*;
use crate::delta_queue::queue;
use crate::informer::{InformerInner, Options};
use crate::object::ResourceType;
use crate::script::Script;
use k8s_openapi::api::core::v1::ConfigMap;

/// C6.5: the queue refuses a resync only if its consumer was dropped.
#[tokio::test(start_paused = true)]
async fn a_resync_that_fails_ends_the_watch() {
    let (script, source) = Script::<ConfigMap>::new();
    let options = Options::new("maps", ResourceType::of::<ConfigMap>(&()));
    let shared = InformerInner::<ConfigMap>::new(options);
    let (producer, consumer) = queue();
    let resync = Arc::new(Notify::new());
    let source = Arc::new(TypedSource(Arc::new(source)));
    let mut reflector =
        Reflector::new(shared, LaneScope::All, source, producer, None, Arc::clone(&resync));
    reflector.machine.resume_from("5".into());
    let Action::Watch(plan) = reflector.decide(Input::Start) else { panic!("it resumes") };
    let open = script.expect_watch();
    open.bookmark("6");

    let mut watching = Box::pin(reflector.watch(plan));
    assert!(futures::poll!(&mut watching).is_pending());
    drop(consumer);
    resync.notify_waiters();
    let end = watching.await;
    assert!(matches!(end, Input::StreamBroken(_)), "{end:?}");
    assert!(reflector.error.is_some(), "the error is there to be reported");
    assert_eq!(script.open_streams(), 0);
}
