//! In which mode a claim's cards are shared. Pure.

use crate::inventory::Card;
use crate::ledger::Ledger;
use crate::node::policy::Policy;
use api::Mode;

/// The mode of a share on these cards: what class or claim ask for, else what the cards are in,
/// else the only one that the admin leaves them, else the node's default, else the first that
/// they can be shared in. In mode `mps` a share has one card, so several that are idle are
/// shared in another.
///
/// # Errors
/// One sentence: there is none.
pub fn of(
    ledger: &Ledger,
    policy: Option<&Policy>,
    cards: &[&Card],
    asked: Option<Mode>,
) -> Result<Mode, String> {
    let several = cards.len() > 1;
    let is = |card: &Card| ledger.mode_of(&card.uuid);
    let fits = |mode: &Mode| {
        let open = |card: &&Card| {
            let beside = is(card).is_none_or(|is| is == *mode && is != Mode::Exclusive);
            card.switchable.contains(mode) && beside
        };
        cards.iter().all(open) && !(several && *mode == Mode::Mps)
    };
    let bound = asked.or_else(|| {
        let mut modes = cards.iter().filter_map(|card| is(card).or(card.only_mode));
        modes.next()
    });
    if let Some(mode) = bound {
        return if fits(&mode) {
            Ok(mode)
        } else {
            Err(why_not(ledger, cards, mode))
        };
    }
    let default = policy.and_then(|policy| policy.spec.default_mode);
    let all = [Mode::Mps, Mode::MpsIsolated, Mode::TimeSlicing];
    let mut modes = default.into_iter().chain(all);
    modes
        .find(|mode| *mode != Mode::Exclusive && fits(mode))
        .ok_or_else(|| {
            let names: Vec<&str> = cards.iter().map(|card| card.uuid.as_str()).collect();
            format!("card {} cannot be shared now", names.join(" and "))
        })
}

fn why_not(ledger: &Ledger, cards: &[&Card], mode: Mode) -> String {
    for card in cards {
        match ledger.mode_of(&card.uuid) {
            Some(is) if is != mode || is == Mode::Exclusive => {
                let holder = ledger.on(&card.uuid).next();
                let holder = holder
                    .map(|share| share.pod.to_string())
                    .unwrap_or_default();
                let not = if is == mode {
                    "takes no share beside it".to_owned()
                } else {
                    format!("not in mode {mode}")
                };
                return format!(
                    "card {} is in mode {is}, held by {holder}, and {not}",
                    card.uuid
                );
            }
            _ if !card.switchable.contains(&mode) => {
                return format!("card {} is not offered in mode {mode}", card.uuid);
            }
            _ => {}
        }
    }
    format!(
        "mode {mode} allows one card per container, not {}: use mps-isolated or time-slicing for several",
        cards.len()
    )
}
