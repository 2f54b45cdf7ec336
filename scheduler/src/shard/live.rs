//! What an admin changes while the scheduler runs: the `SchedulingShard` of a shard's name,
//! over what file and flags say, and the statuses of it and of KAI's `Config`. Pure.
//!
//! In: the objects. Out: the settings in force, as an event of the core when they change, and
//! [`Report`]s: the conditions of an object's status. An invalid object changes nothing: the
//! previous settings stay, and the condition `Ready` has the error.

use super::file::{Shard, parse};
use super::pool::Pool;
use super::remark::{Remark, remark_at};
use super::spec::{self, FIELDS, Spec};
use crate::usage;
use api::kai::{self, Config as KaiConfig, SchedulingShard};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use proto::names::kai::SCHEDULER_NAME;
use scheduler_core::Config;
use scheduler_core::units::{Duration, Time};
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// KAI's only `Config`.
const CONFIG: &str = "kai-config";
/// A status that another writer changes is written again so soon, and no sooner.
const AGAIN: Duration = Duration::seconds(10);
/// Whether past use should count and does not.
const USAGE_STALE: &str = "UsageStale";
/// The spec is in force.
const READY: &str = "Ready";
/// A condition's message; the API server takes 32 KiB.
const MAX_MESSAGE: usize = 8192;

/// Of which kind an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `SchedulingShard`.
    Shard,
    /// `Config`.
    Config,
}

/// One condition, but for its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedCondition {
    /// Type.
    pub kind: &'static str,
    /// `True` or `False`.
    pub holds: bool,
    /// In one word; KAI's words for KAI's types.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// What an object's status is to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Of what.
    pub kind: Kind,
    /// The object, as it was read: name, UID, generation and version.
    pub meta: ObjectMeta,
    /// What its status says.
    pub has: Vec<Condition>,
    /// The conditions to write; conditions of other types stay.
    pub wants: Vec<WantedCondition>,
}

/// One object, and its last written status.
#[derive(Debug, Default)]
struct StatusEntry {
    object: Option<(ObjectMeta, Vec<Condition>)>,
    wants: Vec<WantedCondition>,
    told: Option<(Option<i64>, Vec<WantedCondition>, Time)>,
}

impl StatusEntry {
    fn put(
        &mut self,
        mut meta: ObjectMeta,
        status: &Map<String, Value>,
        wants: Vec<WantedCondition>,
    ) {
        meta.annotations = None;
        meta.managed_fields = None;
        self.object = Some((meta, kai::conditions(status)));
        self.wants = wants;
    }

    /// The status says something else.
    fn differs(&self) -> bool {
        self.object.as_ref().is_some_and(|(meta, has)| {
            let is_said = |want: &WantedCondition| {
                let status = if want.holds { "True" } else { "False" };
                has.iter().any(|one| {
                    one.type_ == want.kind
                        && one.status == status
                        && one.reason == want.reason
                        && one.message == want.message
                        && one.observed_generation == meta.generation
                })
            };
            !self.wants.iter().all(is_said)
        })
    }

    /// When it is written. `None`: it says all.
    fn due(&self) -> Option<Time> {
        let (meta, _) = self.object.as_ref().filter(|_| self.differs())?;
        Some(match &self.told {
            Some((generation, wants, at))
                if *generation == meta.generation && *wants == self.wants =>
            {
                at.after(AGAIN)
            }
            _ => Time(0),
        })
    }

    fn report(&mut self, kind: Kind, now: Time) -> Option<Report> {
        self.due().filter(|due| *due <= now)?;
        let (meta, has) = self.object.clone()?;
        self.told = Some((meta.generation, self.wants.clone(), now));
        Some(Report {
            kind,
            meta,
            has,
            wants: self.wants.clone(),
        })
    }
}

/// The live objects of one shard.
#[derive(Debug)]
pub struct Live {
    name: String,
    pool: Pool,
    /// What file and flags say.
    base: InEffect,
    /// In force.
    settings: Config,
    /// Of past use, in force.
    usage: Option<usage::Settings>,
    /// The condition about past use.
    said: WantedCondition,
    shard: StatusEntry,
    /// `None`: another shard of this process writes its status.
    config: Option<(InForce, StatusEntry)>,
}

/// Settings of a shard.
#[derive(Clone, Debug)]
struct InEffect {
    core: Config,
    usage: Option<usage::Settings>,
}

/// Settings of the process that KAI's `Config` has, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// `global.schedulerName`.
    pub scheduler_name: String,
    /// `global.queueLabelKey`.
    pub queue_label_key: String,
    /// `global.nodePoolLabelKey`.
    pub node_pool_label_key: String,
    /// `binder.volumeBindingTimeoutSeconds`.
    pub volume_binding_timeout_s: u64,
    /// `podGrouper.args.gangScheduleDeployment`.
    pub deployment_gang_schedule: bool,
}

