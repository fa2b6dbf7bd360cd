//! Writes: what a durable write costs, and how long it takes, alone and among others.

use anyhow::Result;

use crate::load::requests::{
    apply_pod, create_config_map, create_pod, create_widget, delete_pod, make_definition,
    make_namespaces, patch_pod, update_pod,
};
use crate::load::seen::Expected;
use crate::load::{Work, load};
use crate::report::Case;
use crate::report::figures::Figures;
use crate::session::Session;
use crate::target::Target;
use crate::target::measure::{Meter, rss};

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Verb {
    /// POST of a pod
    CreatePod,
    /// PUT of a pod that is there
    UpdatePod,
    /// Server-side apply of a pod that is there, by a second manager
    ApplyPod,
    /// Strategic merge patch of a pod that is there
    PatchPod,
    /// DELETE of a pod
    DeletePod,
    /// POST of a config map
    CreateConfigMap,
    /// POST of a custom resource
    CreateCustom,
}

/// What so many clients do, one verb after the other, to so many objects.
#[derive(Clone, Debug)]
pub(crate) struct Writes {
    pub(crate) verbs: Vec<Verb>,
    pub(crate) clients: usize,
    pub(crate) objects: usize,
    /// Number of the first object; those before are taken.
    pub(crate) first: usize,
}

pub(crate) async fn prepare(session: &mut Session) -> Result<()> {
    session.fresh().await?;
    session.each(async |target| make_namespaces(target).await).await
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Verb::CreatePod => "create pod",
            Verb::UpdatePod => "update pod",
            Verb::ApplyPod => "apply pod",
            Verb::PatchPod => "patch pod",
            Verb::DeletePod => "delete pod",
            Verb::CreateConfigMap => "create config map",
            Verb::CreateCustom => "create custom resource",
        }
    }

    fn work(self) -> fn(usize) -> Work {
        match self {
            Verb::CreatePod => create_pod,
            Verb::UpdatePod => update_pod,
            Verb::ApplyPod => apply_pod,
            Verb::PatchPod => patch_pod,
            Verb::DeletePod => delete_pod,
            Verb::CreateConfigMap => create_config_map,
            Verb::CreateCustom => create_widget,
        }
    }
}

impl Writes {
    pub(crate) async fn run(&self, session: &mut Session) -> Result<()> {
        for &verb in &self.verbs {
            if verb == Verb::CreateCustom {
                session.each(async |target| make_definition(target).await).await?;
            }
            let case = Case::new("write", verb.name(), "writes").sized("clients", self.clients);
            session.measure(case, async |target, run| self.once(verb, target, run).await).await?;
        }
        Ok(())
    }

    /// How many numbers are taken after all runs.
    pub(crate) fn end(&self, session: &Session) -> usize {
        self.first + self.objects * session.runs()
    }

    /// Every run has objects of its own.
    async fn once(&self, verb: Verb, target: &Target, run: usize) -> Result<Figures> {
        let (first, work) = (self.first + run * self.objects, verb.work());
        let meter = Meter::start(target).await;
        let done =
            load(&target.endpoint, self.clients, self.objects, move |index| work(first + index));
        let done = done.await?;
        let used = meter.stop().await;
        // No two writes share a revision.
        Expected::of(done.revisions())?;
        let figures = Figures::used(self.objects, used).latency(&done.micros);
        Ok(figures.memory(rss(target).await))
    }
}
