//! Text → volumes and claims.

use super::line::Line;
use super::read::{Read, labels, list, needed, term, terms};
use crate::action::ClaimBinding;
use crate::ids::{ClaimUid, VolumeName};
use crate::model::{Attachment, Claim, ClaimRef, Shape, Volume, Want};
use crate::units::Bytes;
use std::sync::Arc;

fn shape(line: &Line) -> Read<Shape> {
    Ok(Shape {
        class: Arc::from(line.get("class").unwrap_or_default()),
        size: Bytes(line.number("size")?.unwrap_or(0)),
        modes: list(line.get("modes")).into_iter().collect(),
        block: line.flag("block"),
        attributes: Arc::from(line.get("attributes").unwrap_or_default()),
    })
}

pub(super) fn volume(line: &Line) -> Read<Volume> {
    let uid = line.get("for-uid").map(ClaimUid::new);
    Ok(Volume {
        shape: shape(line)?,
        labels: labels(line, "label"),
        kept_for: line.get("for").map(|name| ClaimRef {
            name: Arc::from(name),
            uid,
        }),
        nodes: terms(line)?,
        ..Volume::named(line.name(1)?)
    })
}

/// The kind of line that says a volume which is attached to a pod's node.
pub(super) const ATTACHMENT: &str = "attachment";

/// Lines about claims below one; the others are grants.
pub(super) fn claims(line: &Line) -> impl Iterator<Item = &Line> {
    line.below.iter().filter(|line| line.kind() == "claim")
}

pub(super) fn claim(line: &Line) -> Read<Claim> {
    let (provisioned, bound) = (line.flag("provisioned"), line.flag("bound"));
    let want = || -> Read<Want> {
        let selector = line.get("selector").map(|text| term(line, text));
        Ok(Want {
            shape: shape(line)?,
            selector: selector.transpose()?.unwrap_or_default().labels,
        })
    };
    let claim = Claim {
        uid: ClaimUid::new(line.name(1)?),
        name: Arc::from(needed(line, "name")?),
        wants: (!provisioned && !bound).then(want).transpose()?,
        exclusive: line.flag("exclusive"),
        bound,
    };
    line.finish()?;
    Ok(claim)
}

/// The volumes below a pod's line that are attached to its node.
pub(super) fn attachments(line: &Line) -> Read<Vec<Attachment>> {
    let below = line.below.iter().filter(|line| line.kind() == ATTACHMENT);
    let read = below.map(|line| {
        let attachment = Attachment {
            driver: Arc::from(line.name(1)?),
            claim: Arc::from(needed(line, "claim")?),
        };
        line.finish()?;
        Ok(attachment)
    });
    read.collect()
}

pub(super) fn claim_binding(line: &Line) -> Read<ClaimBinding> {
    let claim = ClaimBinding {
        uid: ClaimUid::new(line.name(1)?),
        name: Arc::from(needed(line, "name")?),
        volume: line.get("volume").map(VolumeName::new),
    };
    line.finish()?;
    Ok(claim)
}