impl Live {
    /// Nothing was seen yet. With `config`, it writes the status of KAI's `Config`.
    pub fn new(shard: &Shard, config: Option<InForce>) -> Self {
        Self {
            name: shard.name.clone(),
            pool: shard.pool.clone(),
            base: InEffect {
                core: shard.core.clone(),
                usage: shard.usage.clone(),
            },
            settings: shard.core.clone(),
            usage: shard.usage.clone(),
            said: of_usage(&usage::LatestUsage::default().state()),
            shard: StatusEntry::default(),
            config: config.map(|of| (of, StatusEntry::default())),
        }
    }

    /// A shard is there. `Some`: other settings.
    pub fn shard(&mut self, object: SchedulingShard) -> Option<Config> {
        if object.metadata.name.as_ref() != Some(&self.name) {
            return None;
        }
        let mut remarks = Vec::new();
        let read = self.read(&object.spec, &mut remarks);
        let wrong = read.as_ref().err().map(said);
        let mut wants = wants(wrong, &remarks);
        wants.push(self.said.clone());
        self.shard.put(object.metadata, &object.status, wants);
        read.ok().and_then(|settings| self.set(settings))
    }

    /// Where past use comes from.
    pub fn usage(&self) -> Option<&usage::Settings> {
        self.usage.as_ref()
    }

    /// The condition to write about past use.
    pub fn say(&mut self, state: &usage::State) {
        self.said = of_usage(state);
        for want in &mut self.shard.wants {
            if want.kind == USAGE_STALE {
                want.clone_from(&self.said);
            }
        }
    }

    /// The shard of that name was deleted: file and flags apply. `Some`: other settings.
    pub fn shard_gone(&mut self, name: &str) -> Option<Config> {
        if name != self.name {
            return None;
        }
        self.shard = StatusEntry::default();
        self.set(self.base.clone())
    }

    /// KAI's `Config` is there, or has changed.
    pub fn config(&mut self, object: KaiConfig) {
        let Some((of, entry)) = &mut self.config else {
            return;
        };
        if object.metadata.name.as_deref() != Some(CONFIG) {
            return;
        }
        if !of.speaks_of(&object) {
            *entry = StatusEntry::default();
            return;
        }
        let mut remarks = Vec::new();
        let wrong = of.against(&object.spec, &mut remarks);
        let wants = wants(wrong, &remarks);
        entry.put(object.metadata, &object.status, wants);
    }

    /// It was deleted.
    pub fn config_gone(&mut self, name: &str) {
        if let Some((_, entry)) = self.config.as_mut().filter(|_| name == CONFIG) {
            *entry = StatusEntry::default();
        }
    }

    /// When a status must be written. `None`: all are up to date.
    pub fn due(&self) -> Option<Time> {
        let config = self.config.as_ref().and_then(|(_, entry)| entry.due());
        self.shard.due().into_iter().chain(config).min()
    }

    /// The statuses to write now.
    pub fn reports(&mut self, now: Time) -> Vec<Report> {
        let config = self.config.as_mut();
        let config = config.and_then(|(_, entry)| entry.report(Kind::Config, now));
        let shard = self.shard.report(Kind::Shard, now);
        shard.into_iter().chain(config).collect()
    }

    fn set(&mut self, to: InEffect) -> Option<Config> {
        self.usage = to.usage;
        let settings = to.core;
        if settings == self.settings {
            return None;
        }
        self.settings = settings.clone();
        Some(settings)
    }

    fn read(
        &self,
        fields: &Map<String, Value>,
        remarks: &mut Vec<Remark>,
    ) -> Result<InEffect, Remark> {
        let mut known = Map::new();
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            if FIELDS.contains(&name.as_str()) {
                known.insert(name.clone(), value.clone());
            } else {
                let why = "is not a known field, and has no effect";
                remarks.push(remark_at(name, why));
            }
        }
        let spec: Spec = parse(&Value::Object(known).to_string())?;
        let mut settings = self.base.clone();
        let read = spec::read(spec, &mut settings.core, remarks)?;
        settings.usage = read.usage.or(settings.usage);
        let here = self.pool.value().unwrap_or_default();
        if let Some(pool) = read.pool.filter(|pool| pool != here) {
            return Err(remark_at(
                "partitionLabelValue",
                format!(
                    "\"{pool}\" is not the node pool of this scheduler, \"{here}\", which cannot change while it runs: start one with --node-pool={pool}"
                ),
            ));
        }
        match (read.pool_key, &self.pool) {
            (Some(other), Pool::Of { key, .. }) if other != *key => Err(remark_at(
                "args.nodepool-label-key",
                format!(
                    "\"{other}\" is not the label of this scheduler's node pool, \"{key}\", which cannot change while it runs: start it with --node-pool-label-key={other}"
                ),
            )),
            (Some(_), Pool::All) => {
                let why = "has no effect: every node is this scheduler's";
                remarks.push(remark_at("args.nodepool-label-key", why));
                Ok(settings)
            }
            _ => Ok(settings),
        }
    }
}

