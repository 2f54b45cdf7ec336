//! The status page in a real Chromium, as a user sees it.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

mod browser;
mod fleet;
mod hour;
mod site;

use browser::Browser;
use serde_json::json;
use site::{Demo, Site, Sized};
use std::path::{Path, PathBuf};
use std::time::Instant;

fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images")
}

/// With `UPDATE_DOCS=1` the picture of the docs is this one; without it must be there.
fn picture(browser: &mut Browser, name: &str) {
    let path = images().join(name);
    let shot = browser.shot();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, shot).unwrap();
    }
    assert!(
        path.exists(),
        "{} is missing: UPDATE_DOCS=1",
        path.display()
    );
}

#[test]
fn every_page_renders_against_the_demo_and_a_click_drills_down() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let demo = Demo::start();
    browser.open(&demo.page);
    browser.heading("Overview");
    // The walkthrough has reached its end: two shares, a whole card, one pending pod.
    browser.until("document.querySelector('.tiles')?.innerText.includes('1\\npods waiting')");
    browser.says("NVIDIA H100 80GB HBM3");
    picture(&mut browser, "page-overview.png");

    // A name cannot be made to look like another.
    let cell = "import('/dom.js').then((dom) => dom.h('td', {title: 'x\\u202ey'}, 'a\\u202eb\\u200bc\\u001bd\\ne').outerHTML)";
    let shown = "<td title=\"xy\">abcd\ne</td>";
    assert_eq!(browser.evaluate(cell), json!(shown));

    browser.click("nav a[href='#/cards']");
    browser.heading("Cards");
    browser.until("document.querySelectorAll('tbody tr').length === 2");
    browser.says("1 to 2 of 2");
    picture(&mut browser, "page-cards.png");
    // By what is granted, the most last; then the other way round.
    browser.click("#sort-granted");
    browser.until("document.querySelector('tbody tr a').textContent === 'node-2 / 0'");
    browser.click("#sort-granted");
    browser.until("document.querySelector('tbody tr a').textContent === 'node-1 / 0'");
    browser.evaluate("location.hash = '#/cards?filter=node-2'");
    browser.until("document.querySelectorAll('tbody tr').length === 1");
    browser.click("tbody tr a");
    browser.heading("Card 0 of node-2");
    browser.says("demo/");
    browser.says("is connected");
    browser.says("ClientLimit");
    picture(&mut browser, "page-card.png");
    // The card's server lets every client have what the largest share has: only that one's limit
    // is the server's own.
    for (pod, fence) in [
        ("greedy", "Guarded by ClientLimit"),
        ("notebook", "Guarded by ServerLimit"),
    ] {
        let link = format!("tbody a[href^='#/pod/'][href$='{pod}']");
        browser.until(&format!("document.querySelector({}) !== null", json!(link)));
        // From a share to its pod's timeline, with the id of its trace.
        browser.click(&link);
        browser.heading(&format!("demo/{pod}"));
        browser.says(fence);
        if pod == "greedy" {
            browser.evaluate("history.back(); 0");
            browser.heading("Card 0 of node-2");
        }
    }
    for step in ["requested", "bound", "running"] {
        let step = json!(step);
        browser.until(&format!(
            "[...document.querySelectorAll('ol.timeline b')].some((b) => b.textContent === {step})"
        ));
    }
    browser.until("/^[0-9a-f]{32}$/.test(document.querySelector('dd code')?.textContent ?? '')");
    picture(&mut browser, "page-pod.png");

    browser.click("nav a[href='#/queues']");
    browser.heading("Queues");
    browser.says("research in company");
    picture(&mut browser, "page-queues.png");
    who_would_give_way(&mut browser);
    browser.click("nav a[href='#/queues']");
    browser.heading("Queues");
    browser.click("a[href='#/pods?queue=research']");
    browser.heading("Pods that do not run yet");
    browser.says("demo/later");
    browser.click("tbody tr th a");
    browser.heading("demo/later");
    browser.says("Position in the queue");
    browser.says("pending");
    browser.says("held as a whole GPU");
    browser.dark(true);
    picture(&mut browser, "page-pod-dark.png");

    browser.click("nav a[href='#/health']");
    browser.heading("Health");
    browser.says("2 of 2 nodes");
    browser.evaluate("location.hash = '#/nonsense'");
    browser.heading("No such page");

    let none: Vec<String> = Vec::new();
    assert_eq!(browser.complaints(), none);
    let elsewhere = |url: &&String| !url.starts_with(&demo.page);
    assert_eq!(browser.requests.iter().find(elsewhere), None);
}

