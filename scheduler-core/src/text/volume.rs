//! This file has the tables of volumes and the claims on them.

use super::field::{Field, Map, Name, Object, Present, Terms, Whole, fields, flag, key, needed};
use super::line::{Line, Read};
use crate::action::ClaimBinding;
use crate::model::{Attachment, Claim, ClaimRef, Shape, Volume, Want};

fields!(Volume {
    name: Name,
    shape: Whole,
    labels: Map("label"),
    kept_for: Present(&["for"]),
    nodes: Terms,
});

fields!(Shape {
    class: key("class"),
    size: key("size"),
    modes: key("modes"),
    block: flag("block"),
    attributes: key("attributes"),
});

fields!(ClaimRef {
    name: needed("for"),
    uid: key("for-uid"),
});

fields!(Claim {
    uid: Name,
    name: needed("name"),
    exclusive: flag("exclusive"),
    bound: flag(BOUND),
    wants: Wants,
});

fields!(Want {
    shape: Whole,
    selector: key("selector"),
});

const BOUND: &str = "bound";
const PROVISIONED: &str = "provisioned";

/// A claim wants a volume if it is neither bound nor provisioned.
struct Wants;

impl Field<Option<Want>> for Wants {
    fn read(&self, line: &Line) -> Read<Option<Want>> {
        let bound = line.has_flag(BOUND);
        let wants = !line.flag(PROVISIONED) && !bound;
        wants.then(|| Want::read(line)).transpose()
    }

    fn write(&self, wants: &Option<Want>, line: &mut Line) {
        match wants {
            Some(want) => want.write(line),
            None => flag(PROVISIONED).write(&!line.has_flag(BOUND), line),
        }
    }
}

fields!(ClaimBinding {
    uid: Name,
    name: needed("name"),
    volume: key("volume"),
});

fields!(Attachment {
    driver: Name,
    claim: needed("claim"),
});
