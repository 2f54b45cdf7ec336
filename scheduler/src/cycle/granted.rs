//! Resizes of pods that were let through and that no watch shows yet.
//!
//! Two that come before either is shown would both be judged by what the queue held before.

use scheduler_core::ids::PodUid;
use scheduler_core::{Core, Request};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// As long as an API server works on one request (`--request-timeout`): an admitted resize is
/// stored by then, or never.
const LASTS: Duration = Duration::from_mins(1);

/// All of them, each pod's last.
#[derive(Debug, Default)]
pub(super) struct Granted(Vec<(PodUid, Request, Instant)>);

impl Granted {
    /// Whether a pod may have this much beside them; if so, and if the resize is real (`lasts`, no
    /// dry run), it is added to them.
    pub(super) fn may_have(
        &mut self,
        core: &mut Core,
        pod: &PodUid,
        request: Request,
        lasts: bool,
    ) -> Option<Result<(), Arc<str>>> {
        let now = Instant::now();
        self.0.retain(|(_, _, since)| *since + LASTS > now);
        let granted = self.0.iter();
        let granted: Vec<(PodUid, Request)> = granted
            .map(|(pod, request, _)| (pod.clone(), *request))
            .collect();
        let said = core.may_have(pod, request, &granted);
        if lasts && said == Some(Ok(())) {
            self.0.retain(|(other, _, _)| other != pod);
            self.0.push((pod.clone(), request, now));
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler_core::units::CpuMilli;
    use scheduler_core::{Config, text};

    const CLUSTER: &str = "node n cpu=64000 memory=274877906944 pods=110\n\
        queue q cpu=-1/4000/1\n\
        pod a queue=q cpu=1000 phase=running on=n\n\
        pod b queue=q cpu=1000 phase=running on=n\n";

    #[tokio::test(start_paused = true)]
    async fn of_two_that_come_together_one_is_refused() {
        let mut core = Core::new(Config::verified());
        for event in text::read(CLUSTER).unwrap() {
            assert_eq!(core.apply(event), Vec::new());
        }
        let mut granted = Granted::default();
        let mut may = |core: &mut Core, pod: &str, cpu: u64, lasts: bool| {
            let request = Request {
                cpu: Some(CpuMilli(cpu)),
                memory: None,
            };
            let said = granted.may_have(core, &pod.into(), request, lasts);
            said.unwrap().is_ok()
        };
        // A dry run takes nothing.
        assert!(may(&mut core, "a", 3000, false));
        assert!(may(&mut core, "b", 3000, true));
        assert!(!may(&mut core, "a", 1001, true));
        // A new request, for less: it counts, and the earlier one does not.
        assert!(may(&mut core, "b", 2000, true));
        assert!(may(&mut core, "a", 2000, true));
        assert!(!may(&mut core, "b", 2001, true));
        // Nothing of it was stored.
        tokio::time::advance(LASTS).await;
        assert!(may(&mut core, "b", 3000, true));
    }
}
