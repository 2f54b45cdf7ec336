//! A resize of a pod (its subresource `resize`): refused where its queue may not have so much.
//!
//! As in KAI (`pod_resize_validator.go`): the increase over what the pod takes now, of a resource
//! whose request changes, counts on top of what each queue above the pod holds. KAI reads that from
//! the status of queues, which is slightly old; here the core is queried, which also counts resizes
//! that were admitted before and are not stored yet.
//!
//! Only the leader's core decides. All other processes pass a resize on to it, at the address in
//! the lease.

use super::review::{Review, line, read, unreadable, written};
use crate::convert::resources;
use crate::cycle::Question;
use crate::lease;
use crate::trust::Certificates;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse};
use kube::{Api, ResourceExt as _};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use scheduler_core::Request;
use serde_json::Value;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// The core answers between two decisions; the API server waits five seconds.
const ANSWER: Duration = Duration::from_secs(4);

/// How the leader's core is queried.
#[derive(Clone, Debug)]
pub struct Core {
    /// This process's own, and whether it acts; `None`: it has none.
    pub own: Option<(mpsc::Sender<Question>, watch::Receiver<bool>)>,
    /// Where leases are.
    pub leases: Api<Lease>,
    /// The scheduler's lease.
    pub lease: String,
    /// A name in the certificates of all replicas.
    pub server_name: String,
}

/// Why the replica that acts was not asked.
#[derive(Debug, thiserror::Error)]
enum PassOnError {
    #[error("lease {0} has no holder with an address")]
    NobodyActs(String),
    #[error("the address in the lease: {0}")]
    Address(#[from] http::uri::InvalidUri),
    #[error("the authority: {0}")]
    Authority(#[from] rustls::pki_types::pem::Error),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Ask(#[from] kube::Error),
}

impl Core {
    /// Judges a resize, here or at the replica that acts.
    pub(super) async fn judge(&self, sent: Value, certificates: &Certificates) -> Value {
        let own = self.own.as_ref().filter(|(_, acts)| *acts.borrow());
        if let Some((questions, _)) = own {
            return judge_here(sent, Some(questions)).await;
        }
        // If no request changes, no decision is needed.
        let unasked = judge_here(sent.clone(), None).await;
        if unasked["response"]["allowed"] == true {
            return unasked;
        }
        match tokio::time::timeout(ANSWER, self.pass_on(&sent, certificates)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::warn!(%error, "a resize is not passed on to the leader");
                unasked
            }
            Err(_) => unasked,
        }
    }

    /// The same for a process that passed it on: it is not passed on again.
    pub(super) async fn judge_passed_on(&self, sent: Value) -> Value {
        let own = self.own.as_ref().filter(|(_, acts)| *acts.borrow());
        judge_here(sent, own.map(|(questions, _)| questions)).await
    }

    async fn pass_on(
        &self,
        sent: &Value,
        certificates: &Certificates,
    ) -> Result<Value, PassOnError> {
        let address = lease::holder(&self.leases, &self.lease).await?;
        let address = address.ok_or_else(|| PassOnError::NobodyActs(self.lease.clone()))?;
        let mut config = kube::Config::new(address.parse()?);
        let authority = CertificateDer::from_pem_slice(certificates.ca_pem().as_bytes())?;
        config.root_cert = Some(vec![authority.to_vec()]);
        config.tls_server_name = Some(self.server_name.clone());
        config.default_retry = false;
        let request = http::Request::post(RESIZES_PASSED_ON)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(sent.to_string().into_bytes())?;
        Ok(kube::Client::try_from(config)?.request(request).await?)
    }
}

/// By this core; `None`: there is no core.
async fn judge_here(sent: Value, questions: Option<&mpsc::Sender<Question>>) -> Value {
    match serde_json::from_value::<Review>(sent) {
        Ok(review) => resizes(review, questions).await,
        Err(error) => unreadable(&error),
    }
}

/// The reason for a rejection, as one sentence. `lasts`: it is no dry run.
pub(super) async fn against(
    old: &Pod,
    new: &Pod,
    lasts: bool,
    questions: Option<&mpsc::Sender<Question>>,
) -> Option<String> {
    let request = wanted(old, new)?;
    let uid = new.uid()?;
    let (to, answer) = oneshot::channel();
    let answer = async {
        let question = Question::Resize {
            pod: uid.as_str().into(),
            request,
            lasts,
            to,
        };
        questions?.send(question).await.ok()?;
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
            "{}: {why}. Request less, or have the queue's limit or quota raised",
            who()
        )),
        Ok(None) | Err(_) => Some(format!(
            "{}: the scheduler did not decide in time whether the queue has room for it. Try again",
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

/// Where other replicas ask the leader.
pub(super) const RESIZES_PASSED_ON: &str = "/validate-resize/passed-on";

/// Resizes of pods are taken, or refused.
pub(super) async fn resizes(review: Review, questions: Option<&mpsc::Sender<Question>>) -> Value {
    match review.try_into() {
        Ok(request) => written(judge_resize(&request, questions).await),
        Err(error) => unreadable(&error),
    }
}

async fn judge_resize(
    request: &AdmissionRequest<DynamicObject>,
    questions: Option<&mpsc::Sender<Question>>,
) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    let pod = |object: &Option<DynamicObject>| {
        read::<Pod>(serde_json::to_value(object).unwrap_or_default())
    };
    let (old, new) = match (pod(&request.old_object), pod(&request.object)) {
        (Ok(old), Ok(new)) => (old, new),
        (Err(why), _) | (_, Err(why)) => return response.deny(line(&why)),
    };
    match against(&old, &new, !request.dry_run, questions).await {
        None => response,
        Some(why) => {
            let namespace = request.namespace.as_deref().unwrap_or_default();
            if questions.is_some() {
                tracing::info!(namespace, pod = request.name, "resize refused: {why}");
            }
            response.deny(line(&why))
        }
    }
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
            let Some(Question::Resize {
                pod, request, to, ..
            }) = questions.recv().await
            else {
                return None;
            };
            if let Some(answer) = answers.first() {
                to.send(answer.clone()).unwrap();
            }
            Some((pod, request))
        };
        let old = pod("1", "1Gi");
        let ask = async move { against(&old, &new, true, Some(&to)).await };
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
            "pod ns/p is not resized: team is full. Request less, or have the queue's limit or quota raised"
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
        assert!(why.ends_with("room for it. Try again"), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_core_that_is_busy_is_waited_for_no_longer_than_the_api_server_waits() {
        let (to, questions) = mpsc::channel(1);
        let (old, new) = (pod("1", "1"), pod("2", "1"));
        let why = against(&old, &new, true, Some(&to)).await.unwrap();
        assert!(why.ends_with("Try again"), "{why}");
        drop(questions);
        let why = against(&old, &new, true, None).await.unwrap();
        assert!(why.ends_with("Try again"), "{why}");
    }
}
