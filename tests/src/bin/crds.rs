//! Writes `deploy/crds/` from the types in crate `api`.
//!
//! ```text
//! cargo run -p aliquot-tests --bin crds -- deploy/crds
//! ```
//!
//! In: the types. Out: one YAML file per kind, the same bytes for the same types. Must never drop a
//! field of KAI's objects that Aliquot does not know: an installation of KAI, later or again, finds
//! everything that was written.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use api::kai::{ConfigDefinition, ShardDefinition};
use api::{GpuNode, PodGroup, Queue, Topology};
use kube::CustomResourceExt as _;
use serde_json::{Value, json};

const OURS: &str =
    "Made from crate `api` by `cargo run -p aliquot-tests --bin crds -- deploy/crds`.";
const KAIS: &str = "\
A kind of the KAI Scheduler, with the part of its fields that Aliquot reads; the others are
kept as they are written. Where KAI is or was installed its own definition is there already:
leave that one, it serves Aliquot as well.";

fn main() -> Result<()> {
    let folder: PathBuf = std::env::args_os()
        .nth(1)
        .context("usage: crds FOLDER")?
        .into();
    fs::create_dir_all(&folder)?;
    for (name, text) in files()? {
        fs::write(folder.join(&name), text).with_context(|| name.clone())?;
    }
    Ok(())
}

/// File names and what is in them.
fn files() -> Result<Vec<(String, String)>> {
    let mut files = vec![file(&serde_json::to_value(GpuNode::crd())?, "")?];
    for crd in [
        Queue::crd(),
        PodGroup::crd(),
        Topology::crd(),
        ShardDefinition::crd(),
        ConfigDefinition::crd(),
    ] {
        let mut crd = serde_json::to_value(crd)?;
        as_kai_has_it(&mut crd)?;
        files.push(file(&crd, KAIS)?);
    }
    Ok(files)
}

fn file(crd: &Value, about: &str) -> Result<(String, String)> {
    let mut crd = crd.clone();
    plain(&mut crd);
    let root = crd
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .context("a definition without a schema")?;
    root["description"] = root["properties"]["spec"]["description"].clone();
    let part = |path: &str| {
        let text = crd.pointer(path).and_then(Value::as_str);
        text.with_context(|| format!("a definition without {path}"))
    };
    let name = format!(
        "{}_{}.yaml",
        part("/spec/group")?,
        part("/spec/names/plural")?
    );
    let mut text = String::new();
    for line in OURS.lines().chain(about.lines()) {
        let _ = writeln!(text, "# {line}");
    }
    text.push_str("---\n");
    yaml(&crd, 0, &mut text);
    Ok((name, text))
}

/// Leaves out what says nothing: number formats that the API server does not know and warns
/// of, empty lists, all but the first paragraph of a description that is not ours.
fn plain(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let unknown =
                |format: &Value| format.as_str().is_some_and(|name| name.starts_with("uint"));
            if fields.get("format").is_some_and(unknown) {
                fields.remove("format");
            }
            if fields.get("minimum").and_then(Value::as_f64) == Some(0.0) {
                fields.insert("minimum".to_owned(), json!(0));
            }
            if let Some(Value::String(text)) = fields.get_mut("description") {
                let paragraph = text.split("\n\n").next().unwrap_or_default();
                *text = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
            }
            fields.retain(|name, field| {
                let listed = matches!(name.as_str(), "categories" | "shortNames");
                !(listed && field.as_array().is_some_and(Vec::is_empty))
            });
            fields.values_mut().for_each(plain);
        }
        Value::Array(items) => items.iter_mut().for_each(plain),
        _ => {}
    }
}

