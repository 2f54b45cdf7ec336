//! Claims about tokens.

use super::*;

#[tokio::test]
async fn a_token_is_good_for_its_audience_and_names_its_node() {
    let cluster = Cluster::start().await;
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), "default");
    let request: TokenRequest = from(json!({"metadata": {}, "spec": {"audiences": ["ours"],
        "boundObjectRef": {"kind": "Node", "apiVersion": "v1", "name": "n1"}}}));
    assert_eq!(
        code(
            accounts
                .create_token_request("agent", &PostParams::default(), &request)
                .await
        ),
        404
    );
    let account: ServiceAccount = from(json!({"metadata": {"name": "agent"}}));
    accounts
        .create(&PostParams::default(), &account)
        .await
        .unwrap();
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    nodes
        .create(
            &PostParams::default(),
            &from(json!({"metadata": {"name": "n1"}})),
        )
        .await
        .unwrap();
    let token = accounts
        .create_token_request("agent", &PostParams::default(), &request)
        .await
        .unwrap();
    let token = token.status.unwrap().token.unwrap();

    let reviews: Api<TokenReview> = Api::all(cluster.client.clone());
    let review = |token: &str, audience: &str| -> TokenReview {
        from(json!({"metadata": {}, "spec": {"token": token, "audiences": [audience]}}))
    };
    let good = reviews
        .create(&PostParams::default(), &review(&token, "ours"))
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!(good.authenticated, Some(true));
    assert_eq!(good.audiences.unwrap(), ["ours"]);
    let user = good.user.unwrap();
    assert_eq!(
        user.username.as_deref(),
        Some("system:serviceaccount:default:agent")
    );
    assert_eq!(
        user.extra.unwrap()["authentication.kubernetes.io/node-name"],
        ["n1"]
    );
    for (token, audience) in [(token.as_str(), "theirs"), ("made-up", "ours")] {
        let bad = reviews
            .create(&PostParams::default(), &review(token, audience))
            .await
            .unwrap();
        assert_ne!(
            bad.status.unwrap().authenticated,
            Some(true),
            "{token} {audience}"
        );
    }
    cluster.end().await;
}
