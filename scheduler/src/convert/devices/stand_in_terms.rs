//! What the claim that stands in for a pod's whole GPUs says of the pod.

use super::claims;
use super::filters::Wanted;
use super::objects::{DeviceObjects, Say, User};
use super::stand_in::{StandIn, class, name_for, of, of_placed, uid};
use super::wants;
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::ResourceExt as _;
use scheduler_core::Bind;
use scheduler_core::model;
use std::sync::Arc;

impl DeviceObjects {
    /// What the claim says that stands in for the pod's GPUs, where one can. Its requests are those
    /// that a class and the pod make, also once the object is there: a placed pod is then like one
    /// that waits.
    pub(super) fn say_stand_in(
        &self,
        pod: &KubePod,
        waits: bool,
        say: &mut Say,
        filters: &mut Vec<Wanted>,
    ) {
        let placed = of_placed(pod).filter(|_| !waits);
        let class = class(&self.classes);
        if placed.is_none() && class.is_none() {
            return;
        }
        let namespace = pod.namespace().unwrap_or_default();
        let name = placed.map_or_else(|| name_for(pod), str::to_owned);
        let full = format!("{namespace}/{name}");
        let known = self.claims.get(&full);
        let own = uid(&namespace, &name);
        let uid = match known {
            Some(claim) => claim.uid.clone(),
            None if name == name_for(pod) => own.clone(),
            // Another scheduler's, which is not seen yet.
            None => {
                say.is_open = true;
                return;
            }
        };
        if waits && let Some(claim) = known {
            let why = if uid != own {
                Some("it was not created for the pod")
            } else if claim.leaving {
                Some("it is being deleted")
            } else {
                None
            };
            if let Some(why) = why {
                let why = format!("DynamicResources: resource claim {full}: {why}");
                say.lacks.push(Arc::from(why));
                return;
            }
        }
        let is_allocated = known.is_some_and(claims::Claim::is_allocated);
        let made = class.and_then(|class| of(pod, class));
        let wants = made.map(|made| wants::of(&made.spec, &self.classes, None));
        let wants = match wants {
            Some(Ok(wants)) => wants,
            Some(Err(_)) | None if waits => return,
            Some(Err(_)) | None => wants::Wants::default(),
        };
        if waits && !is_allocated {
            filters.extend(wants.filters);
        }
        say.devices.push(model::DeviceClaim {
            uid,
            name: Arc::from(full),
            own: !(waits && is_allocated),
            stands_in: true,
            wants: Arc::new(wants.wants),
        });
    }

    /// What is to be written where that claim of the pod stands in for its GPUs.
    pub(super) fn stand_in(&self, bind: &Bind, claim: &str) -> Option<StandIn> {
        let user = self.users.get(bind.pod.as_str())?;
        let mut claims = user.say.devices.iter();
        claims.find(|one| one.stands_in && *one.name == *claim)?;
        of(&user.pod.load(), class(&self.classes)?)
    }

    /// All is listed, and there is no class for whole GPUs: those who only ask for them are no
    /// case for claims.
    pub(super) fn forget_plain(&mut self) {
        if !self.is_listed() || class(&self.classes).is_some() {
            return;
        }
        let is_plain = |user: &User| user.asks && user.say == Say::default() && !user.has_claims;
        let plain = self.users.iter().filter(|(_, user)| is_plain(user));
        for uid in plain.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
            self.forget(&uid);
        }
    }
}
