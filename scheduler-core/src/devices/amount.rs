//! How much of a device a request takes, by the device's request policies (KEP-5075).

use super::DeviceReason;
use crate::model::{Alternative, Amounts, Capacity, Device};
use crate::units::Quantity;
use std::sync::Arc;

/// What of a capacity is taken for that request. `None`: nothing was asked for.
fn taken(capacity: &Capacity, asked: Option<Quantity>) -> Quantity {
    let Some(asked) = asked else {
        return capacity.default.unwrap_or(capacity.has);
    };
    let range = capacity.range.as_ref();
    if let Some((range, min)) = range.and_then(|range| Some((range, range.min?))) {
        if asked < min {
            return min;
        }
        let Some(step) = steps(range.step) else {
            return asked;
        };
        let (asked, min) = (asked.rounded_up(), min.rounded_up());
        let steps = asked.saturating_sub(min);
        let steps = steps.div_euclid(step) + i128::from(steps.rem_euclid(step) != 0);
        let whole = min.saturating_add(steps.saturating_mul(step));
        return Quantity(whole.saturating_mul(Quantity::whole(1).0));
    }
    let mut values = capacity.values.iter();
    values
        .find(|value| asked <= **value)
        .copied()
        .unwrap_or(asked)
}

/// Whole numbers; a value that is not a whole number is no step.
fn steps(step: Option<Quantity>) -> Option<i128> {
    step.map(Quantity::rounded_up).filter(|step| *step > 0)
}

/// The policy does not let so much be taken.
fn is_refused(capacity: &Capacity, taken: Quantity) -> bool {
    if capacity.default == Some(taken) {
        return false;
    }
    if let Some(range) = &capacity.range {
        let above = range.max.is_some_and(|max| taken > max);
        let off = steps(range.step).is_some_and(|step| {
            let min = range.min.unwrap_or_default().rounded_up();
            (taken.rounded_up() - min).rem_euclid(step) != 0
        });
        return above || off;
    }
    !capacity.values.is_empty() && !capacity.values.contains(&taken)
}

/// What a request takes of each capacity of a device.
pub(super) fn of(device: &Device, ask: &Alternative) -> Amounts {
    let all = device.capacity.iter();
    all.map(|(name, capacity)| {
        let asked = ask.capacity.get(name).copied();
        (Arc::clone(name), taken(capacity, asked))
    })
    .collect()
}

/// Whether the device has this much free.
pub(super) fn fits(device: &Device, ask: &Alternative, used: &Amounts) -> Result<(), DeviceReason> {
    let mut asked = ask.capacity.keys();
    if let Some(lacks) = asked.find(|name| !device.capacity.contains_key(*name)) {
        return Err(DeviceReason::NoCapacity(Arc::clone(lacks)));
    }
    for (name, capacity) in &device.capacity {
        let wanted = taken(capacity, ask.capacity.get(name).copied());
        if is_refused(capacity, wanted) {
            return Err(DeviceReason::Policy(Arc::clone(name)));
        }
        let used = used.get(name).copied().unwrap_or_default();
        if used.plus(wanted) > capacity.has {
            return Err(DeviceReason::Capacity {
                name: Arc::clone(name),
                free: capacity.has.less(used),
                has: capacity.has,
                wanted,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Range;

    fn whole(amount: i64) -> Quantity {
        Quantity::whole(amount)
    }

    /// The amount consumed by that request, and whether the policy allows it.
    fn takes(capacity: &Capacity, asked: Option<i64>) -> (Quantity, bool) {
        let taken = taken(capacity, asked.map(whole));
        (taken, !is_refused(capacity, taken))
    }

    #[test]
    fn a_request_is_rounded_up_to_what_the_policy_lets_it_be() {
        let free = Capacity {
            has: whole(100),
            ..Capacity::default()
        };
        assert_eq!(takes(&free, None), (whole(100), true));
        assert_eq!(takes(&free, Some(7)), (whole(7), true));
        let steps = Capacity {
            default: Some(whole(95)),
            range: Some(Range {
                min: Some(whole(10)),
                max: Some(whole(90)),
                step: Some(whole(20)),
            }),
            ..free.clone()
        };
        assert_eq!(
            takes(&steps, None),
            (whole(95), true),
            "whatever the range says"
        );
        assert_eq!(takes(&steps, Some(1)), (whole(10), true));
        assert_eq!(takes(&steps, Some(11)), (whole(30), true));
        assert_eq!(takes(&steps, Some(91)), (whole(110), false));
        let values = Capacity {
            values: vec![whole(10), whole(50)],
            ..free
        };
        assert_eq!(takes(&values, Some(11)), (whole(50), true));
        assert_eq!(takes(&values, Some(51)), (whole(51), false));
    }
}
