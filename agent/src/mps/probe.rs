//! The task that tries whether the driver limits cgroups on each card.
//!
//! In: the cards that the plan names. Out: what each was found to have. A probe sends the commands
//! that the hook sends for a container, in a cgroup beside the supervisor's own container: the
//! runtime handed the same controllers down to it. A version number says only which cards are worth
//! a probe.

use super::smi::Smi;
use aliquot_hook::backend::Cgroup;
use aliquot_hook::limit;
use cdi::hook::LimitedCard;
use proto::mps::{LimitProbe, LimitProbed};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{info, warn};

/// Between two probes of a card that has limits: a kernel setting rarely changes, and each
/// container's own limit is read back at its start.
const AGAIN: Duration = Duration::from_mins(10);
/// Between two probes while some card lacks them, so that a mended node is seen soon.
const SOON: Duration = Duration::from_mins(1);
/// Between two probes while one has failed on a card about which nothing is known yet: the supervisor
/// or the driver has just started.
const FIRST: Duration = Duration::from_secs(3);
/// The number of probes in a row that must disagree with what a card was found to have, or must fail
/// on a card about which nothing is known. One may fail because the driver was slow, and one may
/// succeed while the driver is being set up.
const AGREED: u32 = 2;

/// The number of probes in a row that disagree, by UUID of the card and version of the driver.
type Disagreed = BTreeMap<(String, String), u32>;

/// Probes the planned cards, one after the other, until the supervisor ends. `cgroup` is the one
/// for probes; `None` on a node without cgroup v2, and outside of a pod.
pub async fn run(
    smi: Smi,
    cgroup: Option<Cgroup>,
    mut plans: watch::Receiver<Vec<LimitProbe>>,
    answers: watch::Sender<Vec<LimitProbed>>,
) {
    let mut disagreed = Disagreed::new();
    loop {
        let wanted = plans.borrow_and_update().clone();
        let before = answers.borrow().clone();
        let mut found = Vec::new();
        for card in &wanted {
            found.push(probe(&smi, cgroup.as_ref(), card).await);
        }
        settle(&mut found, &before, &mut disagreed);
        let lacks = found.iter().any(|card| card.backend.is_empty());
        let pause = if found.len() < wanted.len() {
            FIRST
        } else if lacks || !disagreed.is_empty() {
            SOON
        } else {
            AGAIN
        };
        answers.send_if_modified(|known| {
            let changed = *known != found;
            for card in found.iter().filter(|card| !known.contains(card)) {
                if card.backend.is_empty() {
                    warn!(card.uuid, card.missing, "the driver keeps no memory limits");
                } else {
                    info!(card.uuid, card.backend, "the driver keeps memory limits");
                }
            }
            *known = found;
            changed
        });
        tokio::select! {
            changed = plans.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause), if !wanted.is_empty() => {}
        }
    }
}

/// Returns true if two answers are about the same card and the same driver.
fn is_same(one: &LimitProbed, other: &LimitProbed) -> bool {
    one.uuid == other.uuid && one.driver_version == other.driver_version
}

/// Puts the earlier answer about a card in the place of one that disagrees with it, until
/// [`AGREED`] probes in a row have. Without an earlier answer, a failure is left out until then: the
/// agent keeps what it knew.
fn settle(found: &mut Vec<LimitProbed>, before: &[LimitProbed], disagreed: &mut Disagreed) {
    let mut still = Disagreed::new();
    found.retain_mut(|card| {
        let known = before.iter().find(|known| is_same(known, card));
        let had = known.is_some_and(|known| !known.backend.is_empty());
        let agrees = had != card.backend.is_empty() && known.is_some();
        let succeeds_first = known.is_none() && !card.backend.is_empty();
        let key = (card.uuid.clone(), card.driver_version.clone());
        let times = disagreed.get(&key).copied().unwrap_or_default() + 1;
        if agrees || succeeds_first || times >= AGREED {
            return true;
        }
        still.insert(key, times);
        if let Some(known) = known {
            card.clone_from(known);
        }
        known.is_some()
    });
    *disagreed = still;
}

