//! Admission: beside the scheduler, or in a process of its own that decides nothing else.

use super::part::{Part, RunError, named};
use crate::admission::{self, Reach};
use crate::config::Role;
use crate::cycle::Question;
use crate::serve::Endpoint;
use crate::status::Status;
use crate::trust::{self, Certificates};
use crate::{Config, watch as facts};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::Client;
use proto::names::object;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The parts of admission, and their address.
pub(super) struct Admission {
    pub(super) endpoint: Endpoint,
    /// The core of this process, and whether it acts; `None`: admission is all that it does.
    pub(super) own: Option<(mpsc::Sender<Question>, watch::Receiver<bool>)>,
    pub(super) admits: watch::Sender<bool>,
}

impl Admission {
    /// Serves all of it, or resizes alone where the rest is another process's.
    pub(super) fn serve(
        self,
        config: &Config,
        queues: watch::Receiver<admission::QueueTree>,
        certificates: &Certificates,
        client: &Client,
        end: &CancellationToken,
    ) -> BoxFuture<'static, Part> {
        let core = admission::Core {
            own: self.own,
            leases: kube::Api::namespaced(client.clone(), &config.namespace),
            lease: config.lease(),
            server_name: format!("{}.{}.svc", object::WEBHOOK_SERVICE, config.namespace),
        };
        let (certificates, end) = (certificates.clone(), end.clone());
        if config.role == Role::Scheduler {
            let served = admission::serve_resizes(self.endpoint, core, certificates, end);
            return async move { Ok(served.await.map(|()| "the answers about resizes")?) }.boxed();
        }
        let settings = admission::Settings {
            reach: match &config.webhook_url {
                Some(url) => Reach::Url(url.clone()),
                None => Reach::Service,
            },
            namespace: config.namespace.clone(),
            scheduler_name: config.scheduler_name.clone(),
            exempt_namespaces: config.exempt_namespaces.clone(),
        };
        let rules = admission::Rules {
            limits: config.limits,
            queues,
            over_subscription: config.queue_over_subscription,
            bursts: config.bursts(),
            core,
        };
        let (endpoint, admits) = (self.endpoint, self.admits);
        let served = admission::run(
            endpoint,
            settings,
            rules,
            certificates,
            client.clone(),
            admits,
            end,
        );
        async move { Ok(served.await.map(|()| "admission")?) }.boxed()
    }
}

/// Starts what admits pods, and nothing that decides.
pub(super) async fn admit(
    config: &Config,
    admission: Admission,
    client: Client,
    status: watch::Sender<Status>,
    end: &CancellationToken,
    tasks: &mut JoinSet<Part>,
) -> Result<(), RunError> {
    let names = config.names();
    let certificates = trust::certificates(&client, &config.namespace, &names).await?;
    let (queues_out, queues) = watch::channel(admission::QueueTree::default());
    tasks.spawn(admission.serve(config, queues, &certificates, &client, end));
    tasks.spawn(named(
        "the watch of queues",
        facts::queues(
            client,
            move |queue| queues_out.send_modify(|tree| tree.note(queue)),
            end.clone(),
        ),
    ));
    tasks.spawn(named("the certificate's keeper", {
        let end = end.clone();
        async move {
            certificates.keep(names, end).await;
            // Its health page checks whether it exists.
            drop(status);
        }
    }));
    Ok(())
}
