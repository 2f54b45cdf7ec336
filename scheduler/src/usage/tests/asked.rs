//! What is asked of a server of Prometheus' API, and what of its answers is taken.

use super::*;
use crate::usage::prometheus::ask;
use scheduler_core::fair_share::{Claim, divide};
use scheduler_core::model::{Queue, QueueResource};
use sim_cluster::prometheus::{Answer, Prometheus};

const HELD: [&str; 3] = [
    "kai_queue_allocated_gpus",
    "kai_queue_allocated_cpu_cores",
    "kai_queue_allocated_memory_bytes",
];
const HAS: [&str; 3] = ["nvidia_com_gpu", "cpu", "memory"];
const KEYS: [&str; 3] = ["gpu", "cpu_milli", "memory"];

fn capacity(server: &Prometheus, at: u64, amounts: [f64; 3]) {
    for (resource, amount) in HAS.into_iter().zip(amounts) {
        let labels = [("resource", resource)];
        server.put("aliquot_scheduler_capacity", &labels, at, amount);
    }
}

/// The recorded cases with past use, with what a server is asked for in its place.
#[tokio::test]
async fn what_is_queried_divides_as_kai_does() {
    let path = "../tests/conformance/fair_share.jsonl";
    let text = std::fs::read_to_string(path).unwrap();
    let cases = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let mut count = 0;
    for case in cases {
        let case: Value = case;
        let queues = case["queues"].as_array().unwrap();
        let used = |queue: &Value| KEYS.iter().any(|key| queue[key]["usage"].is_number());
        if !queues.iter().any(used) {
            continue;
        }
        count += 1;
        let server = Prometheus::start().await.unwrap();
        let totals = ["total_gpu", "total_cpu_milli", "total_memory"];
        let totals = totals.map(|total| number(&case[total]));
        for minute in 0..10 {
            let at = MONDAY + minute * 60;
            capacity(&server, at, totals);
            for queue in queues {
                let labels = [("queue_name", queue["name"].as_str().unwrap())];
                for (index, key) in KEYS.into_iter().enumerate() {
                    let held = number(&queue[key]["usage"]) * totals[index];
                    server.put(HELD[index], &labels, at, held);
                }
            }
        }
        let settings = asked(&server.url(), json!({"windowSize": "10m"}));
        let now = second(MONDAY + 540);
        let mut latest = LatestUsage::default();
        latest.set(Some(&settings));
        let told = UsageResult {
            settings: latest.settings().unwrap().clone(),
            at: now,
            result: Ok(Arc::new(ask(&settings, now).await.unwrap())),
        };
        latest.take(told);
        let mut names: Vec<&Value> = queues.iter().collect();
        names.sort_by_key(|queue| queue["name"].as_str());
        for (index, key) in KEYS.into_iter().enumerate() {
            let claims = names.iter().map(|queue| claim(&mut latest, queue, key));
            let claims: Vec<Claim> = claims.collect();
            let shares = divide(totals[index], number(&case["k_value"]), &claims);
            for (queue, share) in names.iter().zip(shares) {
                let expected = number(&queue[key]["fair_share"]);
                let near = (share - expected).abs() <= 1e-6 * expected.max(1.0);
                let (id, name) = (&case["id"], &queue["name"]);
                assert!(near, "{id} {name} {key}: {share}, not {expected}");
            }
        }
    }
    assert_eq!(count, 78);
}

/// A claim with the past use that the core would be told.
fn claim(latest: &mut LatestUsage, queue: &Value, key: &str) -> Claim {
    let name = queue["name"].as_str().unwrap();
    let told = latest.queue(Queue::unlimited(name));
    let QueueResource { usage, .. } = match key {
        "gpu" => told.gpu,
        "cpu_milli" => told.cpu,
        _ => told.memory,
    };
    let number = |field: &str| queue[key][field].as_f64().unwrap_or_default();
    let bound = |field: &str| Some(number(field)).filter(|value| *value >= 0.0);
    #[expect(clippy::cast_precision_loss, reason = "billionths")]
    let usage = usage as f64 / 1e9;
    Claim {
        name: name.into(),
        priority: i32::try_from(queue["priority"].as_i64().unwrap()).unwrap(),
        created: Time(queue["created_s"].as_u64().unwrap()),
        quota: bound("quota"),
        limit: bound("limit"),
        weight: number("over_quota_weight"),
        request: number("requested"),
        usage,
    }
}

