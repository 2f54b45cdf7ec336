//! Over real TLS and gRPC, tokens minted and reviewed by the simulated API server.

use super::*;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::api::{Api, PostParams};
use proto::names;
use proto::telemetry::agent_message::Body;
use proto::telemetry::telemetry_client::TelemetryClient;
use proto::telemetry::{AgentMessage, NodeState, SchedulerMessage};
use serde_json::json;
use sim_cluster::api_server::{ApiServer, Config};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status, Streaming};

struct Site {
    client: kube::Client,
    trust: Trust,
    address: std::net::SocketAddr,
    heard: AgentEventReceiver,
    _stop: tokio_util::sync::DropGuard,
}

impl Site {
    async fn start() -> Self {
        let server = ApiServer::bind(Config::default()).await.unwrap();
        let client = kube::Client::try_from(server.handle().config()).unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(server.serve(stop.clone()));
        let create = PostParams::default();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = json!({"metadata": {"name": names::NAMESPACE}});
        let namespace = serde_json::from_value(namespace).unwrap();
        namespaces.create(&create, &namespace).await.unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), names::NAMESPACE);
        for name in [names::object::AGENT_ACCOUNT, "someone"] {
            let account = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            accounts.create(&create, &account).await.unwrap();
        }
        let nodes: Api<Node> = Api::all(client.clone());
        for name in ["n1", "n2"] {
            let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            nodes.create(&create, &node).await.unwrap();
        }
        let reached = ["127.0.0.1".to_owned()];
        let trust = crate::trust::establish(&client, names::NAMESPACE, &reached).await;
        let trust = trust.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (out, heard) = channel(None);
        tokio::spawn(run(
            crate::serve::Endpoint::Port(listener),
            trust.clone(),
            client.clone(),
            names::NAMESPACE.to_owned(),
            out,
            Arc::default(),
            stop.clone(),
        ));
        Self {
            client,
            trust,
            address,
            heard,
            _stop: stop.drop_guard(),
        }
    }

    async fn token(&self, account: &str, audience: &str, node: Option<&str>) -> String {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), names::NAMESPACE);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(vec![audience.to_owned()]),
                bound_object_ref: node.map(|name| BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Node".into()),
                    name: Some(name.into()),
                    uid: None,
                }),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let minted = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .unwrap();
        minted.status.unwrap().token.unwrap()
    }

    async fn agents(&self, node: &str) -> String {
        let (account, audience) = (names::object::AGENT_ACCOUNT, names::telemetry::AUDIENCE);
        self.token(account, audience, Some(node)).await
    }

    async fn open(&self, token: Option<&str>) -> Result<Stream, Status> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.trust.certificates().ca_pem()))
            .domain_name("127.0.0.1");
        let channel = Endpoint::from_shared(format!("https://{}", self.address))
            .unwrap()
            .tls_config(tls)
            .unwrap()
            .connect()
            .await
            .unwrap();
        let (out, messages) = mpsc::channel(8);
        let mut request = Request::new(ReceiverStream::new(messages));
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        let answers = TelemetryClient::new(channel).report(request).await?;
        Ok(Stream {
            out,
            answers: answers.into_inner(),
        })
    }

    async fn hear(&mut self) -> AgentEvent {
        let heard = tokio::time::timeout(Duration::from_secs(5), self.heard.recv()).await;
        heard.expect("in time").expect("it runs")
    }
}

struct Stream {
    out: mpsc::Sender<AgentMessage>,
    answers: Streaming<SchedulerMessage>,
}

impl Stream {
    async fn say(&mut self, sequence: u64, node: &str) -> Result<u64, Status> {
        let state = NodeState {
            node: node.into(),
            ..NodeState::default()
        };
        let message = AgentMessage {
            sequence,
            agent_instance: "a".into(),
            release: proto::names::RELEASE.to_owned(),
            body: Some(Body::State(state)),
        };
        self.out.send(message).await.unwrap();
        self.answer().await
    }

    async fn answer(&mut self) -> Result<u64, Status> {
        let answer = tokio::time::timeout(Duration::from_secs(5), self.answers.next()).await;
        let answer = answer.expect("in time").expect("no end without a status");
        answer.map(|message| message.acknowledged)
    }
}

#[tokio::test]
async fn an_agent_is_heard_and_acknowledged() {
    let mut site = Site::start().await;
    let token = site.agents("n1").await;
    let mut stream = site.open(Some(&token)).await.unwrap();
    for number in 1..=2 {
        assert_eq!(stream.say(number, "n1").await.unwrap(), number);
        assert!(matches!(site.hear().await, AgentEvent::State { node, .. } if node == "n1"));
    }
}

#[tokio::test]
async fn tokens_of_others_are_refused() {
    let mut site = Site::start().await;
    let (agent, audience) = (names::object::AGENT_ACCOUNT, names::telemetry::AUDIENCE);
    let table = [
        (None, Code::Unauthenticated),
        (Some("nonsense".to_owned()), Code::Unauthenticated),
        (
            Some(site.token(agent, "other", Some("n1")).await),
            Code::Unauthenticated,
        ),
        (
            Some(site.token("someone", audience, Some("n1")).await),
            Code::PermissionDenied,
        ),
        (
            Some(site.token(agent, audience, None).await),
            Code::PermissionDenied,
        ),
    ];
    for (number, (token, code)) in table.into_iter().enumerate() {
        let refused = site.open(token.as_deref()).await.err().expect("refused");
        assert_eq!(refused.code(), code, "row {number}: {refused}");
    }
    let token = site.agents("n2").await;
    let mut stream = site.open(Some(&token)).await.unwrap();
    let refused = stream.say(1, "n1").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let heard = site.heard.try_recv();
    assert!(
        !matches!(heard, Some(AgentEvent::State { .. })),
        "nothing of it was believed"
    );
}

#[tokio::test]
async fn a_replayed_message_ends_the_stream() {
    let mut site = Site::start().await;
    let token = site.agents("n1").await;
    let mut stream = site.open(Some(&token)).await.unwrap();
    stream.say(1, "n1").await.unwrap();
    let ended = stream.say(1, "n1").await.unwrap_err();
    assert_eq!(ended.code(), Code::Aborted, "{ended}");
    site.hear().await;
    let next = site.heard.recv().await;
    let ended = AgentEvent::Disconnected { node: "n1".into() };
    assert_eq!(next, Some(ended), "taken in once");
}

#[tokio::test]
async fn a_newer_stream_of_the_node_ends_the_older_one() {
    let site = Site::start().await;
    let token = site.agents("n1").await;
    let mut old = site.open(Some(&token)).await.unwrap();
    old.say(1, "n1").await.unwrap();
    let mut new = site.open(Some(&token)).await.unwrap();
    new.say(1, "n1").await.unwrap();
    assert_eq!(old.answer().await.unwrap_err().code(), Code::Aborted);
    assert_eq!(new.say(2, "n1").await.unwrap(), 2);
}
