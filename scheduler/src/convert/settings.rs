//! What a [`World`] is to be like, said once before its first fact.

use super::listing::Listing;
use super::world::World;
use crate::bursts::Bursts;
use crate::limits::Limits;
use crate::shard::{Live, Pool};
use crate::usage;
use scheduler_core::scale_up::Groups;

impl World {
    /// The world of an observer, which hears no agents and whose webhook admits no pods:
    /// agents are read where they write, and pods are taken as admitted.
    #[must_use]
    pub fn observing(self) -> Self {
        Self {
            observing: true,
            ..self
        }
    }

    /// A world where this label names a workload's queue.
    #[must_use]
    pub fn with_queue_label(self, key: &str) -> Self {
        Self {
            queue_label: key.to_owned(),
            ..self
        }
    }

    /// The world of a shard; with `live`, of one whose settings an admin may change.
    #[must_use]
    pub fn of_shard(self, pool: &Pool, live: Option<Live>) -> Self {
        Self {
            live,
            pool: pool.name().to_owned(),
            ..self
        }
    }

    /// A world where past use comes from there.
    #[must_use]
    pub fn with_usage(mut self, settings: Option<&usage::Settings>) -> Self {
        self.usage.set(settings);
        self
    }

    /// A world that reads no more of a pod group than these.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// A world where pods without an owner are there once they are in their group, if `wait`.
    #[must_use]
    pub fn with_lone_pods_waiting(self, wait: bool) -> Self {
        Self {
            alone_wait: wait,
            ..self
        }
    }

    /// A world where nodes of these groups may be emptied for an autoscaler.
    #[must_use]
    pub fn with_removable(self, groups: Option<Groups>) -> Self {
        Self {
            removable: groups,
            ..self
        }
    }

    /// Returns a world in which a consolidation moves pods without a controller if `moves` is true.
    #[must_use]
    pub fn with_bare_pods_moved(self, moves: bool) -> Self {
        Self {
            moves_bare: moves,
            ..self
        }
    }

    /// A world where a share is held so far above its request, whatever limit its pod names.
    #[must_use]
    pub fn with_bursts(self, bursts: Bursts) -> Self {
        Self { bursts, ..self }
    }

    /// Returns a world without listings of these kinds, given by their plural names. Each object
    /// that a pod names of them counts as present, because a reason that was not verified could be
    /// false.
    #[must_use]
    pub fn with_unread<'a>(mut self, kinds: impl IntoIterator<Item = &'a str>) -> Self {
        for kind in kinds {
            let is_in = |rolls: &[(&Listing, &str)]| rolls.iter().any(|(_, of)| *of == kind);
            self.config_maps.unread |= kind == "configmaps";
            self.storage.unread |= is_in(&self.storage.rolls());
            self.devices.unread |= is_in(&self.devices.rolls());
        }
        self
    }

    /// A world in which no listing of storage is awaited: each object counts when it is told.
    #[must_use]
    pub fn with_storage_listed(mut self) -> Self {
        self.storage.all_listed();
        self.devices.all_listed();
        self
    }
}
