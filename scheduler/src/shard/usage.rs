//! `usageDBConfig` of a shard: KAI's fields → the settings of past use.

use super::remark::{Remark, remark};
use super::value::{Pairs, duration};
use crate::usage::{Address, Cron, Server, Settings, Source, Window};
use scheduler_core::units::{Duration, Time};
use serde::Deserialize;
use serde_saphyr::Spanned;
use std::sync::Arc;

const FIELD: &str = "usageDBConfig";
const PARAMS: &str = "usageDBConfig.usageParams";
const EXTRA: &str = "usageDBConfig.usageParams.extraParams";
/// KAI's defaults.
const WINDOW: Duration = Duration::seconds(7 * 24 * 3600);
const FETCH_INTERVAL: Duration = Duration::seconds(60);
const STALENESS: Duration = Duration::seconds(300);
const WAIT: Duration = Duration::seconds(60);
const TIMEOUT: Duration = Duration::seconds(10);
const RESOLUTION: Duration = Duration::seconds(60);
/// The shortest interval between queries.
const LEAST: Duration = Duration::seconds(1);
/// The longest window: the longest usual retention of Prometheus.
const LONGEST: Duration = Duration::seconds(366 * 24 * 3600);

/// The field as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Config {
    client_type: Option<String>,
    connection_string: Option<Spanned<String>>,
    connection_string_env_var: Option<Spanned<String>>,
    #[serde(default)]
    usage_params: UsageParams,
    /// Where KAI's documents have them.
    #[serde(default)]
    extra_params: Pairs<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UsageParams {
    half_life_period: Option<Spanned<String>>,
    window_size: Option<Spanned<String>>,
    window_type: Option<Spanned<String>>,
    tumbling_window_start_time: Option<Spanned<String>>,
    cron_string: Option<Spanned<String>>,
    fetch_interval: Option<Spanned<String>>,
    staleness_period: Option<Spanned<String>>,
    wait_timeout: Option<Spanned<String>>,
    #[serde(default, rename = "extraParams")]
    extra: Pairs<Spanned<String>>,
}

/// The settings that it says.
pub(super) fn read(
    config: &Spanned<Config>,
    remarks: &mut Vec<Remark>,
) -> Result<Settings, Remark> {
    let Config {
        client_type,
        usage_params: params,
        ..
    } = &config.value;
    let source = match client_type.as_deref() {
        Some("prometheus") => Source::Prometheus(server(config, remarks)?),
        Some("in-memory") => Source::InMemory,
        other => {
            let why = match other {
                None | Some("") => "it is missing".to_owned(),
                Some(other) => format!("{other} is not a supported database of past use"),
            };
            let why =
                format!("{why}: use prometheus, or in-memory for the scheduler's own records");
            return Err(remark(config, &format!("{FIELD}.clientType"), why));
        }
    };
    let window = window(config, params, remarks)?;
    if source == Source::InMemory {
        in_memory(config, &window, remarks);
    }
    let half_life = match &params.half_life_period {
        Some(text) => Some(length(text, "halfLifePeriod", Duration(0))?).filter(|half| half.0 > 0),
        None => None,
    };
    let or = |text: &Option<Spanned<String>>, field: &str, default| match text {
        Some(text) => length(text, field, LEAST),
        None => Ok(default),
    };
    let fetch_interval = or(&params.fetch_interval, "fetchInterval", FETCH_INTERVAL)?;
    let mut staleness = or(&params.staleness_period, "stalenessPeriod", STALENESS)?;
    if staleness < fetch_interval {
        let why = "it is shorter than fetchInterval, which counts in its place";
        let field = format!("{PARAMS}.stalenessPeriod");
        remarks.push(remark(config, &field, why));
        staleness = fetch_interval;
    }
    Ok(Settings {
        source,
        window,
        half_life,
        fetch_interval,
        staleness,
        wait: match &params.wait_timeout {
            Some(text) => length(text, "waitTimeout", Duration(0))?,
            None => WAIT,
        },
    })
}

