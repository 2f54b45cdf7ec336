//! What an operator and a tenant do: copy a command, search, read hostile text, see what they lack.

use crate::browser::Browser;
use crate::picture;
use crate::site::{Demo, Site, Sized};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

/// The clipboard of a browser without a window: what was copied is kept in `copied`.
const CLIPBOARD: &str = "Object.defineProperty(navigator, 'clipboard', {value: {writeText: (text) => { window.copied = text; return Promise.resolve(); }}});";

/// A row that replaces another one has its own command.
#[test]
fn a_button_copies_the_command_of_the_row_that_it_is_in() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    browser.before(CLIPBOARD);
    browser.size(1280, 1000);
    let demo = Demo::with(&["--nodes", "3", "--gpu", "A100-80:8"]);
    browser.open(&demo.page);
    browser.says("1 pod waits in queue research");
    browser.until("document.querySelectorAll('.problems li').length === 1");
    browser.click("#copy-0");
    browser.until("window.copied === 'kubectl aliquot explain demo/later'");
    browser.until("document.getElementById('said').textContent.startsWith('Copied: kubectl')");
    // Two or three pods suffer from it, as the one that exceeds its share may be between two runs: it
    // is now the first row.
    demo.aliquot(&["cordon", "node-3/0"]);
    browser.until(
        "document.querySelector('.problems li .what')?.textContent === 'node-3 / 0: cordoned'",
    );
    browser.until("document.querySelectorAll('.problems li:first-child .hurt a').length >= 2");
    browser.click("#copy-0");
    browser.until("window.copied === 'kubectl aliquot uncordon node-3/0'");
    browser.until("document.querySelector('.card.cordoned') !== null");
    browser.until("document.querySelector('.changes .cordoned a')?.textContent === 'node-3 / 0'");
    browser.until("document.querySelectorAll('.nodes .card').length === 24");
    picture(&mut browser, "page-overview.png");
    // The button also works from the keyboard.
    browser.evaluate(
        "window.copied = ''; [...document.querySelectorAll('.problems li')] \
         .find(row => row.textContent.includes('demo/later')).querySelector('button').focus()",
    );
    browser.press("Enter");
    browser.until("window.copied === 'kubectl aliquot explain demo/later'");
    let none: Vec<String> = Vec::new();
    assert_eq!(browser.complaints(), none);
}

#[test]
fn a_slash_searches_pods_cards_and_queues() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let demo = Demo::start();
    browser.open(&demo.page);
    browser.says("1 pod waits in queue research");
    browser.press("/");
    assert_eq!(browser.evaluate("document.activeElement.id"), json!("find"));
    browser.evaluate("document.activeElement.value = 'research'");
    browser.press("Enter");
    browser.heading("Search: research");
    browser.says("Pods: 2");
    browser.says("Queues: 1");
    browser.click("main a[href='#/queue/research']");
    browser.heading("Queue research");
    // In the field itself a slash is a letter.
    browser.press("/");
    browser.press("/");
    assert_eq!(
        browser.evaluate("document.getElementById('find').value"),
        json!("research/")
    );
    browser.press("Escape");
    assert_eq!(browser.evaluate("document.activeElement.id"), json!("main"));
    browser.evaluate("location.hash = '#/search?filter=NODE-2'");
    // Three hold something there, and one waits for room there.
    browser.says("Pods: 4");
    browser.says("Cards: 1");

    browser.click("nav a[href='#/workloads']");
    browser.heading("Workloads");
    browser.until("document.querySelectorAll('tbody tr').length === 5");
    // Those that wait come first.
    browser.until("document.querySelector('tbody tr .state').textContent === 'waits, position 1'");
    picture(&mut browser, "page-workloads.png");
    browser.evaluate("location.hash = '#/workloads?state=running'");
    browser.until("document.querySelectorAll('tbody tr').length === 4");
    browser.evaluate("location.hash = '#/workloads?namespace=none'");
    browser.says("nothing");
    browser.evaluate("location.hash = '#/workloads?filter=notebook'");
    browser.click("tbody a");
    browser.heading("demo/notebook");
    browser.until(
        "/^Runs on node-2 \\/ 0 · [0-9,]+ MiB granted · [0-9,]+ MiB used · (SM [0-9]+ % · )?Guarded by ServerLimit/.test(document.getElementById('how').innerText)",
    );
    browser.says("until the watchdog ends it");
    let none: Vec<String> = Vec::new();
    assert_eq!(browser.complaints(), none);
}

/// Control characters, marks that turn a line round, and a megabyte.
const SLY: &str = "a\u{202e}b\u{200b}c\u{1b}[2Jd\u{9b}e";
const SHOWN: &str = r"a\u{202e}b\u{200b}c\u{1b}[2Jd\u{9b}e";

