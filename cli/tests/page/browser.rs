//! A real Chromium without a window, over its debugging pipe.
//!
//! In: an address, clicks, keys. Out: what the page says, and everything that it complained of.
//! Must never reach another host than the page's.

use base64::Engine as _;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PROGRAMS: [&str; 3] = [
    "/usr/bin/chromium-headless-shell",
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
];
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    next: u64,
    session: String,
    complaints: Vec<String>,
    /// Addresses that were asked for.
    pub(crate) requests: Vec<String>,
    _place: tempfile::TempDir,
}

impl Browser {
    /// `None`, with a message: there is no Chromium here.
    pub(crate) fn start() -> Option<Self> {
        let Some(program) = PROGRAMS.iter().find(|program| Path::new(program).exists()) else {
            eprintln!("left out: no Chromium on this machine (Debian: chromium-headless-shell)");
            assert!(
                std::env::var_os("ALIQUOT_REQUIRE_BROWSER").is_none(),
                "a browser is required here"
            );
            return None;
        };
        let place = tempfile::Builder::new()
            .prefix("b")
            .tempdir_in("/tmp")
            .unwrap();
        let (to, from) = (place.path().join("to"), place.path().join("from"));
        for pipe in [&to, &from] {
            nix::unistd::mkfifo(pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
        let child = Command::new("/bin/sh")
            .args(["-c", "exec \"$@\" 3<\"$TO\" 4>\"$FROM\"", "sh", program])
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--ignore-certificate-errors",
                "--remote-debugging-pipe",
                "--window-size=1280,800",
            ])
            .arg(format!(
                "--user-data-dir={}",
                place.path().join("profile").display()
            ))
            .env("TO", &to)
            .env("FROM", &from)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // In the order in which the shell opens them: each waits for the other side.
        let to = OpenOptions::new().write(true).open(&to).unwrap();
        let answers = File::open(&from).unwrap();
        let (heard, from) = channel();
        std::thread::spawn(move || {
            let mut answers = BufReader::new(answers);
            let mut word = Vec::new();
            while answers.read_until(0, &mut word).is_ok_and(|read| read > 0) {
                word.pop();
                let Ok(value) = serde_json::from_slice(&word) else {
                    return;
                };
                if heard.send(value).is_err() {
                    return;
                }
                word.clear();
            }
        });
        let mut browser = Self {
            child,
            to,
            from,
            next: 0,
            session: String::new(),
            complaints: Vec::new(),
            requests: Vec::new(),
            _place: place,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        session["sessionId"]
            .as_str()
            .unwrap()
            .clone_into(&mut browser.session);
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut call = json!({"id": id, "method": method, "params": parameters});
        if !self.session.is_empty() {
            call["sessionId"] = json!(self.session);
        }
        let mut bytes = serde_json::to_vec(&call).unwrap();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let word = self.from.recv_timeout(left);
            let word = word.unwrap_or_else(|error| panic!("{method}: {error}"));
            if word["id"] == id {
                assert!(word["error"].is_null(), "{method}: {}", word["error"]);
                return word["result"].clone();
            }
            self.note(&word);
        }
    }

    fn note(&mut self, word: &Value) {
        let about = &word["params"];
        match word["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => {
                self.complaints.push(about["exceptionDetails"].to_string());
            }
            "Runtime.consoleAPICalled"
                if about["type"] == "error" || about["type"] == "warning" =>
            {
                self.complaints.push(about["args"].to_string());
            }
            "Log.entryAdded" if about["entry"]["level"] == "error" => {
                self.complaints.push(about["entry"].to_string());
            }
            "Network.requestWillBeSent" => {
                let url = about["request"]["url"].as_str().unwrap_or_default();
                self.requests.push(url.to_owned());
            }
            _ => {}
        }
    }

    /// Everything that the page complained of since it was asked last.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        self.evaluate("0");
        std::mem::take(&mut self.complaints)
    }

    pub(crate) fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({"url": address}));
    }

    /// The value of an expression in the page.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", parameters);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {}",
            result["exceptionDetails"]
        );
        result["result"]["value"].clone()
    }

    /// Milliseconds of CPU time that the page's main thread has spent. What other processes do does
    /// not add to them.
    pub(crate) fn busy(&mut self) -> f64 {
        self.call("Performance.enable", json!({"timeDomain": "threadTicks"}));
        let all = self.call("Performance.getMetrics", json!({}));
        let metrics = all["metrics"].as_array().unwrap();
        let spent = metrics.iter().find(|one| one["name"] == "TaskDuration");
        spent.unwrap()["value"].as_f64().unwrap() * 1000.0
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.evaluate(expression) != json!(true) {
            if Instant::now() >= deadline {
                let text = self.text();
                let complaints = self.complaints();
                panic!("never: {expression}\non:\n{text}\n{complaints:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the heading of a page.
    pub(crate) fn heading(&mut self, text: &str) {
        self.until(&format!(
            "document.querySelector('h1')?.textContent === {}",
            json!(text)
        ));
    }

    /// Waits until the content says this.
    pub(crate) fn says(&mut self, text: &str) {
        self.until(&format!(
            "document.querySelector('main')?.innerText.includes({}) ?? false",
            json!(text)
        ));
    }

    pub(crate) fn text(&mut self) -> String {
        let text = self.evaluate("document.body?.innerText ?? ''");
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks with the mouse in the middle of what a selector finds first.
    pub(crate) fn click(&mut self, selector: &str) {
        self.until(&format!("!!document.querySelector({})", json!(selector)));
        let place = self.evaluate(&format!(
            "(() => {{ const e = document.querySelector({}); e.scrollIntoView({{block: 'center'}}); \
             const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2]; }})()",
            json!(selector)
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Presses a key, by its name in events.
    pub(crate) fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            "End" => (35, ""),
            "Home" => (36, ""),
            "/" => (191, "/"),
            "ArrowLeft" => (37, ""),
            "ArrowUp" => (38, ""),
            "ArrowRight" => (39, ""),
            "ArrowDown" => (40, ""),
            other => panic!("no key {other}"),
        };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Moves the mouse to a point of what a selector finds first, from its corner.
    pub(crate) fn hover(&mut self, selector: &str, x: f64, y: f64) {
        let place = self.evaluate(&format!(
            "(() => {{ const r = document.querySelector({}).getBoundingClientRect(); return [r.x, r.y]; }})()",
            json!(selector)
        ));
        let at = |index: usize, more: f64| place[index].as_f64().unwrap() + more;
        let event = json!({"type": "mouseMoved", "x": at(0, x), "y": at(1, y)});
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Runs a script in every page before its own.
    pub(crate) fn before(&mut self, script: &str) {
        let script = json!({"source": script});
        self.call("Page.addScriptToEvaluateOnNewDocument", script);
    }

    /// The size of the window.
    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    pub(crate) fn dark(&mut self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": value}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// What a screen reader gets: role and name of everything that is not ignored.
    pub(crate) fn spoken(&mut self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let nodes = tree["nodes"].as_array().unwrap().iter();
        nodes
            .filter(|node| node["ignored"] == false)
            .map(|node| {
                let text = |key: &str| node[key]["value"].as_str().unwrap_or_default().to_owned();
                (text("role"), text("name"))
            })
            .collect()
    }

    /// PNG of what is seen.
    pub(crate) fn shot(&mut self) -> Vec<u8> {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let text = shot["data"].as_str().unwrap();
        base64::engine::general_purpose::STANDARD
            .decode(text)
            .unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
