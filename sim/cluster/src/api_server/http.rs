//! Requests and answers: from a URL and a body to a verb, from its outcome to JSON.
//! Takes the lock for one verb at a time; calls webhooks without it.

use super::error::ApiError;
use super::event;
use super::fault::Fault;
use super::form::{Form, shown};
use super::object::{at, name, text};
use super::resource::{Collection, Resource};
use super::route::{Query, Target, decode, target};
use super::selector::Selector;
use super::shared::Shared;
use super::store::Key;
use super::verb::{self, Deleted, Edit};
use super::watch::{self, Watch};
use super::{discovery, pod, table, webhook};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// As the real server.
const LARGEST_BODY: usize = 3 * 1024 * 1024;

/// Everything under one handler: paths are parsed here, not by the router.
pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .fallback(answer)
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(shared)
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let fault = shared.state().faults.take(method.as_str(), uri.path());
    let early = match fault {
        Some(Fault::TooManyRequests) => Some(ApiError::too_many()),
        Some(Fault::InternalError) => Some(ApiError::internal("a planned fault")),
        Some(Fault::Forbidden) => Some(ApiError::forbidden("a planned fault")),
        Some(Fault::NoAnswer) => std::future::pending().await,
        Some(Fault::LoseAnswer) | None => None,
    };
    let result = match early {
        Some(error) => Err(error),
        None => respond(&shared, &method, &uri, &headers, &body).await,
    };
    shared.signal();
    if fault == Some(Fault::LoseAnswer) {
        return lost();
    }
    result.unwrap_or_else(|error| {
        tracing::debug!(%method, %uri, code = error.code, message = error.message, "refused");
        let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (code, axum::Json(error.status())).into_response()
    })
}

/// An answer that breaks off after its head.
fn lost() -> Response {
    let broken = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("lost")) });
    Body::from_stream(broken).into_response()
}

async fn respond(
    shared: &Arc<Shared>,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Response, ApiError> {
    let words: Vec<String> = uri
        .path()
        .split('/')
        .filter(|word| !word.is_empty())
        .map(decode)
        .collect();
    let query = Query::parse(uri);
    let plain: Vec<&str> = words.iter().map(String::as_str).collect();
    let (group, version, rest) = match plain[..] {
        ["healthz" | "readyz" | "livez", ..] => return Ok("ok".into_response()),
        ["version"] => {
            let version = json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0-aliquot-sim", "platform": "linux/amd64"});
            return Ok(axum::Json(version).into_response());
        }
        ["api"] => {
            let versions = json!({"kind": "APIVersions", "versions": ["v1"]});
            return Ok(axum::Json(versions).into_response());
        }
        ["apis"] => {
            let custom = shared.state().store.custom_resources();
            return Ok(axum::Json(discovery::groups(&custom)).into_response());
        }
        ["openapi", "v3"] => {
            let custom = shared.state().store.custom_resources();
            return Ok(axum::Json(discovery::openapi_index(&custom)).into_response());
        }
        ["openapi", "v3", ..] => {
            let custom = shared.state().store.custom_resources();
            let document = discovery::openapi(&custom, &plain[2..].join("/"));
            return Ok(axum::Json(document).into_response());
        }
        ["api", version, ..] => ("", version, &words[2..]),
        ["apis", group, version, ..] => (group, version, &words[3..]),
        _ => return Err(ApiError::unknown_resource()),
    };
    if rest.is_empty() {
        let custom = shared.state().store.custom_resources();
        return discovery::resources(&custom, group, version)
            .map(|list| axum::Json(list).into_response())
            .ok_or_else(ApiError::unknown_resource);
    }
    let target = target(shared, group, version, rest).ok_or_else(ApiError::unknown_resource)?;
    let accept = header_text(headers, &header::ACCEPT);
    let form = if accept.contains("as=PartialObjectMetadata") {
        Form::Metadata
    } else if accept.contains("as=Table") {
        Form::Table(table::columns(&shared.state().store, &target.resource))
    } else {
        Form::Whole
    };
    match (method, target.name.is_some()) {
        (&Method::GET, _) if query.is_set("watch") => watch(shared, target, &query, form),
        (&Method::GET, false) => list(shared, &target, &query, &form),
        (&Method::GET, true) => get(shared, &target, &form),
        (&Method::POST, _) => post(shared, &target, &query, headers, body).await,
        (&Method::PUT | &Method::PATCH, true) => {
            change(shared, method, &target, &query, headers, body).await
        }
        (&Method::DELETE, true) => delete(shared, &target, &query, body),
        (&Method::DELETE, false) => delete_all(shared, &target, &query, body),
        _ => Err(ApiError::unknown_verb()),
    }
}

fn reply(code: StatusCode, resource: &Resource, object: &Value) -> Response {
    (code, axum::Json(shown(resource, object, &Form::Whole))).into_response()
}

fn success(code: StatusCode) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code.as_u16()});
    (code, axum::Json(status)).into_response()
}