#[test]
fn hostile_text_is_escaped_and_cut_and_moves_nothing() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let site = Site::start(Sized::default());
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), "lab");
    let long = format!("{SLY}<img src=x onerror=alert(1)> {}", "x".repeat(1 << 20));
    let message = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": long,
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let pod = json!({"metadata": {"name": "sly", "labels": {"kai.scheduler/queue": "research"}, "annotations": {"gpu-memory": "2000"}},
        "spec": {"schedulerName": "kai-scheduler", "schedulingGates": [{"name": "x"}], "containers": [{"name": "main", "image": "i"}]}});
    let uid = site.runtime.block_on(async {
        let made: Pod = pods
            .create(
                &PostParams::default(),
                &serde_json::from_value(pod).unwrap(),
            )
            .await
            .unwrap();
        made.metadata.uid.unwrap()
    });
    browser.open(&format!("{}#/workloads", site.page));
    browser.heading("Workloads");
    browser.says("Scheduling is blocked by the pod's scheduling gates");
    // The scheduler writes its own reason over another one: a few times at once, then every 30 s at most.
    // It is overwritten until it stays so for a while.
    site.runtime.block_on(async {
        let reason = |pod: &Pod| {
            let status = pod.status.as_ref().unwrap();
            status.conditions.as_ref().unwrap()[0].message.clone()
        };
        loop {
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(&message));
            let patched = pods.patch_status("sly", &parameters, &patch).await;
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            if reason(&pods.get("sly").await.unwrap()) == reason(&patched.unwrap()) {
                break;
            }
        }
    });
    browser.says(SHOWN);
    let raw = "/[\\u202e\\u200b\\u001b\\u009b]/.test(document.documentElement.outerHTML)";
    for page in ["workloads", "", "search?filter=sly"] {
        browser.evaluate(&format!("location.hash = '#/{page}'"));
        browser.says(SHOWN);
        assert_eq!(browser.evaluate(raw), json!(false), "{page}");
        let size = browser.evaluate("document.documentElement.outerHTML.length");
        assert!(size.as_u64().unwrap() < 100_000, "{page}: {size}");
    }
    browser.evaluate(&format!("location.hash = '#/pod/{uid}'"));
    browser.heading("lab/sly");
    browser.says(SHOWN);
    assert_eq!(browser.evaluate(raw), json!(false));
    assert_eq!(
        browser.evaluate("document.querySelector('main img')"),
        Value::Null
    );
    // The admin's link has the pod's name in its place.
    browser.until(
        "document.querySelector('#links a')?.href === 'https://logs.example/?ns=lab&pod=sly'",
    );
    // Attributes are text, too.
    let cell = "import('/dom.js').then((dom) => dom.h('td', {title: 'x\\u202ey'}, 'a\\u202eb\\ne').outerHTML)";
    let shown = "<td title=\"x\\u{202e}y\">a\\u{202e}b\ne</td>";
    assert_eq!(browser.evaluate(cell), json!(shown));
    let none: Vec<String> = Vec::new();
    assert_eq!(browser.complaints(), none);
}

/// The first page of a reader who may list the pods of one namespace and queues.
fn of_a_tenant(queues: bool) -> Value {
    let queue = json!({"name": "research", "parent": null, "display": null, "held": 0.5, "wanted": 0, "fair": 2, "quota": 1, "limit": 4, "waiting": 1});
    json!({
        "pods": {"waiting": 1, "starting": 0, "whole": false}, "now": {"rows": [], "left": 0}, "changed": {"rows": [], "left": 0},
        "missing": [], "cards": null, "queues": queues.then_some(1), "busiest": queues.then_some([&queue]),
        "homes": [{"namespace": "lab", "pods": 2, "waiting": 1, "granted": 40_000, "used": 10_000, "idle": 30_000, "queues": if queues { vec![&queue] } else { vec![] }}],
    })
}

#[test]
fn a_tenant_sees_what_they_have_may_have_and_leave_idle_and_which_right_is_missing() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let site = Site::start(Sized::default());
    browser.before("const real = window.fetch; window.fetch = (url, ...rest) => (window.overview && /overview/.test(url) \
        ? Promise.resolve(new Response(JSON.stringify(window.overview))) : real(url, ...rest));");
    browser.open(&site.page);
    browser.heading("Now");
    let tenant = |browser: &mut Browser, queues: bool| {
        browser.evaluate(&format!("window.overview = {}; 0", of_a_tenant(queues)));
    };
    tenant(&mut browser, true);
    browser.says("2 pods hold 39.1 GiB of GPU memory, 1 waits.");
    browser.says("Leave idle");
    browser.says("0.5 GPUs used, fair share 2, limit 4, 1 pod waits");
    browser.says("You may not list gpunodes.aliquot.dev, pods in all namespaces");
    tenant(&mut browser, false);
    browser.says(
        "You may not list gpunodes.aliquot.dev, queues.scheduling.run.ai, pods in all namespaces",
    );
    browser.until("!document.querySelector('main').innerText.includes('fair share')");
    let none: Vec<String> = Vec::new();
    assert_eq!(browser.complaints(), none);
}

/// A server that takes the question and says nothing is gone, too.
#[test]
fn a_scheduler_that_only_hangs_is_missed() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let site = Site::start(Sized::default());
    browser.before("const real = window.fetch; window.fetch = (url, ...rest) => (window.hangs ? new Promise(() => {}) : real(url, ...rest));");
    browser.open(&site.page);
    browser.heading("Now");
    let hidden = "document.getElementById('stale').hidden";
    assert_eq!(browser.evaluate(hidden), json!(true));
    browser.evaluate("window.hangs = true; 0");
    browser.until(&format!("!{hidden}"));
    browser.says("8 cards on 1 node");
    let spoken = browser.spoken();
    let told = |(role, _): &(String, String)| role == "alert";
    assert!(spoken.iter().any(told), "{spoken:#?}");
    // It goes when the scheduler is back.
    browser.evaluate("window.hangs = false; dispatchEvent(new Event('hashchange'))");
    browser.until(hidden);
}
