//! A value is one word of a line: this file reads and writes it.

use crate::action::{EvictCause, Received};
use crate::config::{GpuJobOrder, Placement, Plugin, Resolve, ScaleDown, Step};
use crate::ids::{
    ClaimUid, ContainerName, DecisionId, DeviceId, FilterName, GpuUuid, GroupName, NodeName,
    NodeUid, PodUid, PoolName, QueueName, ResourceName, SetName, TopologyName, VolumeName,
};
use crate::model::{Effect, Fence, Grace, Lead, Mode, Pool, QueueResource, TopologyPolicy, Weight};
use crate::units::{Bound, Bytes, CpuMilli, Duration, Mib, NanoGpu, Percent, Quantity, Time};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A type with this name is a number, and its refusal names the key.
const NUMBER: &str = "number";

/// A type implements this if its values are single words.
pub(super) trait Value: Sized {
    /// A refusal says that the text is none of these.
    const WHAT: &'static str;

    fn parse(text: &str) -> Option<Self>;

    fn text(&self) -> String;

    /// Says what is wrong with the text of a key.
    fn refusal(key: &str, text: &str) -> String {
        match Self::WHAT {
            NUMBER => format!("{key} is not a number: {text}"),
            what => format!("{text} is no {what}"),
        }
    }
}

/// Each row has a type, its name in a refusal, how a text is read, and how a value is printed.
macro_rules! values {
    ($($type:ty, $what:expr, |$text:ident| $parsed:expr, |$value:ident| $printed:expr;)*) => {$(
        impl Value for $type {
            const WHAT: &'static str = $what;

            fn parse($text: &str) -> Option<Self> {
                $parsed
            }

            fn text(&self) -> String {
                let $value = self;
                $printed.to_string()
            }
        }
    )*};
}
pub(super) use values;

/// A quantity is written as a number without its unit.
macro_rules! units {
    ($($unit:ident)*) => {
        values! { $($unit, NUMBER, |text| text.parse().ok().map($unit), |unit| unit.0;)* }
    };
}

macro_rules! names {
    ($($name:ident)*) => {
        values! { $($name, "name", |text| Some(Self::new(text)), |name| name;)* }
    };
}

/// Each variant is written as its name.
macro_rules! variants {
    ($($type:ident, $what:literal: $($variant:ident $name:literal)*;)*) => {
        values! {$(
            $type, $what,
            |text| match text {
                $($name => Some(Self::$variant),)*
                _ => None,
            },
            |value| match value {
                $(Self::$variant => $name,)*
            };
        )*}
    };
}