fn get(shared: &Shared, target: &Target, form: &Form) -> Result<Response, ApiError> {
    if !matches!(target.sub.as_deref(), None | Some("status")) {
        return Err(ApiError::unknown_resource());
    }
    let key = target.key();
    let found = shared
        .state()
        .store
        .get(&target.resource.collection(), &key)
        .cloned()
        .ok_or_else(|| ApiError::not_found(&target.resource.qualified(), &key.name))?;
    Ok(axum::Json(shown(&target.resource, &found, form)).into_response())
}

fn selector(target: &Target, query: &Query) -> Result<Selector, ApiError> {
    Selector::parse(
        &target.resource,
        query.get("labelSelector"),
        query.get("fieldSelector"),
    )
}

fn list(
    shared: &Shared,
    target: &Target,
    query: &Query,
    form: &Form,
) -> Result<Response, ApiError> {
    let selector = selector(target, query)?;
    let guard = shared.state();
    let objects: Vec<Arc<Value>> = guard
        .store
        .list(&target.resource.collection(), target.namespace.as_deref())
        .filter(|object| selector.matches(object))
        .cloned()
        .collect();
    let revision = json!(guard.store.revision().to_string());
    drop(guard);
    if let Form::Table(columns) = form {
        let table = table::of(columns, objects.iter().map(AsRef::as_ref), &revision);
        return Ok(axum::Json(table).into_response());
    }
    let partial = matches!(form, Form::Metadata);
    let items: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut item = shown(&target.resource, object, form);
            if !target.resource.custom
                && !partial
                && let Some(fields) = item.as_object_mut()
            {
                // Items of built-in lists carry no kind on a real server either.
                fields.remove("kind");
                fields.remove("apiVersion");
            }
            item
        })
        .collect();
    let (version, kind) = if partial {
        (
            "meta.k8s.io/v1".to_owned(),
            "PartialObjectMetadataList".to_owned(),
        )
    } else {
        (
            target.resource.api_version(),
            format!("{}List", target.resource.kind),
        )
    };
    let list = json!({
        "apiVersion": version, "kind": kind, "metadata": {"resourceVersion": revision}, "items": items,
    });
    Ok(axum::Json(list).into_response())
}

fn watch(
    shared: &Arc<Shared>,
    mut target: Target,
    query: &Query,
    form: Form,
) -> Result<Response, ApiError> {
    let mut selector = selector(&target, query)?;
    if let Some(name) = target.name.take() {
        selector = Selector::parse(
            &target.resource,
            query.get("labelSelector"),
            &format!("metadata.name={name}"),
        )?;
    }
    let streaming_list = query.is_set("sendInitialEvents");
    let from = match query.get("resourceVersion") {
        "" | "0" => None,
        _ if streaming_list => None,
        text => Some(text.parse().map_err(|_| {
            ApiError::bad_request(format!("resourceVersion: Invalid value: \"{text}\""))
        })?),
    };
    let timeout = query.get("timeoutSeconds").parse().unwrap_or(1800);
    let lines = watch::stream(
        shared.clone(),
        Watch {
            resource: target.resource,
            namespace: target.namespace,
            selector,
            from,
            streaming_list,
            bookmarks: query.is_set("allowWatchBookmarks"),
            timeout: Duration::from_secs(timeout),
            form,
        },
    );
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((json, Body::from_stream(lines)).into_response())
}

fn header_text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> &'a str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

fn parse(headers: &HeaderMap, body: &Bytes) -> Result<Value, ApiError> {
    let kind = header_text(headers, &header::CONTENT_TYPE);
    if body.is_empty() {
        return Ok(json!({}));
    }
    if kind.contains("protobuf") {
        return Err(ApiError::unsupported_media(&format!(
            "{kind}; this server reads JSON, as `kubectl create -f` and `kubectl apply -f` send it"
        )));
    }
    serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request(format!("the body cannot be read as JSON ({kind}): {error}"))
    })
}

