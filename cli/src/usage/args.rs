//! The flags of `aliquot report`.

use crate::connect::ClusterArgs;
use crate::report::Output;
use scheduler::page::ReportBy;
use std::path::PathBuf;

/// Flags of `aliquot report`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// How rows are grouped.
    #[arg(long, value_enum, default_value_t)]
    pub(super) by: ReportBy,
    /// How far back: hours, days or weeks, such as 24h, 7d or 2w. A scheduler remembers 14 days.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = hours)]
    pub(super) last: u64,
    /// Prices of a GPU-hour, by product.
    #[arg(long, value_name = "FILE")]
    pub(super) prices: Option<PathBuf>,
    /// Ask Prometheus at this URL, instead of a scheduler.
    #[arg(
        long,
        value_name = "URL",
        env = "ALIQUOT_PROMETHEUS_URL",
        hide_env_values = true
    )]
    pub(super) prometheus: Option<String>,
    /// Where a scheduler serves its metrics, such as `http://localhost:9401`; else one is found by the
    /// API server, which needs the right to get pods/proxy in aliquot-system.
    #[arg(long, value_name = "URL", conflicts_with = "prometheus")]
    pub(super) scheduler: Option<String>,
    /// As OpenCost's custom costs (JSON), one for each row and product.
    #[arg(long, conflicts_with = "format")]
    pub(super) opencost: bool,
    #[command(flatten)]
    pub(super) place: ClusterArgs,
    #[command(flatten)]
    pub(super) output: Output,
}

/// `24h`, `7d`, `2w` as hours.
fn hours(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a time: hours, days or weeks, such as 24h, 7d or 2w");
    let unit = text.char_indices().next_back().ok_or_else(wrong)?;
    let of = match unit.1 {
        'h' => 1,
        'd' => 24,
        'w' => 168,
        _ => return Err(wrong()),
    };
    let count: u64 = text[..unit.0].parse().map_err(|_| wrong())?;
    let hours = count
        .checked_mul(of)
        .filter(|hours| (1..=366 * 24).contains(hours));
    hours.ok_or_else(|| format!("`{text}` is not between one hour and 366 days"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_hours_days_or_weeks() {
        for (text, expected) in [("24h", 24), ("7d", 168), ("2w", 336)] {
            assert_eq!(hours(text), Ok(expected));
        }
        for text in [
            "",
            "h",
            "7",
            "7m",
            "-1d",
            "0h",
            "400d",
            "9999999999999999999w",
            "é",
        ] {
            assert!(hours(text).is_err(), "{text}");
        }
    }
}
