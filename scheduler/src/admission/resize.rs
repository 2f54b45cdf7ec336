//! A resize of a pod (its subresource `resize`): refused where its queue may not have so much.
//!
//! As KAI has it (`pod_resize_validator.go`): what is asked for beyond what the pod takes now,
//! of a resource whose request changes, counts on top of what each queue above the pod holds.
//! KAI reads that from the status of queues, which is a moment old; here the core is asked,
//! which counts it. Two resizes that are asked for at once may both pass all the same.

use crate::convert::resources;
use crate::cycle::Question;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use scheduler_core::Request;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// The core answers between two decisions; the API server waits five seconds.
const ANSWER: Duration = Duration::from_secs(4);

/// What is against it, as one sentence.
pub(super) async fn against(
    old: &Pod,
    new: &Pod,
    questions: &mpsc::Sender<Question>,
) -> Option<String> {
    let wanted = wanted(old, new)?;
    let uid = new.uid()?;
    let (to, answer) = oneshot::channel();
    let answer = async {
        let question = Question::Resize(uid.as_str().into(), wanted, to);
        questions.send(question).await.ok()?;
        answer.await.ok()
    };
    let who = || {
        format!(
            "pod {}/{} is not resized",
            new.namespace().unwrap_or_default(),
            new.name_any()
        )
    };
    match tokio::time::timeout(ANSWER, answer).await {
        // The core does not know the pod: it has just been bound, or is another scheduler's.
        Ok(Some(None | Some(Ok(())))) => None,
        Ok(Some(Some(Err(why)))) => Some(format!(
            "{}: {why}. Ask for less, or have what its queue may have raised",
            who()
        )),
        Ok(None) | Err(_) => Some(format!(
            "{}: the scheduler did not say in time whether its queue may have so much. Try again",
            who()
        )),
    }
}

/// The whole of each resource whose request changes. `None`: none does.
fn wanted(old: &Pod, new: &Pod) -> Option<Request> {
    let (old, new) = (old.spec.as_ref()?, new.spec.as_ref()?);
    let (old, new) = (resources::asked(old), resources::asked(new));
    let wanted = Request {
        cpu: (new.cpu != old.cpu).then_some(new.cpu),
        memory: (new.memory != old.memory).then_some(new.memory),
    };
    (wanted != Request::default()).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler_core::ids::PodUid;
    use scheduler_core::units::{Bytes, CpuMilli};
    use serde_json::json;
    use std::sync::Arc;

    fn pod(cpu: &str, memory: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {
                "cpu": cpu, "memory": memory}}}]},
        }))
        .unwrap()
    }

    /// The webhook's answer when the core gives these answers, and what the core was asked.
    async fn said(
        new: Pod,
        answers: &[Option<Result<(), Arc<str>>>],
    ) -> (Option<String>, Option<(PodUid, Request)>) {
        let (to, mut questions) = mpsc::channel(1);
        let core = async {
            let Some(Question::Resize(uid, request, to)) = questions.recv().await else {
                return None;
            };
            if let Some(answer) = answers.first() {
                to.send(answer.clone()).unwrap();
            }
            Some((uid, request))
        };
        let old = pod("1", "1Gi");
        let ask = async move { against(&old, &new, &to).await };
        tokio::join!(ask, core)
    }

    #[tokio::test]
    async fn what_changes_is_asked_for_and_the_cores_word_is_passed_on() {
        let (why, asked) = said(pod("2", "1Gi"), &[Some(Ok(()))]).await;
        let cpu = Request {
            cpu: Some(CpuMilli(2000)),
            memory: None,
        };
        assert_eq!((why, asked), (None, Some(("u".into(), cpu))));
        let full = [Some(Err(Arc::from("team is full")))];
        let (why, asked) = said(pod("500m", "3Gi"), &full).await;
        assert_eq!(
            why.unwrap(),
            "pod ns/p is not resized: team is full. Ask for less, or have what its queue may have raised"
        );
        let both = Request {
            cpu: Some(CpuMilli(500)),
            memory: Some(Bytes(3 << 30)),
        };
        assert_eq!(asked, Some(("u".into(), both)));
    }

    #[tokio::test]
    async fn nobody_is_asked_where_no_request_changes_and_no_word_is_a_refusal() {
        assert_eq!(said(pod("1000m", "1024Mi"), &[]).await, (None, None));
        assert_eq!(said(pod("2", "1Gi"), &[None]).await.0, None);
        let why = said(pod("2", "1Gi"), &[]).await.0.unwrap();
        assert!(why.ends_with("may have so much. Try again"), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_core_that_is_busy_is_waited_for_no_longer_than_the_api_server_waits() {
        let (to, questions) = mpsc::channel(1);
        let why = against(&pod("1", "1"), &pod("2", "1"), &to).await.unwrap();
        assert!(why.ends_with("Try again"), "{why}");
        drop(questions);
    }
}
