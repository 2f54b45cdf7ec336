//! The network between replicas and API server: what becomes of a request, of its answer and
//! of a watch.

use crate::event::WorldEvent;
use crate::replica::{Reply, Sent};
use crate::request::{Eviction, InFlight, RequestFault, Watch};
use crate::server::{self, Answer, Asked};
use crate::store::Refusal;
use crate::time::Ms;
use crate::world::World;
use api::grant::Grant;
use axum::body::Bytes;
use serde_json::{Value, json};
use std::io;
use tokio::sync::mpsc;

/// A silent connection breaks after this time.
const DEAD: Ms = 30_000;
/// The API server ends a watch after this time.
const WATCH: Ms = 280_000;
/// The API server's bookmarks.
const BOOKMARK: Ms = 20_000;

impl World {
    /// Whether this fault happens now.
    fn strikes(&mut self, fault: &'static str) -> bool {
        let rate = self.rates.get(fault).copied().unwrap_or_default();
        let strikes = self.bad && rate > 0 && self.rng.u32(0..1000) < rate;
        if strikes {
            self.count(fault);
        }
        strikes
    }

    /// A replica sends a request at that moment. Says when something follows from it.
    pub(crate) fn depart(&mut self, at: usize, moment: Ms, sent: Sent) -> Ms {
        let Sent { asked, reply } = sent;
        self.say(|| format!("r{at} {}", asked.line()));
        if asked.is_leaders() {
            self.check_leader(at, &asked);
        }
        self.check_binding(at, &asked);
        self.heard(&asked);
        let start = self.replicas[at].start;
        let number = self.number();
        let writes = !asked.reads();
        let pause = 1 + self.rng.u64(0..8) + (moment - self.now);
        let mut sent = InFlight {
            replica: at,
            start,
            asked,
            reply: Some(reply),
            fault: RequestFault::Fine,
            answer: None,
        };
        let mut arrives = true;
        let mut delay = pause;
        if self.strikes("request lost") {
            arrives = false;
        } else if self.strikes("request late") {
            delay += 1000 + self.rng.u64(0..25_000);
        } else if self.strikes("request slow") {
            delay += self.rng.u64(0..900);
        }
        sent.fault = if self.strikes("answer lost") {
            RequestFault::Silent
        } else if self.strikes("connection broken") {
            RequestFault::Broken
        } else if self.strikes("500 and done") {
            RequestFault::Failed
        } else if self.strikes("500") {
            RequestFault::Refused(500)
        } else if self.strikes("429") {
            RequestFault::Refused(429)
        } else if writes && self.strikes("409") {
            RequestFault::Refused(409)
        } else {
            RequestFault::Fine
        };
        if arrives {
            self.soon(delay, WorldEvent::Arrive(number));
            // No intermediary repeats a PATCH (RFC 9110, 9.2.2).
            // An intermediary does not repeat a request that it has refused either.
            let refused = matches!(sent.fault, RequestFault::Refused(_));
            let repeats = writes && sent.asked.method != "PATCH" && !refused;
            if repeats && self.strikes("request twice") {
                let again = delay + 1 + self.rng.u64(0..15_000);
                let twin = InFlight {
                    replica: at,
                    start,
                    asked: sent.asked.clone(),
                    reply: None,
                    fault: RequestFault::Silent,
                    answer: None,
                };
                let number = self.number();
                self.in_flight.insert(number, twin);
                self.soon(again, WorldEvent::Arrive(number));
            }
        } else {
            self.soon(delay + DEAD, WorldEvent::Break(number));
        }
        self.in_flight.insert(number, sent);
        self.now + delay
    }

