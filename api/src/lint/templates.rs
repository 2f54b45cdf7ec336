//! The pods that an object makes. A template is found by its shape, so that the templates of
//! Deployments, of Kubeflow, of Ray and of kinds that do not exist yet are all read.

use serde_json::Value;

/// The largest depth of a field that is read. The deepest known template is that of a `RayJob`, at 6.
const DEEPEST: usize = 12;
/// The most templates of one object that are read. A `JobSet` or `RayCluster` has a few.
const MOST: usize = 64;

/// The pod, or the template of pods, of an object.
#[derive(Clone, Debug)]
pub struct Template<'a> {
    /// The path of the template, with a dot at its end: `spec.template.`. Empty for a pod.
    pub path: String,
    /// The pod, with its metadata and spec.
    pub pod: &'a Value,
}

/// Returns the pods of an object, in the order of its fields.
pub fn templates(object: &Value) -> Vec<Template<'_>> {
    let mut found = Vec::new();
    if object["kind"] == "Pod" {
        found.push(Template {
            path: String::new(),
            pod: object,
        });
    } else {
        search(&object["spec"], "spec.", 0, &mut found);
    }
    found
}

fn search<'a>(value: &'a Value, path: &str, depth: usize, found: &mut Vec<Template<'a>>) {
    if depth > DEEPEST || found.len() >= MOST {
        return;
    }
    match value {
        Value::Object(_) if value["spec"]["containers"].is_array() => found.push(Template {
            path: path.to_owned(),
            pod: value,
        }),
        Value::Object(fields) => {
            for (name, value) in fields {
                search(value, &format!("{path}{name}."), depth + 1, found);
            }
        }
        Value::Array(items) => {
            let path = path.trim_end_matches('.');
            for (at, value) in items.iter().enumerate() {
                search(value, &format!("{path}[{at}]."), depth + 1, found);
            }
        }
        _ => {}
    }
}
