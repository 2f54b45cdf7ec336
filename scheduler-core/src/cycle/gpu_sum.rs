//! What a job asks for in sum, to compare it with what is free.

use crate::ids::FilterName;
use crate::model::Count;
use crate::state::spec_row::SpecRow;
use std::collections::BTreeMap;

/// What all pods ask for that a job places next.
#[derive(Clone, Debug, Default)]
pub(super) struct GpuSum {
    /// Whole GPUs and slices: nano-GPU.
    pub nano: u128,
    /// Shares that are given in memory.
    pub mib: u128,
    /// Devices for claims of their own, by filter. Requests with alternatives are not counted.
    pub devices: BTreeMap<FilterName, u64>,
    /// Whole GPUs that a node gives as such, or as devices of that filter.
    pub either: BTreeMap<FilterName, u64>,
}

impl GpuSum {
    pub(super) fn add(&mut self, spec: &SpecRow) {
        self.nano += spec.request()[0].saturating_sub(spec.device_nano);
        self.mib += spec.share_mib;
        // A claim of several pods may have its devices already.
        let own = spec.spec.devices.iter().filter(|ask| ask.claim.is_none());
        for ask in own {
            let sum = if ask.stands_in {
                &mut self.either
            } else {
                &mut self.devices
            };
            for request in &ask.wants.requests {
                if let [one] = request.alternatives.as_slice()
                    && let Count::Exactly(count) = one.count
                    && !one.admin
                {
                    let sum = sum.entry(one.filter.clone()).or_default();
                    *sum = sum.saturating_add(count);
                }
            }
        }
    }
}