/// 8 GPUs. Queue `a` held 8 of them in the first hour of Monday, `b` 4 from then on.
async fn monday() -> Prometheus {
    let server = Prometheus::start().await.unwrap();
    for minute in 0..6 * 60 {
        let at = MONDAY + minute * 60;
        capacity(&server, at, [8.0, 64.0, 1e12]);
        let (a, b) = if minute < 60 { (8.0, 0.0) } else { (0.0, 4.0) };
        for (queue, held) in [("a", a), ("b", b)] {
            server.put(HELD[0], &[("queue_name", queue)], at, held);
        }
    }
    server
}

async fn parts(settings: &Settings, hours: u64) -> (u64, u64) {
    let now = second(MONDAY + hours * HOUR - 1);
    let uses = ask(settings, now).await.unwrap();
    let gpu = |queue: &str| uses.get(queue).map_or(0, |parts| parts[0]);
    (gpu("a"), gpu("b"))
}

#[tokio::test]
async fn windows_and_half_lives_weigh_what_was_held() {
    let server = monday().await;
    let of = |params: Value| asked(&server.url(), params);
    let start = "2026-01-05T00:00:00Z";
    let tumbling = json!({"windowType": "tumbling", "windowSize": "2h",
        "tumblingWindowStartTime": start});
    for (params, hours, a, b) in [
        (json!({"windowSize": "1h"}), 1, 1.0, 0.0),
        (json!({"windowSize": "1h"}), 2, 0.0, 0.5),
        (json!({"windowSize": "2h"}), 2, 0.5, 0.25),
        (json!({"windowSize": "1w"}), 4, 0.25, 0.375),
        (tumbling.clone(), 2, 0.5, 0.25),
        (tumbling.clone(), 3, 0.0, 0.5),
        (
            json!({"windowType": "cron", "cronString": "0 */2 * * *"}),
            2,
            0.5,
            0.25,
        ),
        (
            json!({"windowType": "cron", "cronString": "0 */2 * * *"}),
            3,
            0.0,
            0.5,
        ),
        // The integral of 0.5^t over an hour that is 0 or 1 hours ago: 0.721 and 0.361.
        (
            json!({"windowSize": "2h", "halfLifePeriod": "1h"}),
            2,
            1.0 / 3.0,
            1.0 / 3.0,
        ),
        (
            json!({"windowSize": "2h", "halfLifePeriod": "0s"}),
            2,
            0.5,
            0.25,
        ),
    ] {
        let (has_a, has_b) = parts(&of(params.clone()), hours).await;
        assert!(
            near(has_a, a, 0.01) && near(has_b, b, 0.01),
            "{params} after {hours} h: {has_a} {has_b}"
        );
    }
    // A window that begins has nothing, and is no failure.
    let begins = of(json!({"windowType": "tumbling", "windowSize": "6h",
        "tumblingWindowStartTime": start}));
    let uses = ask(&begins, second(MONDAY + 6 * HOUR)).await.unwrap();
    assert_eq!(uses, Uses::new());
}

#[tokio::test]
async fn replicas_and_restarts_of_the_scheduler_count_once() {
    let server = Prometheus::start().await.unwrap();
    for minute in 0..60 {
        let at = MONDAY + minute * 60;
        capacity(&server, at, [8.0, 64.0, 1e12]);
        // Two replicas, of which one restarts after half an hour.
        let second = if minute < 30 { "r2" } else { "r3" };
        for instance in ["r1", second] {
            let labels = [("queue_name", "a"), ("instance", instance)];
            server.put(HELD[0], &labels, at, 4.0);
        }
    }
    let settings = asked(&server.url(), json!({"windowSize": "1h"}));
    let (a, _) = parts(&settings, 1).await;
    assert!(near(a, 0.5, 0.001), "{a}");
}

