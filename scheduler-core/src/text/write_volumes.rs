//! Volumes and claims → text.

use super::write::{Text, requirements_text};
use crate::action::ClaimBinding;
use crate::model::{Attachment, Claim, Shape, Volume};

impl Text {
    fn shape(&mut self, shape: &Shape) {
        self.unless("class", &*shape.class, "");
        self.unless("size", shape.size.0, 0);
        let modes: Vec<&str> = shape.modes.iter().map(|mode| &**mode).collect();
        self.unless("modes", modes.join(",").as_str(), "");
        self.flag("block", shape.block);
        self.unless("attributes", &*shape.attributes, "");
    }

    pub(super) fn volume(&mut self, volume: &Volume) {
        self.start("volume", &volume.name);
        self.shape(&volume.shape);
        self.labels("label", &volume.labels);
        if let Some(kept) = &volume.kept_for {
            self.pair("for", &kept.name);
            self.some("for-uid", kept.uid.as_ref());
        }
        self.terms(volume.nodes.as_deref());
        self.end();
    }

    pub(super) fn claim(&mut self, claim: &Claim) {
        self.start("  claim", &claim.uid);
        self.pair("name", &claim.name);
        self.flag("exclusive", claim.exclusive);
        self.flag("bound", claim.bound);
        self.flag("provisioned", claim.wants.is_none() && !claim.bound);
        if let Some(want) = &claim.wants {
            self.shape(&want.shape);
            if !want.selector.is_empty() {
                self.pair("selector", requirements_text(&want.selector));
            }
        }
        self.end();
    }

    pub(super) fn attachment(&mut self, attachment: &Attachment) {
        self.start("  attachment", &attachment.driver);
        self.pair("claim", &attachment.claim);
        self.end();
    }

    pub(super) fn claim_binding(&mut self, claim: &ClaimBinding) {
        self.start("  claim", &claim.uid);
        self.pair("name", &claim.name);
        self.some("volume", claim.volume.as_ref());
        self.end();
    }
}
