//! Claims about watches.

use super::*;

/// The next event that is no bookmark.
async fn next<T: std::fmt::Debug>(
    stream: &mut (impl futures::Stream<Item = kube::Result<WatchEvent<T>>> + Unpin),
) -> WatchEvent<T> {
    tokio::time::timeout(Duration::from_secs(5), async {
        loop {
            match stream.next().await.expect("the watch goes on").unwrap() {
                WatchEvent::Bookmark(_) => {}
                event => return event,
            }
        }
    })
    .await
    .expect("an event in time")
}

#[tokio::test]
async fn a_watch_tells_what_enters_and_leaves_its_selector() {
    let cluster = Cluster::start().await;
    let pods = cluster.pods();
    let start = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let params = WatchParams::default().fields("spec.nodeName=n1");
    let mut bound = Box::pin(pods.watch(&params, &start).await.unwrap());
    let mut pending = Box::pin(
        pods.watch(&WatchParams::default().fields("spec.nodeName="), &start)
            .await
            .unwrap(),
    );

    let uid = pods
        .create(&PostParams::default(), &pod("a"))
        .await
        .unwrap()
        .uid()
        .unwrap();
    assert!(matches!(next(&mut pending).await, WatchEvent::Added(_)));
    cluster.bind("a", &uid, "n1").await.unwrap();
    assert!(matches!(next(&mut pending).await, WatchEvent::Deleted(_)));
    assert!(matches!(next(&mut bound).await, WatchEvent::Added(_)));
    pods.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(matches!(next(&mut bound).await, WatchEvent::Modified(_)));
    pods.delete("a", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert!(matches!(next(&mut bound).await, WatchEvent::Deleted(_)));

    // A resource version from before the compaction is 410, on old watches and new ones.
    cluster.handle.expire_watches();
    match next(&mut bound).await {
        WatchEvent::Error(status) => assert_eq!(status.code, 410),
        other => panic!("{other:?}"),
    }
    let mut stale = Box::pin(pods.watch(&params, &start).await.unwrap());
    assert!(matches!(next(&mut stale).await, WatchEvent::Error(status) if status.code == 410));
    drop((bound, pending, stale));
    cluster.end().await;
}

#[tokio::test]
async fn kubes_own_watcher_survives_an_expired_watch_in_both_list_strategies() {
    for config in [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
    ] {
        let cluster = Cluster::start().await;
        let pods = cluster.pods();
        pods.create(&PostParams::default(), &pod("a"))
            .await
            .unwrap();
        let mut events = Box::pin(watcher(pods.clone(), config));
        let mut inits = 0;
        let mut expired = false;
        tokio::time::timeout(Duration::from_secs(20), async {
            while inits < 2 {
                match events.next().await.unwrap() {
                    Ok(watcher::Event::InitDone) => {
                        inits += 1;
                        if !expired {
                            expired = true;
                            cluster.handle.expire_watches();
                        }
                    }
                    Ok(watcher::Event::InitApply(found) | watcher::Event::Apply(found)) => {
                        assert_eq!(found.name_any(), "a");
                    }
                    Ok(_) => {}
                    Err(watcher::Error::WatchError(status)) => assert_eq!(status.code, 410),
                    Err(other) => panic!("{other:?}"),
                }
            }
        })
        .await
        .unwrap();
        drop(events);
        cluster.end().await;
    }
}

#[tokio::test]
async fn a_metadata_watch_sends_metadata_alone() {
    let cluster = Cluster::start().await;
    let pods = cluster.pods();
    pods.create(&PostParams::default(), &pod("a"))
        .await
        .unwrap();
    let found = pods
        .list_metadata(&ListParams::default().labels("app=a"))
        .await
        .unwrap();
    assert_eq!(found.items.len(), 1);
    let events = watcher(
        Api::<kube::core::PartialObjectMeta<Pod>>::namespaced(cluster.client.clone(), "default"),
        watcher::Config::default(),
    );
    let first = tokio::time::timeout(Duration::from_secs(5), async {
        let mut events = Box::pin(events);
        while let Some(event) = events.try_next().await.unwrap() {
            if let watcher::Event::InitApply(meta) = event {
                return meta.name_any();
            }
        }
        String::new()
    })
    .await
    .unwrap();
    assert_eq!(first, "a");
    cluster.end().await;
}