values! {
    i32, NUMBER, |text| text.parse().ok(), |number| number;
    i64, NUMBER, |text| text.parse().ok(), |number| number;
    u16, NUMBER, |text| text.parse().ok(), |number| number;
    u32, NUMBER, |text| text.parse().ok(), |number| number;
    u64, NUMBER, |text| text.parse().ok(), |number| number;
    Percent, "percentage", |text| Self::new(text.parse().ok()?), |percent| percent.get();
    bool, "setting", |text| text.parse().ok(), |truth| truth;
    Arc<str>, "text", |text| Some(Self::from(text)), |value| value;
    String, "text", |text| Some(text.to_owned()), |value| value;
    DecisionId, "decision", |text| DecisionId::parse(text), |decision| decision;
    Fence, "fence", |text| Fence::parse(text), |fence| fence;
    Mode, "mode", |text| Mode::parse(text), |mode| mode;
    PoolName, "driver and pool", |text| PoolName::parse(text), |name| name;
    Quantity, "quantity", |text| Quantity::parse(text), |quantity| quantity;
    EvictCause, "cause",
        |text| Self::ALL.into_iter().find(|cause| cause.as_str() == text),
        |cause| cause.as_str();
    Plugin, "setting",
        |text| Self::named(text),
        |plugin| Self::ALL.iter().find(|(one, _)| one == plugin).map_or("", |(_, name)| *name);
    // KAI writes -1 for no bound.
    Bound, "bound",
        |text| match text {
            "-1" => Some(Self::Unlimited),
            _ => text.parse().ok().map(Self::Exactly),
        },
        |bound| match bound {
            Self::Unlimited => "-1".to_owned(),
            Self::Exactly(amount) => amount.to_string(),
        };
    Grace, "grace",
        |text| match text {
            "never" => Some(Self::Never),
            _ => Duration::parse(text).map(Self::For),
        },
        |grace| match grace {
            Self::Never => "never".to_owned(),
            Self::For(time) => time.text(),
        };
    // The form is `quota/limit/weight[/usage]`, with the weight in millionths.
    QueueResource, "quota/limit/weight",
        |text| {
            let mut parts = text.split('/');
            let [quota, limit] = [parts.next()?, parts.next()?].map(Bound::parse);
            let (quota, limit) = (quota?, limit?);
            let weight = Weight::parse(parts.next()?)?;
            let usage = parts.next().unwrap_or("0").parse().ok()?;
            parts.next().is_none().then_some(Self { quota, limit, weight, usage })
        },
        |resource| {
            let [quota, limit] = [resource.quota, resource.limit].map(|bound| bound.text());
            let usage = Some(resource.usage).filter(|usage| *usage != 0);
            let usage = usage.map_or_else(String::new, |usage| format!("/{usage}"));
            format!("{quota}/{limit}/{}{usage}", resource.weight.0)
        };
    ScaleDown, "delay/pods",
        |text| {
            let (delay, pods) = text.split_once('/')?;
            let (delay, pods) = (Duration::parse(delay)?, pods.parse().ok()?);
            Some(Self { delay, pods })
        },
        |value| format!("{}/{}", value.delay.0, value.pods);
}

units!(Bytes CpuMilli Duration Mib NanoGpu Time Weight);
names!(ClaimUid ContainerName DeviceId FilterName GpuUuid GroupName NodeName NodeUid PodUid);
names!(QueueName ResourceName SetName TopologyName VolumeName);

variants! {
    Effect, "effect": NoSchedule "NoSchedule" NoExecute "NoExecute"
        PreferNoSchedule "PreferNoSchedule";
    GpuJobOrder, "setting": PreferLarger "prefer-larger" PreferSmaller "prefer-smaller";
    Lead, "leader of pods": Kubeflow "kubeflow" Ray "ray" None "none";
    Placement, "setting": Binpack "binpack" Spread "spread" Fragmentation "fragmentation";
    Pool, "pool": Unknown "unknown" Whole "whole" WholeOnly "whole-only" Shared "shared"
        None "none";
    Received, "type of resource": Nothing "nothing" Regular "regular" Fraction "fraction"
        MigInstance "mig-instance";
    Resolve, "setting": Lca "lca" Queue "queue";
    Step, "setting": Allocate "allocate" Consolidation "consolidation" Reclaim "reclaim"
        Preempt "preempt" StaleGangEviction "stalegangeviction";
    TopologyPolicy, "policy": Restricted "restricted" SingleNumaNode "single-numa-node";
}

/// The absence of the word means `None`.
impl<T: Value> Value for Option<T> {
    const WHAT: &'static str = T::WHAT;

    fn parse(text: &str) -> Option<Self> {
        T::parse(text).map(Some)
    }

    fn text(&self) -> String {
        self.as_ref().map_or_else(String::new, Value::text)
    }
}

/// The values of a list are separated by commas.
macro_rules! lists {
    ($($list:ident<T: $($bound:ident)+>)*) => {$(
        impl<T: $($bound +)+> Value for $list<T> {
            const WHAT: &'static str = T::WHAT;

            fn parse(text: &str) -> Option<Self> {
                let parts = text.split(',').filter(|part| !part.is_empty());
                parts.map(T::parse).collect()
            }

            fn text(&self) -> String {
                let parts: Vec<String> = self.iter().map(Value::text).collect();
                parts.join(",")
            }
        }
    )*};
}

lists!(Vec<T: Value> BTreeSet<T: Value Ord>);