/// What means nothing without a database.
fn in_memory(config: &Spanned<Config>, window: &Window, remarks: &mut Vec<Remark>) {
    let Config {
        connection_string,
        connection_string_env_var,
        usage_params,
        extra_params,
        ..
    } = &config.value;
    let mut say = |field: &str, why: &str| remarks.push(remark(config, field, why));
    for (set, field) in [
        (connection_string.is_some(), "connectionString"),
        (
            connection_string_env_var.is_some(),
            "connectionStringEnvVar",
        ),
        (!extra_params.0.is_empty(), "extraParams"),
        (!usage_params.extra.0.is_empty(), "usageParams.extraParams"),
    ] {
        if set {
            say(
                &format!("{FIELD}.{field}"),
                "it has no effect with clientType in-memory",
            );
        }
    }
    let size = match window {
        Window::Sliding(size) | Window::Tumbling { size, .. } => *size,
        Window::Cron(_) => return,
    };
    if size > crate::usage::REACH {
        say(
            &format!("{PARAMS}.windowSize"),
            "with clientType in-memory only the last 14 days of it count",
        );
    }
}

fn window(
    config: &Spanned<Config>,
    params: &UsageParams,
    remarks: &mut Vec<Remark>,
) -> Result<Window, Remark> {
    let size = match &params.window_size {
        Some(text) => length(text, "windowSize", LEAST)?,
        None => WINDOW,
    };
    let kind = params.window_type.as_ref();
    let kind_is = kind.map_or("sliding", |kind| kind.value.as_str());
    let missing = |field: &str, example: &str| {
        let why = format!("windowType {kind_is} needs it, such as {example}");
        Err(remark(config, &format!("{PARAMS}.{field}"), why))
    };
    let (start, cron) = (&params.tumbling_window_start_time, &params.cron_string);
    for (set, field, of) in [
        (start.is_some(), "tumblingWindowStartTime", "tumbling"),
        (cron.is_some(), "cronString", "cron"),
    ] {
        if set && kind_is != of {
            let why = format!("it has no effect with windowType {kind_is}");
            remarks.push(remark(config, &format!("{PARAMS}.{field}"), why));
        }
    }
    match (kind_is, start, cron) {
        ("sliding", ..) => Ok(Window::Sliding(size)),
        ("tumbling", Some(start), _) => {
            let stamp: Option<jiff::Timestamp> = start.value.parse().ok();
            let start_at = stamp.and_then(|stamp| u64::try_from(stamp.as_millisecond()).ok());
            let Some(start_at) = start_at else {
                let why = format!(
                    "{} is not a time, such as 2026-01-05T00:00:00Z",
                    start.value
                );
                return Err(remark(
                    start,
                    &format!("{PARAMS}.tumblingWindowStartTime"),
                    why,
                ));
            };
            Ok(Window::Tumbling {
                start: Time(start_at),
                size,
            })
        }
        ("tumbling", None, _) => missing("tumblingWindowStartTime", "2026-01-05T00:00:00Z"),
        ("cron", _, Some(cron)) => match Cron::parse(&cron.value) {
            Ok(pattern) => Ok(Window::Cron(Box::new(pattern))),
            Err(why) => {
                let why = format!(
                    "{} is not a cron expression, such as 0 0 * * 1: {why}",
                    cron.value
                );
                Err(remark(cron, &format!("{PARAMS}.cronString"), why))
            }
        },
        ("cron", _, None) => missing("cronString", "0 0 * * 1"),
        (other, ..) => {
            let why = format!("{other} is neither sliding nor tumbling nor cron");
            let field = format!("{PARAMS}.windowType");
            Err(kind.map_or_else(
                || remark(config, &field, &why),
                |kind| remark(kind, &field, &why),
            ))
        }
    }
}