#[tokio::test]
async fn kube_state_metrics_say_what_the_cluster_has_where_they_are_scraped() {
    let server = monday().await;
    for (resource, amount) in HAS.into_iter().zip([32.0, 64.0, 1e12]) {
        for minute in 0..60 {
            let labels = [("resource", resource), ("node", "n1")];
            let at = MONDAY + minute * 60;
            server.put("kube_node_status_capacity", &labels, at, amount / 2.0);
            let labels = [("resource", resource), ("node", "n2")];
            server.put("kube_node_status_capacity", &labels, at, amount / 2.0);
        }
    }
    let settings = asked(&server.url(), json!({"windowSize": "1h"}));
    assert!(near(parts(&settings, 1).await.0, 0.25, 0.001));
}

/// One vector with one sample.
fn vector(queue: &str, value: &str) -> String {
    format!(
        r#"{{"status":"success","data":{{"resultType":"vector","result":[{{"metric":{{"queue_name":"{queue}"}},"value":[1,"{value}"]}}]}}}}"#
    )
}

#[tokio::test]
async fn nonsense_is_refused_with_a_sentence() {
    let server = Prometheus::start().await.unwrap();
    let settings = asked(
        &server.url(),
        json!({"extraParams": {"usageQueryTimeout": "1s"}}),
    );
    let now = second(MONDAY + HOUR);
    let no_capacity = ask(&settings, now).await.unwrap_err();
    assert!(
        no_capacity.contains("no GPU capacity of the cluster"),
        "{no_capacity}"
    );
    for (status, body, sentence) in [
        (200, "<html><body>Sign in</body></html>".to_owned(), "is not that of Prometheus' API"),
        (502, "<html>Bad Gateway</html>".to_owned(), "it answered 502 Bad Gateway"),
        (
            400,
            r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#.to_owned(),
            "it answered: parse error",
        ),
        (200, r#"{"status":"success"}"#.to_owned(), "has no data"),
        (
            200,
            r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#.to_owned(),
            "is a matrix where a vector was asked for",
        ),
        (200, vector("a", "NaN"), "GPU use of queue a is NaN, which is not an amount"),
        (200, vector("a", "-1"), "is -1, which is not an amount"),
        (200, vector("a", "+Inf"), "is +Inf, which is not an amount"),
        (200, vector("a", "many"), "is many, which is not an amount"),
        (
            200,
            r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":"x"}]}}"#.to_owned(),
            "its vector cannot be read",
        ),
        (200, " ".repeat(10 << 20), "its answer is longer than 4 MiB"),
        (200, "[".repeat(1 << 20), "is not that of Prometheus' API"),
    ] {
        server.answer(Answer::Raw(status, body.into()));
        let why = ask(&settings, now).await.unwrap_err();
        assert!(why.contains(sentence) && why.len() < 400, "{why}");
    }
    server.answer(Answer::Silence);
    let why = ask(&settings, now).await.unwrap_err();
    assert!(
        why.contains("did not answer within usageQueryTimeout, 1 s"),
        "{why}"
    );
    let gone = server.url();
    drop(server);
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    let why = ask(&asked(&gone, json!({})), now).await.unwrap_err();
    assert!(why.contains("127.0.0.1"), "{why}");
    let unset = settings_of_variable("ALIQUOT_NO_SUCH_VARIABLE");
    let why = ask(&unset, now).await.unwrap_err();
    assert_eq!(
        why,
        "the environment variable ALIQUOT_NO_SUCH_VARIABLE is not set"
    );
}

fn settings_of_variable(name: &str) -> Settings {
    settings(json!({"clientType": "prometheus", "connectionStringEnvVar": name}))
}

/// An unknown queue counts nowhere, and is stored nowhere.
#[tokio::test]
async fn unknown_queues_are_passed_over() {
    let server = monday().await;
    let settings = asked(&server.url(), json!({"windowSize": "2h"}));
    let now = second(MONDAY + 2 * HOUR - 1);
    let mut latest = LatestUsage::default();
    latest.set(Some(&settings));
    latest.queue(Queue::unlimited("b"));
    let told = UsageResult {
        settings: latest.settings().unwrap().clone(),
        at: now,
        result: Ok(Arc::new(ask(&settings, now).await.unwrap())),
    };
    let names: Vec<String> = latest
        .take(told)
        .iter()
        .map(|queue| queue.name.to_string())
        .collect();
    assert_eq!(names, ["b"]);
}

#[test]
fn a_wrong_field_is_named_and_changes_nothing() {
    let url = "http://p:9090";
    let with = |params: Value| json!({"clientType": "prometheus", "connectionString": url, "usageParams": params});
    for (config, field) in [
        (json!({}), "clientType: it is missing"),
        (
            json!({"clientType": "influx"}),
            "clientType: influx is not a supported database",
        ),
        (
            json!({"clientType": "prometheus"}),
            "connectionString: it is missing",
        ),
        (
            json!({"clientType": "prometheus", "connectionString": "me:secret@p"}),
            "connectionString: the connection string is not a URL",
        ),
        (
            json!({"clientType": "prometheus", "connectionString": url, "connectionStringEnvVar": "X"}),
            "connectionStringEnvVar: connectionString is set, too",
        ),
        (
            with(json!({"windowType": "hopping"})),
            "usageParams.windowType: hopping is neither",
        ),
        (
            with(json!({"windowSize": "a week"})),
            "usageParams.windowSize: a week is not a duration",
        ),
        (
            with(json!({"windowSize": "0s"})),
            "usageParams.windowSize: 0s is not between",
        ),
        (
            with(json!({"windowSize": "-5m"})),
            "usageParams.windowSize: -5m is not a duration",
        ),
        (
            with(json!({"windowType": "tumbling"})),
            "usageParams.tumblingWindowStartTime: windowType tumbling needs it",
        ),
        (
            with(json!({"windowType": "tumbling", "tumblingWindowStartTime": "noon"})),
            "usageParams.tumblingWindowStartTime: noon is not a time",
        ),
        (
            with(json!({"windowType": "cron"})),
            "usageParams.cronString: windowType cron needs it",
        ),
        (
            with(json!({"windowType": "cron", "cronString": "0 0 30 2 *"})),
            "usageParams.cronString: 0 0 30 2 * is not a cron expression",
        ),
        (
            with(json!({"fetchInterval": "0s"})),
            "usageParams.fetchInterval: 0s is not between",
        ),
        (
            with(json!({"extraParams": {"queryResolution": "fine"}})),
            "usageParams.extraParams.queryResolution: fine is not a duration",
        ),
    ] {
        let (mut live, settings) = live(config.clone());
        assert_eq!(settings, None, "{config}");
        let reports = live.reports(Time(1));
        let ready = reports[0]
            .wants
            .iter()
            .find(|want| want.kind == "Ready")
            .unwrap();
        let named = ready
            .message
            .starts_with(&format!("spec.usageDBConfig.{field}"));
        assert!(!ready.holds && named, "{}", ready.message);
        assert!(!ready.message.contains("secret"));
    }
}

#[test]
fn kais_defaults_are_kept_and_what_has_no_effect_is_said() {
    let plain = asked("http://p:9090/prometheus/", json!({}));
    assert_eq!(
        plain.window,
        Window::Sliding(Duration::seconds(7 * 24 * HOUR))
    );
    assert_eq!(plain.half_life, None);
    let seconds = [plain.fetch_interval, plain.staleness, plain.wait].map(|time| time.0 / 1000);
    assert_eq!(seconds, [60, 300, 60]);
    let week = asked("http://p", json!({"windowSize": "1w2d3h"})).window;
    assert_eq!(
        week,
        Window::Sliding(Duration::seconds((9 * 24 + 3) * HOUR))
    );
    let (mut live, _) = live(
        json!({"clientType": "in-memory", "connectionString": "http://p",
        "usageParams": {"stalenessPeriod": "10s", "windowSize": "30d", "cronString": "@daily",
            "extraParams": {"dreams": "x"}}}),
    );
    let reports = live.reports(Time(1));
    let said = reports[0]
        .wants
        .iter()
        .find(|want| want.kind == "KeysIgnored")
        .unwrap();
    for field in [
        "connectionString: ",
        "usageParams.stalenessPeriod: it is shorter",
        "usageParams.windowSize: with clientType in-memory",
        "usageParams.cronString: it has no effect with windowType sliding",
        "usageParams.extraParams: ",
    ] {
        assert!(
            said.message
                .contains(&format!("spec.usageDBConfig.{field}")),
            "{}",
            said.message
        );
    }
}