/// The form is filled in as by hand; the answer is the scheduler's own.
fn who_would_give_way(browser: &mut Browser) {
    browser.click("a[href='#/whatif']");
    browser.heading("Who would give way?");
    browser.evaluate(
        "document.getElementById('of').value = 'product'; document.getElementById('kind').value = 'memory'; \
         document.getElementById('amount').value = '2000'; 0",
    );
    browser.click("#ask-now");
    browser.says("1 of 1 pod gets a place; no pod gives way.");
    browser.says("node-2");
    browser.evaluate("document.getElementById('amount').value = 'lots'; 0");
    browser.evaluate("document.getElementById('amount').focus()");
    browser.press("Enter");
    browser.until("document.getElementById('verdict')?.classList.contains('bad') ?? false");
    // What was refused is a complaint of the browser's, too.
    let told = browser.complaints();
    assert!(told.iter().all(|one| one.contains("400")), "{told:?}");
}

#[test]
fn what_changes_is_seen_without_a_reload_and_what_is_gone_is_said() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let mut demo = Demo::start();
    browser.open(&format!("{}#/cards", demo.page));
    browser.until("document.querySelectorAll('tbody tr').length === 2");
    browser.evaluate("window.same = true; document.querySelector('tbody tr a').focus(); 0");
    demo.aliquot(&["cordon", "node-1/0"]);
    browser.says("cordoned");
    assert_eq!(
        browser.evaluate("window.same"),
        json!(true),
        "it was loaded again"
    );
    assert_eq!(
        browser.evaluate("document.activeElement.textContent"),
        json!("node-1 / 0"),
        "the focus is lost by news"
    );
    demo.end();
    browser.until("document.getElementById('state').textContent.startsWith('No answer')");
    browser.says("cordoned");
}

#[test]
fn the_page_is_used_by_keyboard_and_read_out() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let demo = Demo::start();
    browser.open(&demo.page);
    browser.heading("Overview");
    browser.until("document.querySelector('.tiles')?.innerText.includes('1\\npods waiting')");
    let mut reached = Vec::new();
    for _ in 0..4 {
        browser.press("Tab");
        let at = browser.evaluate("document.activeElement.textContent");
        reached.push(at.as_str().unwrap().to_owned());
    }
    assert_eq!(reached, ["Skip to content", "Overview", "Fleet", "Cards"]);
    browser.evaluate("document.querySelector(\"nav a[href='#/cards']\").focus()");
    browser.press("Enter");
    browser.heading("Cards");
    // On to the content, past the navigation.
    assert_eq!(browser.evaluate("document.activeElement.id"), json!("main"));
    browser.until("document.querySelectorAll('tbody tr').length === 2");
    browser.evaluate("document.querySelector('#sort-used').focus()");
    browser.press("Enter");
    browser.until("document.querySelector('th[aria-sort]')?.ariaSort === 'ascending'");
    assert_eq!(
        browser.evaluate("document.activeElement.id"),
        json!("sort-used"),
        "the focus is lost by sorting"
    );
    let spoken = browser.spoken();
    for (role, name) in [
        ("heading", "Cards"),
        ("navigation", "Pages"),
        ("searchbox", "Filter"),
        ("combobox", "Show"),
        ("table", "Memory granted and used, by card"),
        ("group", "Pages of the list"),
        ("link", "node-1 / 0"),
    ] {
        let told = |(r, n): &(String, String)| r == role && n.trim() == name;
        assert!(spoken.iter().any(told), "no {role} {name} in {spoken:#?}");
    }
    let bars = spoken
        .iter()
        .filter(|(role, _)| role == "image" || role == "img");
    let mut bars = bars.map(|(_, name)| name).peekable();
    assert!(bars.peek().is_some(), "no bar is read out: {spoken:#?}");
    for name in bars {
        assert!(name.contains("% granted"), "a bar is read out as {name:?}");
    }
}