impl InForce {
    /// Whether this scheduler writes the status of a `Config`: two writers would overwrite each
    /// other. It is the one that the object names, by default KAI's. The scheduler of KAI's name
    /// reports an error for an object with another name, if no condition of this generation exists.
    fn speaks_of(&self, object: &KaiConfig) -> bool {
        let of_kai = SCHEDULER_NAME;
        let named = object
            .spec
            .get("global")
            .and_then(|global| global.get("schedulerName"));
        let named = named.and_then(Value::as_str).unwrap_or(of_kai);
        let is_said = |one: &Condition| {
            one.type_ == READY && one.observed_generation == object.metadata.generation
        };
        let is_mine = named == self.scheduler_name;
        is_mine
            || self.scheduler_name == of_kai && !kai::conditions(&object.status).iter().any(is_said)
    }

    /// What of a `Config` is otherwise here, and cannot be changed by it. What means nothing
    /// here is remarked upon.
    fn against(&self, fields: &Map<String, Value>, remarks: &mut Vec<Remark>) -> Option<String> {
        let timeout = self.volume_binding_timeout_s.to_string();
        let gangs = self.deployment_gang_schedule.to_string();
        let read = [
            (
                "global.schedulerName",
                self.scheduler_name.as_str(),
                "--scheduler-name",
            ),
            (
                "global.queueLabelKey",
                self.queue_label_key.as_str(),
                "--queue-label-key",
            ),
            (
                "global.nodePoolLabelKey",
                self.node_pool_label_key.as_str(),
                "--node-pool-label-key",
            ),
            (
                "binder.volumeBindingTimeoutSeconds",
                timeout.as_str(),
                "--volume-binding-timeout-s",
            ),
            (
                "podGrouper.args.gangScheduleDeployment",
                gangs.as_str(),
                "--deployment-gang-schedule",
            ),
        ];
        let is_read_below = |field: &str| {
            let mut known = read.iter();
            known.any(|(known, ..)| known.starts_with(&format!("{field}.")))
        };
        let mut wrong = Vec::new();
        let mut left: Vec<(String, &Value)> = fields.iter().map(|(k, v)| (k.clone(), v)).collect();
        left.reverse();
        while let Some((field, value)) = left.pop() {
            match value {
                Value::Null => {}
                // Sections are told by their fields, down to those that are read as a whole.
                Value::Object(inner) if !field.contains('.') || is_read_below(&field) => {
                    let inner = inner.iter().rev();
                    left.extend(inner.map(|(key, value)| (format!("{field}.{key}"), value)));
                }
                value => {
                    let Some((_, here, flag)) = read.iter().find(|(known, ..)| *known == field)
                    else {
                        remarks.push(remark_at(&field, "has no effect"));
                        continue;
                    };
                    let text = value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned);
                    if text != *here {
                        wrong.push(format!(
                            "spec.{field}: it is {here} in the running scheduler: start it with {flag}={text}"
                        ));
                    }
                }
            }
        }
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }
}

fn said(remark: &Remark) -> String {
    let dot = if remark.field.is_empty() { "" } else { "." };
    format!("spec{dot}{}: {}", remark.field, remark.why)
}

/// The conditions of an object, by its errors.
fn wants(wrong: Option<String>, ignored: &[Remark]) -> Vec<WantedCondition> {
    let want = |kind, holds, reason, message: &str| WantedCondition {
        kind,
        holds,
        reason,
        message: message.to_owned(),
    };
    let lines: Vec<String> = ignored.iter().map(said).collect();
    vec![
        want(
            "Deployed",
            true,
            "deployed",
            "The scheduler does the work of all components.",
        ),
        want(
            "Available",
            true,
            "available",
            "A scheduler reads this object.",
        ),
        // The scheduler depends on no other component, but KAI's own tools wait for this condition.
        want(
            "DependenciesFulfilled",
            true,
            "dependencies_fulfilled",
            "The scheduler needs no other component.",
        ),
        match &wrong {
            None => want(READY, true, "ready", "The spec is in force."),
            Some(why) => WantedCondition {
                message: cut(vec![format!("{why}. The previous settings stay in force.")]),
                ..want(READY, false, "not_ready", "")
            },
        },
        if lines.is_empty() {
            want(
                "KeysIgnored",
                false,
                "none_ignored",
                "Every key that is set has an effect.",
            )
        } else {
            WantedCondition {
                message: cut(lines),
                ..want("KeysIgnored", true, "ignored", "")
            }
        },
        want(
            "Reconciling",
            false,
            "reconciled",
            "The object was read completely.",
        ),
    ]
}

fn of_usage(state: &usage::State) -> WantedCondition {
    WantedCondition {
        kind: USAGE_STALE,
        holds: state.stale,
        reason: state.reason,
        message: cut(vec![state.message.clone()]),
    }
}

/// Lines, as many as a message may have.
fn cut(lines: Vec<String>) -> String {
    let mut text = String::new();
    let all = lines.len();
    for (at, mut line) in lines.into_iter().enumerate() {
        let end = line.floor_char_boundary(MAX_MESSAGE / 2);
        line.truncate(end);
        if text.len() + line.len() > MAX_MESSAGE {
            let _ = write!(text, "\n... and {} more", all - at);
            break;
        }
        if at > 0 {
            text.push('\n');
        }
        text.push_str(&line);
    }
    text
}

#[cfg(test)]
mod tests;
