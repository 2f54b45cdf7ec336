use super::*;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use std::io::Read as _;
use std::time::Duration;
use tokio::time::timeout;
use tower::{ServiceExt as _, service_fn};

/// An answer takes milliseconds, and on a busy machine a second.
const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn the_archive_is_one_compressed_file_that_any_reader_opens() {
    let snapshot = json!({"rawObjects": vec!["a pod like others"; 10_000]});
    let bytes = archive(&snapshot).unwrap();
    assert!(bytes.len() < 10_000, "{}", bytes.len());
    assert_eq!(read(bytes), snapshot);
}

fn read(archive: impl AsRef<[u8]>) -> Value {
    let mut read = zip::ZipArchive::new(Cursor::new(archive)).unwrap();
    assert_eq!(read.len(), 1);
    let mut text = String::new();
    let mut file = read.by_name("snapshot.json").unwrap();
    file.read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// An API server that holds no object of these kinds and answers as often as `answers` permits.
fn api(asked: channel::Sender<()>, answers: &Arc<Semaphore>) -> Client {
    let answers = Arc::clone(answers);
    let service = service_fn(move |_: Request<kube::client::Body>| {
        let (asked, answers) = (asked.clone(), Arc::clone(&answers));
        async move {
            asked.send(())?;
            answers.acquire().await?.forget();
            let list = json!({"metadata": {}, "items": []}).to_string();
            Ok::<_, tower::BoxError>(http::Response::new(Body::from(list)))
        }
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn a_client_that_hangs_up_keeps_its_turn_until_the_objects_are_listed() {
    let (asked, mut requests) = channel::unbounded();
    let answers = Arc::new(Semaphore::new(0));
    let (questions, mut settings) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Some(Question::Of(_, question)) = settings.recv().await {
            let Question::Settings(to) = *question else {
                panic!("only the settings are of interest");
            };
            to.send(scheduler_core::Config::default()).unwrap();
        }
    });
    let config = Config::default();
    let plan = Plan::of(&config, 0).unwrap();
    let routes = router(api(asked, &answers), &config, &plan, questions);
    let get = || {
        let request = Request::get("/get-snapshot").body(Body::empty());
        routes.clone().oneshot(request.unwrap())
    };

    let first = tokio::spawn(get());
    requests.recv().await.unwrap();
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let second = timeout(PATIENCE, get()).await;
    // What is still listed would otherwise hold up the end of the test.
    answers.add_permits(3 * KINDS.len());
    let second = second.expect("no second listing begins").unwrap();
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);

    let next = async {
        loop {
            let next = get().await.unwrap();
            if next.status() == StatusCode::OK {
                return next.into_body().collect().await.unwrap().to_bytes();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let archive = timeout(PATIENCE, next).await;
    let snapshot = read(archive.unwrap());
    assert_eq!(snapshot["rawObjects"]["pods"], json!([]));
}