async fn post(
    shared: &Arc<Shared>,
    target: &Target,
    query: &Query,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Response, ApiError> {
    let object = parse(headers, body)?;
    let dry_run = query.get("dryRun") == "All";
    let now = jiff::Timestamp::now();
    let names = (
        target.resource.group.as_str(),
        target.resource.plural.as_str(),
        target.sub.as_deref(),
    );
    match names {
        (_, _, None) if target.name.is_some() => Err(ApiError::unknown_verb()),
        ("authentication.k8s.io", "tokenreviews", None) => {
            let guard = shared.state();
            let review = guard.tokens.review(&guard.store, &object, now);
            Ok((StatusCode::CREATED, axum::Json(review)).into_response())
        }
        ("authorization.k8s.io", _, None) => {
            let mut review = shown(&target.resource, &object, &Form::Whole);
            review["status"] = json!({"allowed": true, "reason": "nothing is authorised here"});
            Ok((StatusCode::CREATED, axum::Json(review)).into_response())
        }
        (_, _, None) => {
            create(shared, target, object, headers, dry_run)
                .await
                .map(|(created, warnings)| {
                    warned(
                        reply(StatusCode::CREATED, &target.resource, &created),
                        &warnings,
                    )
                })
        }
        ("", "pods", Some("binding")) => {
            pod::bind(
                &mut shared.state().store,
                &target.key(),
                &object,
                &verb::stamp(now),
                dry_run,
            )?;
            Ok(success(StatusCode::CREATED))
        }
        ("", "pods", Some("eviction")) => {
            // No budget is evaluated: an eviction is a deletion.
            let options = at(&object, "deleteOptions");
            let store = &mut shared.state().store;
            verb::delete(
                store,
                &target.resource,
                &target.key(),
                options,
                now,
                dry_run,
            )?;
            Ok(success(StatusCode::CREATED))
        }
        ("", "serviceaccounts", Some("token")) => {
            let mut guard = shared.state();
            let super::shared::State { store, tokens, .. } = &mut *guard;
            let token = tokens.mint(store, &target.key(), &object, now)?;
            Ok((StatusCode::CREATED, axum::Json(token)).into_response())
        }
        _ => Err(ApiError::unknown_resource()),
    }
}

async fn create(
    shared: &Arc<Shared>,
    target: &Target,
    mut object: Value,
    headers: &HeaderMap,
    dry_run: bool,
) -> Result<(Arc<Value>, Vec<String>), ApiError> {
    if target.resource.namespaced && target.namespace.is_none() {
        return Err(ApiError::unknown_verb());
    }
    let namespace = target.namespace.clone().unwrap_or_default();
    if target.resource.group == "events.k8s.io" {
        object = event::to_core(object);
        object["apiVersion"] = json!("events.k8s.io/v1");
    }
    let mut prepared = {
        let store = &mut shared.state().store;
        verb::prepare(store, &target.resource, &namespace, object)?
    };
    let mut warnings = Vec::new();
    if target.resource.is("", "pods") {
        (prepared, warnings) = admit(shared, prepared, &namespace, headers, dry_run).await?;
        // A patch may have set a limit and not its request.
        pod::default(&mut prepared)?;
    }
    if target.resource.is("", "namespaces") {
        let own = json!(name(&prepared));
        let labels = super::object::metadata(&mut prepared)
            .entry("labels")
            .or_insert_with(|| json!({}));
        labels["kubernetes.io/metadata.name"] = own;
    }
    let now = verb::stamp(jiff::Timestamp::now());
    let store = &mut shared.state().store;
    let created = verb::create(store, &target.resource, prepared, &now, dry_run)?;
    Ok((created, warnings))
}

/// The answer with a header for each warning, as clients print them: RFC 7234, section 5.5.
fn warned(mut answer: Response, warnings: &[String]) -> Response {
    for warning in warnings {
        let text = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{text}\"").as_bytes()) {
            answer.headers_mut().append(header::WARNING, value);
        }
    }
    answer
}

async fn admit(
    shared: &Arc<Shared>,
    pod: Value,
    namespace: &str,
    headers: &HeaderMap,
    dry_run: bool,
) -> Result<(Value, Vec<String>), ApiError> {
    let (webhooks, request) = {
        let mut guard = shared.state();
        let mut webhooks = Vec::new();
        for (plural, mutating) in [
            ("mutatingwebhookconfigurations", true),
            ("validatingwebhookconfigurations", false),
        ] {
            let collection = Collection::new("admissionregistration.k8s.io", plural);
            for configuration in guard.store.list(&collection, None) {
                webhooks.extend(webhook::of_configuration(configuration, mutating));
            }
        }
        let key = Key {
            namespace: String::new(),
            name: namespace.to_owned(),
        };
        let namespace_labels = guard
            .store
            .get(&Collection::new("", "namespaces"), &key)
            .map_or(Value::Null, |object| at(object, "metadata.labels").clone());
        let authorization = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let request = webhook::Request {
            user: guard.tokens.user(authorization),
            uid: guard.store.uid(),
            namespace_labels,
            dry_run,
        };
        (webhooks, request)
    };
    webhook::admit(&webhooks, pod, &request).await
}

