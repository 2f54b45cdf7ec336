//! The controller of an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

/// Returns the owner that creates the object again when it is deleted. An object has at most one.
pub fn controller(object: &impl ResourceExt) -> Option<&OwnerReference> {
    let mut owners = object.owner_references().iter();
    owners.find(|owner| owner.controller == Some(true))
}