    /// A request comes to the server.
    pub(crate) fn arrive(&mut self, number: u64) {
        let Some(sent) = self.in_flight.get(&number) else {
            return;
        };
        let (at, fault) = (sent.replica, sent.fault);
        // What a process sent that has ended is not carried out: its connections are closed.
        // Nor is what a replica sent that has lost the lease meanwhile.
        let leads = !sent.asked.is_leaders()
            || self.holder().as_deref() == Some(self.replicas[at].name.as_str());
        let lives = self.replicas[at].start == sent.start && self.replicas[at].process.is_some();
        if !leads || !lives {
            self.count("request of a former leader dropped");
            self.in_flight.remove(&number);
            return;
        }
        let asked = sent.asked.clone();
        let answer = match fault {
            RequestFault::Refused(code) => {
                let reason = match code {
                    409 => "Conflict",
                    429 => "TooManyRequests",
                    _ => "InternalError",
                };
                Answer::from(Refusal::new(code, reason, "the network's doing"))
            }
            _ => self.serve(&asked),
        };
        let answer = match fault {
            RequestFault::Failed => Answer::from(Refusal::new(
                500,
                "InternalError",
                "done, though no answer says so",
            )),
            _ => answer,
        };
        self.say(|| match &answer {
            Answer::Object(code, _) => format!("  -> {code} for r{at} {}", asked.line()),
            Answer::Changes(version) => format!("  -> changes from {version} for r{at}"),
        });
        let pause = 1 + self.rng.u64(0..8);
        let late = if self.strikes("answer late") {
            500 + self.rng.u64(0..12_000)
        } else {
            0
        };
        if let Some(sent) = self.in_flight.get_mut(&number) {
            sent.answer = Some(answer);
        }
        match fault {
            RequestFault::Silent => self.soon(DEAD, WorldEvent::Break(number)),
            RequestFault::Broken => self.soon(pause, WorldEvent::Break(number)),
            _ => self.soon(pause + late, WorldEvent::Answer(number)),
        }
    }

    /// Carries out a request, and checks its effect.
    fn serve(&mut self, asked: &Asked) -> Answer {
        let now = self.stamp();
        let answer = server::answer(&mut self.store, asked, &now, self.minor);
        if asked.sub == "binding"
            && let Answer::Object(201, _) = answer
        {
            self.landed(asked);
        }
        if matches!(
            (asked.method.as_str(), asked.sub.as_str()),
            ("DELETE", _) | ("POST", "eviction")
        ) && let Answer::Object(200 | 201, _) = answer
            && asked.key.plural == "pods"
            && !asked.query.contains_key("dryRun")
        {
            self.say(|| format!("evicted {}", asked.key.name));
            self.leaves(&asked.key);
        }
        answer
    }

    /// An answer comes to its replica.
    pub(crate) fn reply(&mut self, number: u64) {
        let Some(mut sent) = self.in_flight.remove(&number) else {
            return;
        };
        let (Some(reply), Some(answer)) = (sent.reply.take(), sent.answer.take()) else {
            return;
        };
        if sent.asked.sub == "binding" {
            self.answered(sent.replica, sent.start, &sent.asked, &answer);
        }
        match answer {
            Answer::Object(code, object) => {
                let _ = reply.send(Reply::Whole(code, object.to_string().into_bytes()));
            }
            Answer::Changes(version) => {
                let (to, lines) = mpsc::unbounded_channel();
                if reply.send(Reply::Stream(lines)).is_err() {
                    return;
                }
                let watch = Watch {
                    replica: sent.replica,
                    asked: sent.asked,
                    version,
                    to,
                    stalled: 0,
                    since: self.now,
                    marked: self.now,
                    due: true,
                };
                self.watches.insert(number, watch);
                self.soon(1, WorldEvent::Feed(number));
            }
        }
    }

    /// Watches of kinds that changed hear of it soon.
    pub(crate) fn announce(&mut self) {
        let touched = self.store.touched();
        if touched.is_empty() {
            return;
        }
        let due: Vec<u64> = self
            .watches
            .iter_mut()
            .filter(|(_, watch)| !watch.due && touched.contains(&watch.asked.key.plural))
            .map(|(number, watch)| {
                watch.due = true;
                *number
            })
            .collect();
        for number in due {
            let mut pause = 1 + self.rng.u64(0..10);
            if self.strikes("watch slow") {
                pause += self.rng.u64(0..3000);
            }
            if self.strikes("watch stalled") {
                pause += 3000 + self.rng.u64(0..40_000);
            }
            self.soon(pause, WorldEvent::Feed(number));
        }
    }