/// KAI's definitions have no defaults, let its controllers leave out what our types require
/// of a status, and have a few rules that a Rust type does not say.
fn as_kai_has_it(crd: &mut Value) -> Result<()> {
    let kind = crd["spec"]["names"]["kind"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let root = crd
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties")
        .context("a definition without a schema")?;
    open(&mut root["spec"], false);
    if root.get("status").is_some() {
        open(&mut root["status"], true);
    }
    let spec = &mut root["spec"]["properties"];
    let mut rule = |path: &str, rules: Value| -> Result<()> {
        let field = spec
            .pointer_mut(path)
            .and_then(Value::as_object_mut)
            .with_context(|| format!("{kind} has no spec{path}"))?;
        for (name, value) in rules.as_object().into_iter().flatten() {
            field.insert(name.clone(), value.clone());
        }
        Ok(())
    };
    match kind.as_str() {
        "PodGroup" => {
            for least in [
                "/minMember",
                "/minSubGroup",
                "/subGroups/items/properties/minMember",
                "/subGroups/items/properties/minSubGroup",
            ] {
                rule(least, json!({ "minimum": 0 }))?;
            }
            rule(
                "/preemptibility",
                json!({ "enum": ["preemptible", "semi-preemptible", "non-preemptible", ""] }),
            )?;
            rule(
                "/subGroups/items/properties/name",
                json!({ "minLength": 1 }),
            )?;
        }
        "Topology" => {
            rule(
                "/levels",
                json!({
                    "minItems": 1,
                    "maxItems": 16,
                    "x-kubernetes-list-type": "atomic",
                    "x-kubernetes-validations": [
                        { "rule": "self.map(level, level.nodeLabel) == oldSelf.map(level, level.nodeLabel)", "message": "levels cannot be changed: delete the topology and create it again" },
                        { "rule": "self.all(level, self.exists_one(other, other.nodeLabel == level.nodeLabel))", "message": "each level needs a label of its own" },
                        { "rule": "self.all(level, level.nodeLabel != 'kubernetes.io/hostname' || self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname')", "message": "kubernetes.io/hostname can only be the last level" },
                    ],
                }),
            )?;
            rule(
                "/levels/items/properties/alias",
                json!({ "minLength": 1, "maxLength": 316 }),
            )?;
            rule(
                "/levels/items/properties/nodeLabel",
                json!({ "minLength": 1, "maxLength": 316 }),
            )?;
        }
        "SchedulingShard" | "Config" => {
            let schema = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema");
            let schema = schema.and_then(Value::as_object_mut);
            // An object of theirs may be without a spec.
            if let Some(schema) = schema {
                schema.remove("required");
                schema.insert("title".to_owned(), json!(kind));
            }
        }
        _ => {}
    }
    Ok(())
}

/// Keeps unknown fields of every object in a schema, and takes defaults out; of a status
/// also what it requires.
fn open(schema: &mut Value, is_status: bool) {
    let Value::Object(fields) = schema else {
        return;
    };
    fields.remove("default");
    if is_status {
        fields.remove("required");
    }
    let is_open = fields.get("type").is_some_and(|kind| kind == "object");
    if is_open && !fields.contains_key("additionalProperties") {
        fields.insert(
            "x-kubernetes-preserve-unknown-fields".to_owned(),
            json!(true),
        );
    }
    for (name, inner) in fields.iter_mut() {
        match (name.as_str(), inner) {
            ("properties", Value::Object(properties)) => {
                for property in properties.values_mut() {
                    open(property, is_status);
                }
            }
            ("items" | "additionalProperties", inner) => open(inner, is_status),
            _ => {}
        }
    }
}

/// Block style, keys in their order; strings as JSON has them, where they need it.
fn yaml(value: &Value, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let _ = write!(out, "{indent}{}:", scalar(name));
                below(field, depth + 1, out);
            }
        }
        Value::Array(items) => {
            for item in items {
                let _ = write!(out, "{indent}-");
                match item {
                    // The first field is beside the dash, the others below it.
                    Value::Object(fields) if !fields.is_empty() => {
                        let mut inner = String::new();
                        yaml(item, depth + 1, &mut inner);
                        out.push(' ');
                        out.push_str(inner.trim_start());
                    }
                    _ => below(item, depth + 1, out),
                }
            }
        }
        other => {
            let _ = writeln!(out, "{indent}{}", leaf(other));
        }
    }
}

fn below(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            out.push('\n');
            yaml(value, depth, out);
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            yaml(value, depth, out);
        }
        other => {
            let _ = writeln!(out, " {}", leaf(other));
        }
    }
}

fn leaf(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

/// Plain where nothing can be misread.
fn scalar(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
            .contains(&text.to_ascii_lowercase().as_str());
    if plain {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}
