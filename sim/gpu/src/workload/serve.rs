//! `vllm serve MODEL`: what an inference server does with a GPU, without one.
//!
//! Owns the start-up check, in vLLM's own words, and the three pages that users ask for.
//! In: the command line of the real program. Out: a process that holds its share of
//! the memory and answers, or exit 1 with the reason on standard output.
//! Must never: take more than the share of the memory that it was told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::answer::{memory, print, println_plain, refusal};
use super::hold;
use crate::client::CallError;
use crate::client::process::{CudaProcess, Environment, MemoryView, Route};
use crate::paths::Root;

/// What it continues every prompt with, a token each.
const TOKENS: [&str; 7] = [" city", " in", " the", " state", " of", " California", ","];
/// The longest request that is read.
const LARGEST_BODY: u64 = 1 << 20;
/// So long a silent client is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The arguments that matter here; the others are the real program's business.
#[derive(Debug, PartialEq)]
struct Arguments {
    model: String,
    /// Thousandths of the card's memory.
    share: u64,
    port: u16,
}

impl Arguments {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut args = args.iter();
        if args.next().map(String::as_str) != Some("serve") {
            return Err("usage: vllm serve MODEL [--gpu-memory-utilization=F] [--port=N]".into());
        }
        let mut parsed = Self {
            model: String::new(),
            share: 900,
            port: 8000,
        };
        while let Some(arg) = args.next() {
            let Some(option) = arg.strip_prefix("--") else {
                if parsed.model.is_empty() {
                    parsed.model.clone_from(arg);
                }
                continue;
            };
            let (name, inline) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            let mut value = || {
                inline
                    .clone()
                    .or_else(|| args.next().cloned())
                    .ok_or_else(|| format!("--{name} needs a value"))
            };
            match name {
                "gpu-memory-utilization" => parsed.share = thousandths(&value()?)?,
                "port" => parsed.port = value()?.parse().map_err(|_| "--port needs a number")?,
                _ => {}
            }
        }
        Ok(parsed)
    }
}

/// `0.7` is 700. No floating point: what is asked for is compared to the MiB.
fn thousandths(text: &str) -> Result<u64, String> {
    let wrong = || format!("--gpu-memory-utilization must be in (0, 1], not {text}");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let digits: String = part.chars().chain("000".chars()).take(3).collect();
    let share = whole * 1000 + digits.parse::<u64>().map_err(|_| wrong())?;
    if (1..=1000).contains(&share) {
        Ok(share)
    } else {
        Err(wrong())
    }
}

/// Runs the program.
pub fn vllm(args: &[String]) -> ExitCode {
    hold::block_termination();
    let arguments = match Arguments::parse(args) {
        Ok(arguments) => arguments,
        Err(error) => {
            println_plain(&error);
            return ExitCode::from(2);
        }
    };
    match start(&arguments) {
        Err(error) => {
            println_plain(&format!("ValueError: {error}"));
            ExitCode::FAILURE
        }
        Ok((process, listener)) => {
            let model: Arc<str> = arguments.model.into();
            std::thread::spawn(move || serve(&listener, &model));
            let code = hold::hold(process.watch().ok(), None).unwrap_or(0);
            process.finish();
            ExitCode::from(code)
        }
    }
}

/// The start-up check, the memory, and the port.
fn start(arguments: &Arguments) -> Result<(CudaProcess, TcpListener), String> {
    let env: Environment = std::env::vars().collect();
    let words = |error: CallError| {
        let mut line = refusal(&error);
        line.insert("do".into(), json!("start"));
        line.insert("ok".into(), json!(false));
        let text = line["message"].as_str().unwrap_or_default().to_owned();
        print(&Value::Object(line));
        text
    };
    let mut process = CudaProcess::init(&Root::from_env(), &env, Route::Usual).map_err(words)?;
    let before = process.context(0).map_err(words)?;
    let wanted = check(&before, arguments.share)?;
    let (_, after) = process
        .allocate(0, wanted.saturating_sub(before.held))
        .map_err(words)?;
    let listener = TcpListener::bind(("0.0.0.0", arguments.port)).map_err(|e| e.to_string())?;
    let mut line = memory(&after);
    line["do"] = json!("serve");
    line["ok"] = json!(true);
    line["wanted_mib"] = json!(wanted);
    print(&line);
    println_plain("INFO:     Application startup complete.");
    Ok((process, listener))
}

/// What vLLM does before it loads anything: free memory, as CUDA reports it, must be at least that
/// part of the total, as CUDA reports it. Returns that part, MiB.
fn check(view: &MemoryView, share: u64) -> Result<u64, String> {
    let wanted = view.total * share / 1000;
    if view.free >= wanted {
        return Ok(wanted);
    }
    Err(format!(
        "Free memory on device ({} MiB/{} MiB) on startup is less than desired GPU memory \
         utilization ({}.{:03}, {wanted} MiB). Decrease GPU memory utilization or reduce GPU \
         memory used by other processes.",
        view.free,
        view.total,
        share / 1000,
        share % 1000,
    ))
}

