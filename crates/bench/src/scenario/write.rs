//! `bench write`: the CPU and latency of durable writes, with one client and with many.

use anyhow::Result;

use crate::load::checker::ExpectedEvents;
use crate::load::requests::{
    apply_pod, create_config_map, create_pod, create_widget, delete_pod, make_definition,
    make_namespaces, patch_pod, update_pod,
};
use crate::load::{WriteRequest, load};
use crate::report::Case;
use crate::report::figures::Figures;
use crate::session::Session;
use crate::target::TargetServer;
use crate::target::measure::{Meter, rss};

/// The kind of write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WriteVerb {
    /// POST of a pod
    CreatePod,
    /// PUT of an existing pod
    UpdatePod,
    /// Server-side apply of an existing pod, by a second manager
    ApplyPod,
    /// Strategic merge patch of an existing pod
    PatchPod,
    /// DELETE of a pod
    DeletePod,
    /// POST of a config map
    CreateConfigMap,
    /// POST of a custom resource
    CreateCustom,
}

/// Verbs that a number of clients send, one after the other, to a number of objects.
#[derive(Clone, Debug)]
pub(crate) struct WriteCase {
    pub(crate) verbs: Vec<WriteVerb>,
    pub(crate) clients: usize,
    pub(crate) objects: usize,
    /// The index of the first object; lower ones are in use.
    pub(crate) first: usize,
}

pub(crate) async fn prepare(session: &mut Session) -> Result<()> {
    session.fresh().await?;
    session.each(async |target| make_namespaces(target).await).await
}

impl WriteVerb {
    fn name(self) -> &'static str {
        match self {
            WriteVerb::CreatePod => "create pod",
            WriteVerb::UpdatePod => "update pod",
            WriteVerb::ApplyPod => "apply pod",
            WriteVerb::PatchPod => "patch pod",
            WriteVerb::DeletePod => "delete pod",
            WriteVerb::CreateConfigMap => "create config map",
            WriteVerb::CreateCustom => "create custom resource",
        }
    }

    fn work(self) -> fn(usize) -> WriteRequest {
        match self {
            WriteVerb::CreatePod => create_pod,
            WriteVerb::UpdatePod => update_pod,
            WriteVerb::ApplyPod => apply_pod,
            WriteVerb::PatchPod => patch_pod,
            WriteVerb::DeletePod => delete_pod,
            WriteVerb::CreateConfigMap => create_config_map,
            WriteVerb::CreateCustom => create_widget,
        }
    }
}

impl WriteCase {
    pub(crate) async fn run(&self, session: &mut Session) -> Result<()> {
        for &verb in &self.verbs {
            if verb == WriteVerb::CreateCustom {
                session.each(async |target| make_definition(target).await).await?;
            }
            let case = Case::new("write", verb.name(), "writes").sized("clients", self.clients);
            session.measure(case, async |target, run| self.once(verb, target, run).await).await?;
        }
        Ok(())
    }

    /// The first unused index after all runs.
    pub(crate) fn end(&self, session: &Session) -> usize {
        self.first + self.objects * session.runs()
    }

    /// The index of the first object of a run: no two runs share objects.
    async fn once(&self, verb: WriteVerb, target: &TargetServer, run: usize) -> Result<Figures> {
        let (first, work) = (self.first + run * self.objects, verb.work());
        let meter = Meter::start(target).await;
        let done =
            load(&target.endpoint, self.clients, self.objects, move |index| work(first + index));
        let done = done.await?;
        let used = meter.stop().await;
        // No two writes share a revision.
        ExpectedEvents::of(done.revisions())?;
        let figures = Figures::per_unit(self.objects, used).latency(&done.micros);
        Ok(figures.memory(rss(target).await))
    }
}
