//! MPS's limits as text: commands and variables, and their result.
//!
//! A client's environment may lower a limit, and a setting there that the driver does not
//! understand lifts it: measured on driver 580.159.04, and by NVIDIA Dynamo's MPS guide on
//! 615.71.09. Pure.

/// Devices that a limit can be set for, whether or not there is such a card.
const ORDINALS: std::ops::Range<i64> = 0..32;

/// Memory in MiB, thread percentages in hundredths of the whole.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Limits {
    /// Active thread percentage, above 0 to 100.
    pub(super) percent: f64,
    /// The settings per device, in order: the device as it was named, and MiB.
    pub(super) memory: Vec<(String, u64)>,
    /// 0 normal, 1 below normal.
    pub(super) priority: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            percent: 100.0,
            memory: Vec::new(),
            priority: 0,
        }
    }
}

impl Limits {
    /// The defaults that a daemon takes from its own environment: not of memory, whose variable
    /// there does nothing (measured on driver 580.159.04, in the foreground).
    pub(super) fn of_environment(get: impl Fn(&str) -> Option<String>) -> Self {
        let mut limits = Self::default();
        if let Some(percent) =
            get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").and_then(|t| parse_percent(&t))
        {
            limits.percent = percent;
        }
        if let Some(priority) = get("CUDA_MPS_CLIENT_PRIORITY").and_then(|t| t.trim().parse().ok())
        {
            limits.priority = priority;
        }
        limits
    }

    /// Sets a device's limit; the latest wins, under whichever name. A value without a number, and
    /// zero, leave the device without one (drivers 535 to 580). False: there is no such ordinal,
    /// and nothing was set.
    pub(super) fn set_memory(&mut self, device: &str, mib: Option<u64>) -> bool {
        if device
            .parse::<i64>()
            .is_ok_and(|ordinal| !ORDINALS.contains(&ordinal))
        {
            return false;
        }
        self.memory.retain(|(name, _)| name != device);
        self.memory.extend(mib.map(|mib| (device.to_owned(), mib)));
        true
    }

    /// The limit of one device, in a list of devices by ordinal.
    pub(super) fn memory_of(&self, devices: &[String], ordinal: usize) -> Option<u64> {
        self.memory
            .iter()
            .rev()
            .find(|(name, _)| resolve(devices, name) == Some(ordinal))
            .map(|(_, mib)| *mib)
    }
}

/// What a client is let in with: MiB by the server's ordinal, and per cent.
/// `visible` are the ordinals of the server that the client sees, in its order.
pub(super) fn effective(
    server: &Limits,
    devices: &[String],
    visible: &[usize],
    client_memory: Option<&str>,
    client_percent: Option<&str>,
) -> (Vec<(usize, u64)>, u32) {
    let percent = client_percent
        .and_then(parse_percent)
        .map_or(server.percent, |own| own.min(server.percent));
    let names: Vec<String> = visible
        .iter()
        .filter_map(|ordinal| devices.get(*ordinal).cloned())
        .collect();
    let mut limits = Vec::new();
    // Where its own setting is not understood, the server's is lifted, too.
    if let Some(own) = own_limits(client_memory.unwrap_or_default(), &names) {
        for (position, ordinal) in visible.iter().enumerate() {
            let own = own.iter().find(|(at, _)| *at == position);
            let limit = match (
                own.map(|(_, mib)| *mib),
                server.memory_of(devices, *ordinal),
            ) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            limits.extend(limit.map(|mib| (*ordinal, mib)));
        }
    }
    // At least one multiprocessor, whatever the fraction.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let percent = percent.clamp(1.0, 100.0) as u32;
    (limits, percent)
}

/// The ordinal that a device's name means: a number, or a UUID.
pub(super) fn resolve(devices: &[String], name: &str) -> Option<usize> {
    match name.parse::<usize>() {
        Ok(ordinal) => (ordinal < devices.len()).then_some(ordinal),
        Err(_) => devices.iter().position(|uuid| uuid == name),
    }
}

/// The value of a command that sets a limit, as the daemons of 535, 550 and 555 take it: a number of
/// GiB where a `G` follows it at once, and of MiB where anything else or nothing does, so `2T` is
/// 2 MiB. The bytes wrap at 64 bits. `None`: no number, or zero.
pub(super) fn commanded_mib(text: &str) -> Option<u64> {
    let sign = usize::from(text.starts_with('-'));
    let digits = text[sign..].bytes().take_while(u8::is_ascii_digit).count();
    let number: i128 = text[..sign + digits].parse().ok()?;
    let shift = if text[sign + digits..].starts_with(['G', 'g']) {
        30
    } else {
        20
    };
    let bytes = number.checked_mul(1 << shift)?.rem_euclid(1 << 64);
    u64::try_from(bytes >> 20).ok().filter(|mib| *mib > 0)
}

