//! What NVIDIA's programs say of MPS: the control daemon's answers, its servers' log lines,
//! `nvidia-smi`'s compute mode and time slice.

use crate::{Shape, Target};
use agent::mps::answer::{self, Answered, Printed, Value};
use agent::mps::{log, smi};
use api::Mib;

pub(super) const TARGET: Target = Target {
    name: "mps",
    shape: Shape::Text,
    words: &[
        "ACTIVE",
        "FAULT",
        "INITIALIZING",
        "G",
        "GB",
        "M",
        "MB",
        "3840M",
        "50.0",
        "100",
        "+1",
        "-1",
        "42",
        "4294967296",
        "[2026-02-06 09:34:18.770 Server    42] ",
        "Device pinned memory limit for device ",
        "0",
        " set to 0x",
        "7d000000",
        " bytes",
        "Default",
        "Exclusive_Process",
        "580.65.06",
        ", ",
        "time slice: ",
        "Long",
    ],
    seeds,
    large: crate::target::none,
    heap: 16,
    run,
};

/// The result is in the output: no number, status or word that was not printed.
fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let lines: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    for line in &lines {
        limit(line);
        if let Some(percent) = answer::percent(line) {
            assert!(percent <= 100, "{percent} of {line:?}");
            let whole = line.split('.').next().unwrap_or_default();
            assert_eq!(whole.parse(), Ok(percent), "{line:?}");
        }
    }
    for wanted in [2000, 3840] {
        let read = Value::Memory(Mib(wanted)).read(&lines);
        assert!(read.is_none() || lines.len() == 1, "one of {lines:?}");
        if let Some(Answered::Memory(Mib(mib))) = read {
            assert!(
                mib <= wanted && wanted - mib < 1 << 10,
                "{mib} of {lines:?}"
            );
        }
    }
    if let Some(pids) = answer::pids(&lines) {
        let printed: Vec<u32> = lines.iter().flat_map(|line| line.parse()).collect();
        assert_eq!(pids, printed);
    }
    if let Some((_, clients)) = answer::server(7, &lines) {
        assert_eq!(clients.len() + 1, lines.len(), "{lines:?}");
        assert!(clients.iter().all(|client| client.server_pid == 7));
    }
    let of_servers = lines.iter().filter_map(|line| log::of_server(line));
    for (server, said) in of_servers {
        assert!(text.contains(&server.to_string()), "{server} of {text:?}");
        if let Some(pid) = log::faulter(said) {
            assert!(said.contains(&pid.to_string()), "{pid} of {said:?}");
        }
        let Some((device, limit)) = log::limit(said).flatten() else {
            continue;
        };
        let bytes = format!("{:x} bytes", limit.0 << 20);
        assert!(
            text.to_ascii_lowercase().contains(&bytes),
            "{limit} of device {device} of {text:?}"
        );
    }
    if let Some((mode, version)) = smi::query_of(&text) {
        assert!(
            text.to_ascii_uppercase().contains(mode),
            "{mode} of {text:?}"
        );
        assert!(text.contains(version), "{version:?} of {text:?}");
    }
    if let Some(slice) = smi::slice_of(&text) {
        let upper = text.to_ascii_uppercase();
        assert!(upper.contains(slice), "{slice} of {text:?}");
        let twice = format!("{text} {slice}");
        assert_eq!(smi::slice_of(&twice), None, "one of several: {twice:?}");
    }
}

fn limit(line: &str) {
    let Some(printed) = answer::memory(line) else {
        return;
    };
    let (number, unit) = match printed {
        Printed::Exact(mib) => (mib.0, 'M'),
        Printed::WholeGib(gib) => (gib, 'G'),
    };
    let digits: String = line.chars().take_while(char::is_ascii_digit).collect();
    assert_eq!(digits.parse(), Ok(number), "{printed:?} of {line:?}");
    assert_eq!(line[digits.len()..].chars().next(), Some(unit), "{line:?}");
}

fn seeds() -> Vec<Vec<u8>> {
    [
        "3G\n",
        "2000M",
        "50.0\n",
        "42\n43\n",
        "ACTIVE\n42\n",
        "FAULT",
        "Server 7 not found",
        "[2026-02-06 09:34:18.770 Server    42] Device pinned memory limit for device 0 set to 0x7d000000 bytes\n",
        "Default, 580.65.06\n",
        "Exclusive_Process, 570.86\nWARNING: infoROM is corrupted at gpu 0000:01:00.0\n",
        "GPU 0: compute time slice: LONG\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