/// Contrast of text, of faint text, of links and of trouble on their ground: 4.5 and more.
#[test]
fn colours_can_be_read_in_light_and_dark() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let demo = Demo::start();
    browser.open(&demo.page);
    browser.heading("Overview");
    for dark in [false, true] {
        browser.dark(dark);
        let worst = browser.evaluate(
            "(() => {
              const style = getComputedStyle(document.documentElement);
              const light = (name) => {
                const hex = style.getPropertyValue(name).trim().slice(1);
                const [r, g, b] = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
                  .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
              };
              const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
              return Math.min(...['--text', '--faint', '--accent', '--bad'].flatMap((text) =>
                ['--ground', '--raised'].map((ground) => contrast(text, ground))));
            })()",
        );
        assert!(worst.as_f64().unwrap() >= 4.5, "dark {dark}: {worst}");
    }
}

#[test]
fn a_token_is_asked_for_and_a_wrong_one_is_refused_in_a_sentence() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let site = Site::start(Sized {
        open: false,
        nodes: 3,
        ..Sized::default()
    });
    let token = site.token();
    browser.open(&site.page);
    browser.heading("Who are you?");
    let enter = |browser: &mut Browser, token: &str| {
        browser.evaluate(&format!(
            "document.getElementById('token').value = {}; 0",
            json!(token)
        ));
        browser.click("#enter");
    };
    enter(&mut browser, "nonsense");
    browser.says("the token is not accepted");
    enter(&mut browser, &token);
    browser.heading("Overview");
    browser.says("nodes with an agent");
    browser.click("#leave");
    browser.heading("Who are you?");
    let kept =
        browser.evaluate("sessionStorage.length + localStorage.length + document.cookie.length");
    assert_eq!(kept, json!(0), "something of the token is kept");
}

#[test]
fn five_thousand_nodes_are_looked_through_a_page_at_a_time() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let site = Site::start(Sized {
        nodes: 5000,
        ..Sized::default()
    });
    browser.open(&format!("{}#/cards", site.page));
    browser.until("document.getElementById('words')?.textContent.endsWith('of 40,000') ?? false");
    let mut measure = |what: &str, action: &str, done: &str| {
        let begin = Instant::now();
        browser.evaluate(action);
        browser.until(done);
        let time = begin.elapsed();
        eprintln!("{what}: {} ms", time.as_millis());
        // Unoptimised, beside other tests; what it really takes is in docs/benchmarks.md.
        assert!(time.as_secs() < 5, "{what} takes {time:?}");
    };
    measure(
        "the last page of 40,000 cards",
        "document.getElementById('page-last').click()",
        "document.querySelector('tbody tr:last-child a')?.textContent === 'n5000 / 7'",
    );
    measure(
        "one node of 5,000 by filter",
        "location.hash = '#/cards?filter=n4321'",
        "document.getElementById('words')?.textContent === '1 to 8 of 8'",
    );
    measure(
        "40,000 cards sorted by what is used",
        "location.hash = '#/cards?sort=-used'",
        "document.querySelector('th[aria-sort]')?.ariaSort === 'descending'",
    );
    measure(
        "sums over 40,000 cards",
        "location.hash = '#/'",
        "document.querySelector('.tiles')?.innerText.includes('40,000\\ncards') ?? false",
    );
    browser.evaluate("location.hash = '#/cards'");
    browser.until("document.querySelectorAll('tbody tr').length === 100");
    let elements = browser.evaluate("document.getElementsByTagName('*').length");
    assert!(elements.as_u64().unwrap() < 3000, "{elements} elements");
    let bytes = browser
        .evaluate("fetch('api/cards?count=100').then((r) => r.text()).then((t) => t.length)");
    eprintln!("one page of cards: {bytes} bytes, {elements} elements");
    assert!(bytes.as_u64().unwrap() < 60_000, "{bytes} bytes");
    let again = browser.evaluate(
        "fetch('api/cards?count=100', {cache: 'no-store'}).then((r) => fetch('api/cards?count=100', \
         {cache: 'no-store', headers: {'if-none-match': r.headers.get('etag')}})).then((r) => r.status)",
    );
    assert_eq!(
        again,
        json!(304),
        "nothing changed, and the body came again"
    );
}