async fn probe(smi: &Smi, cgroup: Option<&Cgroup>, card: &LimitProbe) -> LimitProbed {
    let result = match cgroup {
        None => Err(
            "the supervisor has no cgroup of version 2 in a pod: boot the node with systemd.unified_cgroup_hierarchy=1"
                .to_owned(),
        ),
        Some(cgroup) => {
            let (smi, cgroup) = (smi.clone(), cgroup.clone());
            let limited = LimitedCard {
                uuid: card.uuid.clone(),
                pci: card.pci_bus_id.clone(),
            };
            let runtime = Handle::current();
            let probing = tokio::task::spawn_blocking(move || {
                let run = &mut |arguments: &[&str]| {
                    let said = runtime.block_on(smi.run(arguments));
                    said.map_err(|error| error.to_string())
                };
                limit::probe(run, &limited, &cgroup)
            });
            let ended = probing.await;
            ended.unwrap_or_else(|error| Err(format!("the probe ended: {error}")))
        }
    };
    let (backend, missing) = match result {
        Ok(backend) => (backend.as_str().to_owned(), String::new()),
        Err(missing) => (String::new(), missing),
    };
    LimitProbed {
        uuid: card.uuid.clone(),
        driver_version: card.driver_version.clone(),
        backend,
        missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mps::program::Program;
    use driver_root::DriverRoot;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    fn answer(version: &str, backend: &str, missing: &str) -> LimitProbed {
        LimitProbed {
            uuid: "GPU-0".into(),
            driver_version: version.into(),
            backend: backend.into(),
            missing: missing.into(),
        }
    }

    #[test]
    fn a_card_changes_after_two_probes_in_a_row() {
        let (kept, lacks) = (answer("615.1", "dmem", ""), answer("615.1", "", "no dmem"));
        for (before, found, settled) in [
            // One probe fails, or succeeds.
            (
                &kept,
                vec![&lacks, &kept, &lacks],
                vec![&kept, &kept, &kept],
            ),
            (&lacks, vec![&kept, &lacks], vec![&lacks, &lacks]),
            (
                &kept,
                vec![&lacks, &lacks, &lacks],
                vec![&kept, &lacks, &lacks],
            ),
            (&lacks, vec![&kept, &kept], vec![&lacks, &kept]),
        ] {
            let mut disagreed = Disagreed::new();
            let mut known = vec![before.clone()];
            for (one, expected) in found.into_iter().zip(settled) {
                let mut found = vec![one.clone()];
                settle(&mut found, &known, &mut disagreed);
                assert_eq!(found, std::slice::from_ref(expected));
                known = found;
            }
        }
    }

    #[test]
    fn a_supervisor_or_driver_that_has_just_started_says_nothing_after_one_failure() {
        let lacks = |version: &str| answer(version, "", "no answer");
        let had = answer("615.1", "dmem", "");
        for before in [vec![], vec![had.clone()]] {
            let mut disagreed = Disagreed::new();
            // A failure with the driver before counts for nothing.
            disagreed.insert(("GPU-0".into(), "615.1".into()), 1);
            let mut found = vec![lacks("620.1")];
            settle(&mut found, &before, &mut disagreed);
            assert_eq!(found, []);
            let mut found = vec![lacks("620.1")];
            settle(&mut found, &before, &mut disagreed);
            assert_eq!(found, [lacks("620.1")]);
        }
        let mut found = vec![had.clone()];
        settle(&mut found, &[], &mut Disagreed::new());
        assert_eq!(found, [had]);
    }

    #[test]
    fn a_failure_of_one_card_does_not_count_for_another() {
        let card = |uuid: &str, backend: &str| LimitProbed {
            uuid: uuid.into(),
            ..answer("615.1", backend, "")
        };
        let before = [card("a", "dmem"), card("b", "dmem")];
        let mut disagreed = Disagreed::new();
        for failing in ["a", "b"] {
            let backend = |uuid| if uuid == failing { "" } else { "dmem" };
            let mut found = vec![card("a", backend("a")), card("b", backend("b"))];
            settle(&mut found, &before, &mut disagreed);
            assert_eq!(found, before, "{failing}");
        }
    }

    #[test]
    fn what_a_card_lacks_is_what_the_last_probe_found() {
        let mut found = vec![answer("615.1", "", "no misc")];
        let before = [answer("615.1", "", "no dmem")];
        settle(&mut found, &before, &mut Disagreed::new());
        assert_eq!(found[0].missing, "no misc");
    }

    /// An `nvidia-smi` that takes each limit and answers in the documented lines.
    fn smi(folder: &Path) -> Smi {
        let path = folder.join("nvidia-smi");
        let text = r#"#!/bin/sh
[ "$2" = --set ] || printf 'namespace: %s\nsoft limit: 0 MiB\nhard limit: 1234 MiB\ncurrent used: 0 MiB\n' "$4"
"#;
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let root = DriverRoot::at(Path::new("/"));
        let own = std::iter::empty();
        Smi::new(Program::new(root, path, own, &[], folder.to_owned()))
    }

    #[tokio::test]
    async fn a_card_is_probed_as_a_container_is_limited_and_again_for_another_driver() {
        let folder = tempfile::tempdir().unwrap();
        let at = |file: &str| folder.path().join(file);
        std::fs::create_dir(at("pod")).unwrap();
        for file in [
            "cgroup.controllers",
            "cgroup.subtree_control",
            "pod/cgroup.subtree_control",
        ] {
            std::fs::write(at(file), "misc\n").unwrap();
        }
        let cgroup = Cgroup {
            root: folder.path().to_owned(),
            path: "pod/aliquot-probe".into(),
        };
        let card = |version: &str| LimitProbe {
            uuid: "GPU-0".into(),
            pci_bus_id: "00000000:01:00.0".into(),
            driver_version: version.into(),
        };
        let (plans, plans_in) = watch::channel(vec![card("615.1")]);
        let (answers, mut seen) = watch::channel(Vec::new());
        let probing = tokio::spawn(run(smi(folder.path()), Some(cgroup), plans_in, answers));
        seen.changed().await.unwrap();
        let kept = answer("615.1", "misc", "");
        assert_eq!(*seen.borrow_and_update(), [kept]);
        assert!(!at("pod/aliquot-probe").exists());
        std::fs::write(at("pod/cgroup.subtree_control"), "cpu\n").unwrap();
        plans.send_replace(vec![card("620.1")]);
        // The first failure with another driver is no answer.
        let of_other =
            |found: &Vec<LimitProbed>| found.iter().any(|one| one.driver_version == "620.1");
        let found = seen.wait_for(of_other).await.unwrap().clone();
        let missing = &found[0].missing;
        assert!(missing.contains("echo +misc > "), "{missing}");
        probing.abort();
    }

    #[tokio::test]
    async fn a_node_without_cgroup_v2_is_told_what_it_lacks() {
        let smi = crate::mps::daemon::tests::tools(Path::new("/none")).smi;
        let card = LimitProbe {
            uuid: "GPU-0".into(),
            pci_bus_id: "00000000:01:00.0".into(),
            driver_version: "615.1".into(),
        };
        let (_plans, plans_in) = watch::channel(vec![card]);
        let (answers, mut seen) = watch::channel(Vec::new());
        let probing = tokio::spawn(run(smi, None, plans_in, answers));
        seen.changed().await.unwrap();
        let missing = seen.borrow()[0].missing.clone();
        assert!(missing.contains("cgroup of version 2"), "{missing}");
        probing.abort();
    }
}