/// An entry of a client's variable: `2G`, `2000M`, with or without a `B`.
fn parse_mib(text: &str) -> Option<u64> {
    let text = text.trim().trim_end_matches(['B', 'b']);
    let (number, factor) = match text.as_bytes().last()? {
        b'G' | b'g' => (&text[..text.len() - 1], 1024),
        b'M' | b'm' => (&text[..text.len() - 1], 1),
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// `0=2000M,GPU-...=1G`, as positions in these devices; `None`: one entry is not understood, is
/// for another device, or is zero.
fn own_limits(text: &str, names: &[String]) -> Option<Vec<(usize, u64)>> {
    let entries = text.split(',').map(str::trim);
    entries
        .filter(|entry| !entry.is_empty())
        .map(|entry| {
            let (device, value) = entry.split_once('=')?;
            let mib = own_mib(value.trim())?;
            Some((resolve(names, device.trim())?, mib))
        })
        .collect()
}

/// A negative value, one that is too large, and one without a unit limit nothing.
fn own_mib(value: &str) -> Option<u64> {
    let number = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let digits = number.strip_prefix('-').unwrap_or(number);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let zero = digits.bytes().all(|byte| byte == b'0');
    (!zero).then(|| parse_mib(value).unwrap_or(u64::MAX))
}

/// Above 0, up to 100.
pub(super) fn parse_percent(text: &str) -> Option<f64> {
    text.trim()
        .parse::<f64>()
        .ok()
        .filter(|p| *p > 0.0 && *p <= 100.0)
}

/// How a limit is read back; in whole GiB, rounded down, where the driver does that.
pub(super) fn show_mib(mib: u64, in_gib: bool) -> String {
    if in_gib && mib >= 1024 {
        format!("{}G", mib / 1024)
    } else {
        format!("{mib}M")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(memory: &[(&str, u64)], percent: f64) -> Limits {
        Limits {
            percent,
            memory: memory.iter().map(|(d, m)| ((*d).to_owned(), *m)).collect(),
            priority: 0,
        }
    }

    /// Measured on driver 580.159.04 under a server's limit, on the only device.
    #[test]
    fn a_setting_that_is_not_understood_lifts_the_servers_limit() {
        let devices = vec!["GPU-a".to_owned()];
        let left = |own: &str| {
            let server = server(&[("0", 4000)], 100.0);
            effective(&server, &devices, &[0], Some(own), None).0
        };
        for held in [
            "",
            "0=4000M",
            "0=9000M",
            "GPU-a=9000M",
            "0=-1M",
            "0=99999999999G",
            "0=18446744073709551615",
            "0=4000M,0=9000M",
            "00=9000M",
            "0=4000M,",
            "0 =4000M",
        ] {
            assert_eq!(left(held), [(0, 4000)], "{held:?}");
        }
        for lifted in [
            "1=4000M",
            "0=4000M,1=4000M",
            "garbage",
            "0=",
            "=",
            "0",
            "0=0",
            "-1=4000M",
            "GPU-b=4000M",
            "0=4000M,GPU-b=4000M",
        ] {
            assert_eq!(left(lifted), [], "{lifted:?}");
        }
    }

    #[test]
    fn a_client_may_only_lower() {
        type Case<'a> = (
            &'a [(&'a str, u64)],
            f64,
            Option<&'a str>,
            Option<&'a str>,
            &'a [(usize, u64)],
            u32,
        );
        let devices = vec!["GPU-a".to_owned(), "GPU-b".to_owned()];
        #[rustfmt::skip]
        let cases: &[Case<'_>] = &[
            (&[], 100.0, None, None, &[], 100),
            (&[("0", 4000)], 50.0, None, None, &[(0, 4000)], 50),
            (&[("0", 4000)], 50.0, Some("0=2000M"), Some("25"), &[(0, 2000)], 25),
            (&[("0", 4000)], 50.0, Some("0=9000M"), Some("100"), &[(0, 4000)], 50),
            (&[("0", 4000)], 50.0, Some("GPU-a=1G"), Some("nonsense"), &[(0, 1024)], 50),
            (&[], 100.0, Some("0=2000M"), Some("10.5"), &[(0, 2000)], 10),
            (&[("0", 4000), ("GPU-a", 3000)], 100.0, None, None, &[(0, 3000)], 100),
            (&[("GPU-b", 500)], 100.0, Some("0=2000M,1=1000M"), None, &[(0, 2000), (1, 500)], 100),
        ];
        for (memory, percent, own, own_percent, expected, threads) in cases {
            let found = effective(
                &server(memory, *percent),
                &devices,
                &[0, 1],
                *own,
                *own_percent,
            );
            assert_eq!(
                (found.0.as_slice(), found.1),
                (*expected, *threads),
                "{memory:?} {own:?}"
            );
        }
    }

    #[test]
    fn a_clients_ordinals_count_what_it_sees() {
        let devices = vec!["GPU-a".to_owned(), "GPU-b".to_owned()];
        let found = effective(&server(&[], 100.0), &devices, &[1], Some("0=700M"), None);
        assert_eq!(found.0, [(1, 700)]);
    }

    #[test]
    fn limits_read_and_print() {
        for (text, mib) in [
            ("2G", Some(2048)),
            ("2000M", Some(2000)),
            ("1GB", Some(1024)),
            ("5", None),
            ("", None),
            ("xM", None),
        ] {
            assert_eq!(parse_mib(text), mib, "{text}");
        }
        // As the daemons of 535, 550 and 555 read them back.
        for (text, shown) in [
            ("2000M", "1G"),
            ("2gb", "2G"),
            ("1000", "1000M"),
            ("2T", "2M"),
            ("5xG", "5M"),
            ("1.5G", "1M"),
            ("-1M", "17179869183G"),
            ("99999999999G", "14100654079G"),
            ("18446744073709551615", "17179869183G"),
            ("4194304M", "4096G"),
        ] {
            let mib = commanded_mib(text).unwrap();
            assert_eq!(show_mib(mib, true), shown, "{text}");
        }
        for nothing in ["abc", "M", "0", "00M", "-", ""] {
            assert_eq!(commanded_mib(nothing), None, "{nothing}");
        }
        assert_eq!(show_mib(3840, true), "3G");
        assert_eq!(show_mib(3840, false), "3840M");
        assert_eq!(show_mib(512, true), "512M");
    }
}
