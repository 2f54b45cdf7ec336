//! The forms in which an object is answered.

use super::object::at;
use super::resource::Resource;
use super::{event, table};
use serde_json::{Value, json};

/// The form in which a client wants to see objects.
#[derive(Clone, Debug)]
pub(super) enum Form {
    Whole,
    /// Only the metadata is sent, as `PartialObjectMetadata`.
    Metadata,
    /// A `Table` is sent, for people.
    Table(Vec<table::Column>),
}

/// Returns an object as this resource shows it.
pub(super) fn shown(resource: &Resource, object: &Value, form: &Form) -> Value {
    match form {
        Form::Metadata => json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": at(object, "metadata"),
        }),
        Form::Table(columns) => {
            table::of(columns, [object], at(object, "metadata.resourceVersion"))
        }
        Form::Whole => {
            let mut object = object.clone();
            if resource.group == "events.k8s.io" {
                object = event::to_new(object);
            }
            object["apiVersion"] = json!(resource.api_version());
            object["kind"] = json!(resource.kind);
            object
        }
    }
}