fn serve(listener: &TcpListener, model: &Arc<str>) {
    for stream in listener.incoming().flatten() {
        let model = Arc::clone(model);
        std::thread::spawn(move || {
            // A client that went away is its own affair.
            let _ = answer(&stream, &model);
        });
    }
}

fn answer(stream: &TcpStream, model: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = Vec::new();
    reader
        .take(LARGEST_BODY.min(length))
        .read_to_end(&mut body)?;
    let mut words = request.split_whitespace();
    let (status, page) = page(
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
        &body,
        model,
    );
    let page = page.to_string();
    let mut out = stream;
    write!(
        out,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    )?;
    out.flush()
}

/// The answer to one request.
fn page(method: &str, path: &str, body: &[u8], model: &str) -> (&'static str, Value) {
    match (method, path) {
        ("GET", "/health") => ("200 OK", json!({})),
        ("GET", "/v1/models") => (
            "200 OK",
            json!({ "object": "list", "data": [{ "id": model, "object": "model", "owned_by": "vllm" }] }),
        ),
        ("POST", "/v1/completions") => complete(body, model),
        _ => ("404 Not Found", json!({ "detail": "Not Found" })),
    }
}

fn complete(body: &[u8], model: &str) -> (&'static str, Value) {
    let Ok(request) = serde_json::from_slice::<Value>(body) else {
        return ("400 Bad Request", json!({ "detail": "no JSON" }));
    };
    if request["model"] != model {
        let message = format!("The model `{}` does not exist.", request["model"]);
        return ("404 Not Found", json!({ "error": { "message": message } }));
    }
    let asked = request["max_tokens"].as_u64().unwrap_or(16);
    let asked = usize::try_from(asked).unwrap_or(usize::MAX);
    let tokens = TOKENS.len().min(asked);
    let prompt = request["prompt"].as_str().unwrap_or_default();
    let prompt = prompt.split_whitespace().count();
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    (
        "200 OK",
        json!({
            "id": format!("cmpl-{created:032x}"),
            "object": "text_completion",
            "created": created,
            "model": model,
            "choices": [{
                "index": 0,
                "text": TOKENS[..tokens].concat(),
                "logprobs": null,
                "finish_reason": if tokens == asked { "length" } else { "stop" },
            }],
            "usage": {
                "prompt_tokens": prompt,
                "total_tokens": prompt + tokens,
                "completion_tokens": tokens,
            },
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn both_forms_of_an_option_are_read_and_foreign_ones_are_passed_over() {
        for line in [
            "serve a/b --gpu-memory-utilization=0.7 --dtype=half",
            "serve a/b --gpu-memory-utilization 0.7 --enforce-eager",
        ] {
            let parsed = Arguments::parse(&words(line)).unwrap();
            let wanted = Arguments {
                model: "a/b".into(),
                share: 700,
                port: 8000,
            };
            assert_eq!(parsed, wanted, "{line}");
        }
        assert!(Arguments::parse(&words("chat a/b")).is_err());
    }

    #[test]
    fn a_share_is_read_to_the_thousandth_and_is_neither_nothing_nor_more_than_all() {
        for (text, share) in [("0.7", 700), ("0.05", 50), ("1", 1000), ("1.0", 1000)] {
            assert_eq!(thousandths(text), Ok(share), "{text}");
        }
        for text in ["0", "1.1", "-0.5", "half", "0.0001", ""] {
            assert!(thousandths(text).is_err(), "{text}");
        }
    }

    #[test]
    fn it_starts_only_where_that_much_is_free() {
        let view = |free| MemoryView {
            total: 10_000,
            free,
            held: 0,
            context: 0,
            limit: None,
            percent: 100,
        };
        assert_eq!(check(&view(7000), 700), Ok(7000));
        let refused = check(&view(6999), 700).unwrap_err();
        assert!(
            refused.starts_with("Free memory on device (6999 MiB/10000 MiB) on startup is less"),
            "{refused}"
        );
    }

    #[test]
    fn a_completion_has_as_many_tokens_as_were_asked_for() {
        let body = br#"{"model": "m", "prompt": "San Francisco is a", "max_tokens": 7}"#;
        let (status, page) = page("POST", "/v1/completions", body, "m");
        assert_eq!(status, "200 OK");
        assert_eq!(
            page["choices"][0]["text"],
            " city in the state of California,"
        );
        assert_eq!(page["choices"][0]["finish_reason"], "length");
        assert_eq!(page["usage"]["total_tokens"], 11);
        let (status, _) = super::page("POST", "/v1/completions", body, "other");
        assert_eq!(status, "404 Not Found");
        let (status, _) = super::page("GET", "/nothing", b"", "m");
        assert_eq!(status, "404 Not Found");
    }
}