async fn change(
    shared: &Arc<Shared>,
    method: &Method,
    target: &Target,
    query: &Query,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Response, ApiError> {
    let status = match target.sub.as_deref() {
        None => false,
        Some("status") if target.resource.status => true,
        // Finalizing a namespace is done by its deletion.
        Some(_) => return Err(ApiError::unknown_resource()),
    };
    let mut object = parse(headers, body)?;
    if target.resource.group == "events.k8s.io" {
        object = event::to_core(object);
    }
    let edit = if method == Method::PUT {
        Edit::Replace(object)
    } else {
        let kind = header_text(headers, &header::CONTENT_TYPE);
        match kind.split(';').next().unwrap_or_default() {
            "application/merge-patch+json" => Edit::Merge(object),
            "application/strategic-merge-patch+json" => Edit::Strategic(object),
            "application/json-patch+json" => Edit::Json(object),
            "application/apply-patch+yaml" => {
                let manager = query.get("fieldManager").to_owned();
                if manager.is_empty() {
                    return Err(ApiError::bad_request(
                        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
                    ));
                }
                Edit::Apply(object, manager)
            }
            other => return Err(ApiError::unsupported_media(other)),
        }
    };
    let dry_run = query.get("dryRun") == "All";
    let key = target.key();
    let edited = {
        let store = &mut shared.state().store;
        verb::edit(store, &target.resource, &key, status, &edit, dry_run)?
    };
    if let Some(object) = edited {
        return Ok(reply(StatusCode::OK, &target.resource, &object));
    }
    let Edit::Apply(mut object, manager) = edit else {
        return Err(ApiError::not_found(&target.resource.qualified(), &key.name));
    };
    let configuration = object.clone();
    super::object::metadata(&mut object).insert("name".into(), json!(key.name));
    let (created, warnings) = create(shared, target, object, headers, dry_run).await?;
    if !dry_run {
        let store = &mut shared.state().store;
        store.set_applied(&target.resource.collection(), &key, &manager, configuration);
    }
    let answer = reply(StatusCode::CREATED, &target.resource, &created);
    Ok(warned(answer, &warnings))
}

fn delete_options(query: &Query, body: &Bytes) -> Result<Value, ApiError> {
    let mut options = if body.is_empty() {
        json!({})
    } else {
        serde_json::from_slice(body)
            .map_err(|error| ApiError::bad_request(format!("DeleteOptions: {error}")))?
    };
    if let Ok(seconds) = query.get("gracePeriodSeconds").parse::<i64>() {
        options["gracePeriodSeconds"] = json!(seconds);
    }
    Ok(options)
}

fn delete(
    shared: &Shared,
    target: &Target,
    query: &Query,
    body: &Bytes,
) -> Result<Response, ApiError> {
    if target.sub.is_some() {
        return Err(ApiError::unknown_resource());
    }
    let options = delete_options(query, body)?;
    let dry_run = query.get("dryRun") == "All" || at(&options, "dryRun") == &json!(["All"]);
    let store = &mut shared.state().store;
    let now = jiff::Timestamp::now();
    let outcome = verb::delete(
        store,
        &target.resource,
        &target.key(),
        &options,
        now,
        dry_run,
    )?;
    verb::finish_namespaces(store);
    Ok(match outcome {
        Deleted::Begun(object) => reply(StatusCode::OK, &target.resource, &object),
        Deleted::Gone(object) if target.resource.is("", "pods") => {
            reply(StatusCode::OK, &target.resource, &object)
        }
        Deleted::Gone(object) => {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": {"name": name(&object), "kind": target.resource.plural, "group": target.resource.group,
                    "uid": text(&object, "metadata.uid")},
            });
            axum::Json(status).into_response()
        }
    })
}

fn delete_all(
    shared: &Shared,
    target: &Target,
    query: &Query,
    body: &Bytes,
) -> Result<Response, ApiError> {
    let selector = selector(target, query)?;
    let options = delete_options(query, body)?;
    let store = &mut shared.state().store;
    let now = jiff::Timestamp::now();
    let keys: Vec<Key> = store
        .list(&target.resource.collection(), target.namespace.as_deref())
        .filter(|object| selector.matches(object))
        .map(|object| Key::of(object))
        .collect();
    for key in keys {
        verb::delete(store, &target.resource, &key, &options, now, false)?;
    }
    verb::finish_namespaces(store);
    Ok(success(StatusCode::OK))
}