    /// A watch sends its events.
    pub(crate) fn feed(&mut self, number: u64) {
        let Some(mut watch) = self.watches.remove(&number) else {
            return;
        };
        if watch.stalled > self.now {
            let pause = watch.stalled - self.now;
            self.watches.insert(number, watch);
            self.soon(pause, WorldEvent::Feed(number));
            return;
        }
        let plural = watch.asked.key.plural.clone();
        let mut text = Vec::new();
        let Some(changes) = self.store.since(&plural, watch.version) else {
            let refusal = Refusal::new(410, "Expired", "too old resource version");
            self.count("410");
            push(
                &mut text,
                &json!({"type": "ERROR", "object": server::status(&refusal)}),
            );
            let _ = watch.to.send(Ok(Bytes::from(text)));
            return;
        };
        let upto = changes.last().map(|change| change.version);
        for change in changes {
            if let Some(line) = server::line(change, &watch.asked) {
                push(&mut text, &line);
            }
        }
        if !text.is_empty() && self.strikes("watch cut off") {
            text.truncate(text.len() / 2);
            let _ = watch.to.send(Ok(Bytes::from(text)));
            let reset = io::Error::new(io::ErrorKind::ConnectionReset, "connection reset");
            let _ = watch.to.send(Err(reset));
            return;
        }
        watch.version = upto.unwrap_or(watch.version).max(watch.version);
        if self.now > watch.marked + BOOKMARK || self.strikes("watch skipped to a new version") {
            watch.marked = self.now;
            watch.version = watch.version.max(self.store.version());
            push(&mut text, &server::bookmark(&plural, watch.version));
        }
        if !text.is_empty() && watch.to.send(Ok(Bytes::from(text))).is_err() {
            return;
        }
        if self.now > watch.since + WATCH || self.strikes("watch ended") {
            return;
        }
        watch.due = false;
        self.watches.insert(number, watch);
    }

    /// What a scheduler says about an eviction.
    fn heard(&mut self, asked: &Asked) {
        if asked.key.plural == "events" && asked.body["reason"] == "Evict" {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let note = text(&asked.body["note"]);
            self.say(|| format!("evicts: {note}"));
            let of = text(&asked.body["regarding"]["name"]);
            let at = self.now;
            self.evictions.push(Eviction { at, of, note });
        }
    }

    /// A binding that was taken: the pod is bound once, and no card has more than it can.
    fn landed(&mut self, asked: &Asked) {
        let uid = asked.body["metadata"]["uid"].as_str().unwrap_or_default();
        let node = asked.body["target"]["name"].as_str().unwrap_or_default();
        let line = grants(&asked.body);
        self.say(|| format!("bound {} to {node}{line}", asked.key.name));
        if let Some(before) = self.bound.insert(uid.to_owned(), node.to_owned()) {
            self.violated(format!(
                "{} was bound to {before} and to {node}",
                asked.key.name
            ));
        }
        self.check_cards();
        self.admit_soon(&asked.key, uid, node);
    }

    /// No replica binds a pod elsewhere while another binding of it may still be carried out.
    fn check_binding(&mut self, at: usize, asked: &Asked) {
        if asked.sub != "binding" {
            return;
        }
        let start = self.replicas[at].start;
        let uid = asked.body["metadata"]["uid"].as_str().unwrap_or_default();
        let node = asked.body["target"]["name"].as_str().unwrap_or_default();
        let key = (at, start, uid.to_owned());
        if let Some((before, since)) = self.binding.get(&key)
            && before != node
            && self.now < since + 60_000
        {
            let (before, since) = (before.clone(), *since);
            self.violated(format!(
                "{} is bound to {node} while a binding to {before} since {since} has no answer",
                asked.key.name
            ));
        }
        self.binding.insert(key, (node.to_owned(), self.now));
    }

    /// The word on a binding came to its replica.
    fn answered(&mut self, at: usize, start: u64, asked: &Asked, answer: &Answer) {
        let Answer::Object(code, _) = answer else {
            return;
        };
        if *code < 500 {
            let uid = asked.body["metadata"]["uid"].as_str().unwrap_or_default();
            self.binding.remove(&(at, start, uid.to_owned()));
        }
    }
}

fn push(text: &mut Vec<u8>, line: &Value) {
    text.extend(line.to_string().into_bytes());
    text.push(b'\n');
}

/// What a binding grants, for the trace.
fn grants(binding: &Value) -> String {
    let text = binding["metadata"]["annotations"]["aliquot.dev/grant"].as_str();
    let Some(grant) = text.and_then(|text| Grant::peek(text).ok()) else {
        return String::new();
    };
    let of = |container: &api::grant::ContainerGrant| {
        let (memory, cards) = (container.memory_mib.0, container.gpus.join(","));
        format!(" {memory} MiB {} of {cards}", container.mode)
    };
    grant.containers.iter().map(of).collect()
}