fn server(config: &Spanned<Config>, remarks: &mut Vec<Remark>) -> Result<Server, Remark> {
    let field = |name: &str| format!("{FIELD}.{name}");
    let set = |text: &Option<Spanned<String>>| {
        let text = text.as_ref().map(|text| text.value.as_str());
        text.filter(|text| !text.is_empty()).map(Arc::from)
    };
    let of = &config.value;
    let url = set(&of.connection_string);
    let address = match (url, set(&of.connection_string_env_var)) {
        (Some(url), None) => {
            crate::usage::url(&url)
                .map_err(|why| remark(config, &field("connectionString"), why))?;
            Address::Url(url)
        }
        (None, Some(variable)) => Address::Variable(variable),
        (Some(_), Some(_)) => {
            let why = "connectionString is set, too: keep one of the two";
            return Err(remark(config, &field("connectionStringEnvVar"), why));
        }
        (None, None) => {
            let why = "it is missing: set it to a URL, such as http://prometheus.monitoring:9090, or set connectionStringEnvVar";
            return Err(remark(config, &field("connectionString"), why));
        }
    };
    let capacity = |resource: &str| {
        Arc::from(format!(
            "sum(kube_node_status_capacity{{resource=\"{resource}\"}}) or max(aliquot_scheduler_capacity{{resource=\"{resource}\"}})"
        ))
    };
    let mut server = Server {
        address,
        timeout: TIMEOUT,
        resolution: RESOLUTION,
        allocation: [
            "kai_queue_allocated_gpus",
            "kai_queue_allocated_cpu_cores",
            "kai_queue_allocated_memory_bytes",
        ]
        .map(Arc::from),
        capacity: ["nvidia_com_gpu", "cpu", "memory"].map(capacity),
    };
    let both = of.extra_params.0.iter().chain(&of.usage_params.extra.0);
    for (key, value) in both {
        let metric = |of: &mut Arc<str>| *of = Arc::from(value.value.as_str());
        match key.value.as_str() {
            "usageQueryTimeout" => server.timeout = extra(value, &key.value)?,
            "queryResolution" => server.resolution = extra(value, &key.value)?,
            "gpuAllocationMetric" => metric(&mut server.allocation[0]),
            "cpuAllocationMetric" => metric(&mut server.allocation[1]),
            "memoryAllocationMetric" => metric(&mut server.allocation[2]),
            "gpuCapacityMetric" => metric(&mut server.capacity[0]),
            "cpuCapacityMetric" => metric(&mut server.capacity[1]),
            "memoryCapacityMetric" => metric(&mut server.capacity[2]),
            other => {
                let field = format!("{EXTRA}.{other}");
                remarks.push(remark(
                    key,
                    &field,
                    "it is not a known parameter, and has no effect",
                ));
            }
        }
    }
    Ok(server)
}

fn extra(value: &Spanned<String>, key: &str) -> Result<Duration, Remark> {
    let length = duration(value, &format!("{EXTRA}.{key}"))?;
    Ok(length.max(LEAST))
}

/// Go's duration, or Prometheus', which has days, weeks and years.
fn length(text: &Spanned<String>, field: &str, least: Duration) -> Result<Duration, Remark> {
    let field = format!("{PARAMS}.{field}");
    let mut rest = text.value.as_str();
    let mut whole = 0_u64;
    for (unit, seconds) in [('y', 31_536_000_u64), ('w', 604_800), ('d', 86_400)] {
        if let Some((count, after)) = rest.split_once(unit)
            && let Ok(count) = count.parse::<u32>()
        {
            whole = whole.saturating_add(u64::from(count).saturating_mul(seconds));
            rest = after;
        }
    }
    let mut length = Duration::seconds(whole);
    if !(rest.is_empty() && whole > 0) {
        let rest = Spanned {
            value: rest.to_owned(),
            ..text.clone()
        };
        let rest = duration(&rest, &field).map_err(|_| {
            let why = format!("{} is not a duration, such as 90s, 5m or 1w", text.value);
            remark(text, &field, why)
        })?;
        length = Duration(length.0.saturating_add(rest.0));
    }
    if length < least || length > LONGEST {
        let why = format!(
            "{} is not between {} s and 366 days",
            text.value,
            least.0 / 1000
        );
        return Err(remark(text, &field, why));
    }
    Ok(length)
}
